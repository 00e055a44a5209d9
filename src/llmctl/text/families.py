"""Group documents that share a skeleton: candidates by bands of their sketches, proof by the group's skeleton.

A family's skeleton is what several of its members have in common, in order. A document belongs to the family if it has
nearly all of the skeleton, and the skeleton makes up enough of it; so no chain of alike documents can form a family.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from llmctl.text.skeletons import (
    FREQUENCY_BITS,
    SKETCH_SIZE,
    align,
    common_lengths,
    count_documents,
    count_hashes,
    shared_bands,
    sketches,
)

NUM_BANDS, ROWS_PER_BAND = 24, 3
# Share of a sketch that other documents must have, for a document to be compared at all. A word that differs changes
# five shingles, so this is well below the share of words that a skeleton must have.
LEAST_SHARED = 0.2
_SEED_SIZE = 3
_SAMPLE = 8
_MOST_TRIES = 4
_LARGEST_OVERLAP = 3
_FOLD_SHARE = 0.6  # of a skeleton, that one more member may not fall below
_SKELETON_SHARE = 0.8  # of the skeleton, that a member has


@dataclass(frozen=True)
class FamilyLimits:
    """What a family is.

    Attributes:
        min_family: fewest documents.
        max_slot_share: largest share of a document's tokens outside the skeleton.
        min_skeleton: fewest tokens of a skeleton.
    """

    min_family: int
    max_slot_share: float
    min_skeleton: int


class TokenStore:
    """Token sequences of all documents in files that are memory-mapped, by document number.

    Args:
        parts: per block the paths of its tokens (uint32) and of its ends (int64 of shape [rows + 1]).
    """

    def __init__(self, parts: Sequence[tuple[Path, Path]]) -> None:
        self._tokens = [np.load(tokens, mmap_mode="r") for tokens, _ in parts]
        self._ends = [np.load(ends, mmap_mode="r") for _, ends in parts]
        self.firsts = np.concatenate([[0], np.cumsum([len(ends) - 1 for ends in self._ends])]).astype(np.int64)

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the tokens and ends of every block, in memory."""
        for tokens, ends in zip(self._tokens, self._ends, strict=True):
            yield np.array(tokens), np.array(ends)

    def sequence(self, document: int) -> np.ndarray:
        """Return the tokens of one document."""
        block = int(np.searchsorted(self.firsts, document, side="right")) - 1
        row = document - int(self.firsts[block])
        return np.asarray(self._tokens[block][self._ends[block][row] : self._ends[block][row + 1]])

    def sequences(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of several documents, and int64 ends of shape [documents + 1]."""
        parts = [self.sequence(int(document)) for document in documents]
        ends = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
        return (np.concatenate(parts) if parts else np.zeros(0, np.uint32)), ends


@dataclass
class Family:
    """Documents with one skeleton.

    Attributes:
        skeleton: uint32 tokens.
        members: int64 document numbers, ascending.
        slot_shares: float64, share of each member's tokens that stand outside the skeleton.
    """

    skeleton: np.ndarray
    members: np.ndarray
    slot_shares: np.ndarray


@dataclass
class _Draft:
    skeleton: np.ndarray
    members: list[np.ndarray] = field(default_factory=list)

    def all_members(self) -> np.ndarray:
        return np.sort(np.concatenate(self.members)) if self.members else np.zeros(0, np.int64)


class FamilySearch:
    """The search for families among candidate documents.

    Args:
        store: the tokens of all documents.
        limits: what a family is.
        documents: int64, ascending numbers of the candidates.
        hashes: uint64 of shape [bands, candidates].
    """

    _AT_ONCE = 4096

    def __init__(self, store: TokenStore, limits: FamilyLimits, documents: np.ndarray, hashes: np.ndarray) -> None:
        self.store, self.limits = store, limits
        self.documents, self.hashes = documents, hashes
        self.family_of = np.full(len(documents), -1, np.int64)
        self.tries = np.zeros(len(documents), np.int64)
        self.drafts: list[_Draft] = []
        self.neighbours: set[tuple[int, int]] = set()

    def run(self) -> list[Family]:
        """Return the families, largest first, then by their first member."""
        for places in self._buckets():
            self._grow(places)
        self._merge()
        families = [family for draft in self.drafts if (family := self._settle(draft)) is not None]
        return sorted(families, key=lambda family: (-len(family.members), int(family.members[0])))

    def _buckets(self) -> list[np.ndarray]:
        """Return the places of candidates under one band hash, the largest buckets first, equal buckets once."""
        found: dict[bytes, np.ndarray] = {}
        for band in self.hashes if len(self.documents) else ():
            order = np.argsort(band, kind="stable")
            starts = np.flatnonzero(np.concatenate([[True], band[order][1:] != band[order][:-1]]))
            for begin, end in zip(starts, [*starts[1:], len(band)], strict=True):
                if end - begin >= _SEED_SIZE:
                    places = order[begin:end]
                    found.setdefault(places.tobytes(), places)
        buckets = self._large_components(list(found.values()))
        return sorted(buckets, key=lambda places: (-len(places), places.tobytes()))

    def _large_components(self, buckets: list[np.ndarray]) -> list[np.ndarray]:
        """Return the buckets of which enough documents for a family can be reached through shared members."""
        from scipy import sparse
        from scipy.sparse.csgraph import connected_components

        if not buckets:
            return []
        one = np.concatenate([places[:-1] for places in buckets])
        two = np.concatenate([places[1:] for places in buckets])
        count = len(self.documents)
        graph = sparse.coo_matrix((np.ones(len(one), np.bool_), (one, two)), shape=(count, count))
        _, component = connected_components(graph, directed=False)
        sizes = np.bincount(component)
        return [places for places in buckets if sizes[component[places[0]]] >= self.limits.min_family]

    def _grow(self, places: np.ndarray) -> None:
        families = self.family_of[places]
        known = [number for number, _ in Counter(families[families >= 0].tolist()).most_common(_LARGEST_OVERLAP)]
        self.neighbours.update((min(a, b), max(a, b)) for a in known for b in known if a != b)
        free = places[families < 0]
        free = free[self.tries[free] < _MOST_TRIES]
        for number in known:
            if len(free):
                free = self._assign(number, free)
        if len(free) < _SEED_SIZE:
            return
        skeleton = self._skeleton(self.documents[free], _SAMPLE)
        accepted = self._belongs(skeleton, self.documents[free])
        if accepted.sum() >= _SEED_SIZE:
            self.drafts.append(_Draft(skeleton))
            free = self._take(len(self.drafts) - 1, free, accepted)
        self.tries[free] += 1

    def _assign(self, number: int, free: np.ndarray) -> np.ndarray:
        return self._take(number, free, self._belongs(self.drafts[number].skeleton, self.documents[free]))

    def _take(self, number: int, free: np.ndarray, accepted: np.ndarray) -> np.ndarray:
        self.family_of[free[accepted]] = number
        self.drafts[number].members.append(self.documents[free[accepted]])
        return free[~accepted]

    def _skeleton(self, documents: np.ndarray, sample: int) -> np.ndarray:
        """Return what a sample of documents has in common; empty if they have too little."""
        chosen = documents[np.unique(np.linspace(0, len(documents) - 1, min(sample, len(documents))).astype(np.int64))]
        sequences = [self.store.sequence(int(document)) for document in chosen]
        best = np.zeros(0, np.uint32)
        most = 1
        for first in range(min(3, len(sequences))):  # the first may be no member
            skeleton, folded = sequences[first], 1
            for other in sequences[:first] + sequences[first + 1 :]:
                common = skeleton[align(skeleton, other)[0]]
                least = _FOLD_SHARE * len(skeleton) if folded > 1 else self._fewest(min(len(skeleton), len(other)))
                if len(common) >= max(least, self.limits.min_skeleton):
                    skeleton, folded = common, folded + 1
            if folded > most:
                best, most = skeleton, folded
            if folded == len(sequences):
                break
        return best

    def _fewest(self, tokens: int) -> float:
        return (1.0 - self.limits.max_slot_share) * tokens

    def _shares(self, skeleton: np.ndarray, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return per document the share of the skeleton that it has, and the share of it that the skeleton has."""
        have, made = np.zeros(len(documents)), np.zeros(len(documents))
        for begin in range(0, len(documents), self._AT_ONCE):
            tokens, ends = self.store.sequences(documents[begin : begin + self._AT_ONCE])
            lengths = common_lengths(skeleton, tokens, ends)
            have[begin : begin + self._AT_ONCE] = lengths / max(len(skeleton), 1)
            made[begin : begin + self._AT_ONCE] = lengths / np.maximum(np.diff(ends), 1)
        return have, made

    def _belongs(self, skeleton: np.ndarray, documents: np.ndarray) -> np.ndarray:
        if len(skeleton) < self.limits.min_skeleton:
            return np.zeros(len(documents), np.bool_)
        have, made = self._shares(skeleton, documents)
        return np.asarray((have >= _SKELETON_SHARE) & (made >= 1.0 - self.limits.max_slot_share))

    def _merge(self) -> None:
        """Move the members of a family that fit a larger one, where both met in a bucket."""
        sizes = [sum(map(len, draft.members)) for draft in self.drafts]
        for one, two in sorted(self.neighbours, key=lambda pair: (-(sizes[pair[0]] + sizes[pair[1]]), pair)):
            large, small = (one, two) if sizes[one] >= sizes[two] else (two, one)
            members = self.drafts[small].all_members()
            if not len(members):
                continue
            accepted = self._belongs(self.drafts[large].skeleton, members)
            if accepted.any():
                self.drafts[large].members.append(members[accepted])
                self.drafts[small].members = [members[~accepted]]

    def _settle(self, draft: _Draft) -> Family | None:
        """Return the family with the skeleton of a wider sample, without the members that do not fit it."""
        members = draft.all_members()
        if len(members) < self.limits.min_family:
            return None
        skeleton = self._skeleton(members, 2 * _SAMPLE)
        accepted = self._belongs(skeleton, members)
        if accepted.sum() < self.limits.min_family:
            return None
        members = members[accepted]
        return Family(skeleton, members, 1.0 - self._shares(skeleton, members)[1])


def find_families(store: TokenStore, folder: Path, limits: FamilyLimits) -> list[Family]:
    """Find the families among all documents of a store, the largest first.

    Memory holds tables of 16 and at most 256 MB, the candidates (about 200 bytes each), and one block at a time.

    Args:
        store: the tokens.
        folder: for the sketches of the blocks, which are read twice.
        limits: what a family is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    frequencies = np.zeros(1 << FREQUENCY_BITS, np.uint32)
    for tokens, ends in store.blocks():
        frequencies += count_documents(tokens, ends, FREQUENCY_BITS)
    total = 0
    for number, (tokens, ends) in enumerate(store.blocks()):
        values, value_ends = sketches(tokens, ends, frequencies, FREQUENCY_BITS, limits.min_family, SKETCH_SIZE)
        np.save(folder / f"{number}-values.npy", values)
        np.save(folder / f"{number}-ends.npy", value_ends)
        total += len(values)
    blocks = range(len(store.firsts) - 1)
    bits = min(max((4 * total).bit_length(), 16), 27)
    counts = np.zeros(1 << bits, np.uint16)
    for number in blocks:
        count_hashes(np.load(folder / f"{number}-values.npy"), counts, bits)
    documents, hashes = [np.zeros(0, np.int64)], [np.zeros((NUM_BANDS, 0), np.uint64)]
    for number in blocks:
        sketch = np.load(folder / f"{number}-values.npy"), np.load(folder / f"{number}-ends.npy")
        rows, bands = shared_bands(*sketch, counts, bits, limits.min_family, LEAST_SHARED, NUM_BANDS, ROWS_PER_BAND)
        documents.append(rows + store.firsts[number])
        hashes.append(bands)
    return FamilySearch(store, limits, np.concatenate(documents), np.concatenate(hashes, axis=1)).run()


SLOT_MARK = "{…}"


def show_skeleton(text: str, skeleton: np.ndarray) -> tuple[str, list[str]]:
    """Return a member's text with `SLOT_MARK` in place of what is not the skeleton's, and what stood there."""
    from llmctl.text.skeletons import token_spans

    data = text.encode()
    tokens, starts, stops = token_spans(data)
    matched = np.zeros(len(tokens), np.bool_)
    matched[align(tokens, skeleton)[0]] = True
    pieces: list[str] = []
    slots: list[str] = []
    position, place = 0, 0
    while place < len(tokens):
        if matched[place]:
            place += 1
            continue
        last = place
        while last + 1 < len(tokens) and not matched[last + 1]:
            last += 1
        pieces.append(data[position : starts[place]].decode())
        slots.append(data[starts[place] : stops[last]].decode())
        position, place = int(stops[last]), last + 1
    return SLOT_MARK.join([*pieces, data[position:].decode()]), slots

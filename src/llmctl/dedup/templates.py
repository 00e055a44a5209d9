"""The method `template`: of a family of documents with one skeleton and varying slots, the best few stay.

It comes after the other methods, over the documents that they leave. A document goes only for one that stays and that
has enough of its words in the same order; documents that an earlier method removed for it go for that one too, if they
resemble it as much, and otherwise it stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from llmctl.artifacts.manifest import STATE_FOLDER
from llmctl.artifacts.output import Output
from llmctl.dedup.config import DedupConfig
from llmctl.dedup.index import Index
from llmctl.dedup.signatures import save_state
from llmctl.dedup.survivors import TEMPLATE, Decisions, best_first, join_decisions
from llmctl.dedup.writing import read_staged
from llmctl.runtime.pool import Unit, UnitResult, run_units
from llmctl.text.buffers import text_buffers
from llmctl.text.families import Family, FamilyLimits, TokenStore, find_families, show_skeleton
from llmctl.text.skeletons import common_lengths, token_sequences

TOKENS_FOLDER = f"{STATE_FOLDER}/tokens"
SKETCHES_FOLDER = f"{STATE_FOLDER}/sketches"
_MOST_COMPARED = 16  # staying documents of a family that another one is compared with
_SHOWN = 20
_SKELETON_CHARS = 2000


@dataclass(frozen=True)
class TokenContext:
    """Where the staged documents are."""

    root: str


def tokenise_block(unit: Unit, context: TokenContext) -> UnitResult:
    """Write the tokens of the documents of one block."""
    root = Path(context.root)
    table, _ = read_staged(root, unit.name)
    tokens, ends = token_sequences(*text_buffers(table.column("text")))
    files = [
        save_state(root, f"{TOKENS_FOLDER}/{unit.name}-tokens.npy", tokens),
        save_state(root, f"{TOKENS_FOLDER}/{unit.name}-ends.npy", ends),
    ]
    return UnitResult(files)


def without(tokens: np.ndarray, ends: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return token sequences of which those in `rows` are empty."""
    sizes = np.diff(ends)
    keep = np.ones(len(sizes), np.bool_)
    keep[rows] = False
    kept = np.repeat(keep, sizes)
    return tokens[kept], np.concatenate([[0], np.cumsum(np.where(keep, sizes, 0))]).astype(np.int64)


@dataclass
class Templates:
    """What the method found.

    Attributes:
        decisions: about all documents, those of the other methods included.
        families: number of families, their documents, and the largest with their skeletons, for the manifest.
    """

    decisions: Decisions
    families: dict[str, object]


class TemplateMethod:
    """The method over one run's documents.

    Args:
        out: the claimed output.
        index: of all documents, those of earlier corpora first.
        names: of the run's own blocks.
        num_fixed: documents of earlier corpora; they are not looked at.
        key: what the units depend on beside the configuration.
    """

    def __init__(
        self, out: Output, index: Index, names: list[str], config: DedupConfig, num_fixed: int, key: str
    ) -> None:
        self.out, self.index, self.names = out, index, names
        self.config, self.num_fixed, self.key = config, num_fixed, key
        self.limits = FamilyLimits(
            config.template_min_family, config.template_max_slot_share, config.template_min_words
        )

    def run(self, decided: Decisions) -> Templates:
        """Return the decisions with those of this method added.

        Args:
            decided: by the methods before.
        """
        paths = self._tokens()
        self.all = TokenStore(paths)
        families = find_families(self._staying(paths, decided), self.out.root / SKETCHES_FOLDER, self.limits)
        followers = _followers(decided, self.num_fixed)
        changes: dict[int, tuple[int, float]] = {}
        for family in families:
            self._decide(family, followers, changes)
        return Templates(_with_changes(decided, changes), self._describe(families))

    def _tokens(self) -> list[tuple[Path, Path]]:
        run_units(
            tokenise_block,
            [Unit(name, None, 0, self.key) for name in self.names],
            TokenContext(str(self.out.root)),
            self.out,
            phase="tokens",
            label="looking for templates",
            most_workers=None if len(self.names) > 4 else 1,
        )
        folder = self.out.root / TOKENS_FOLDER
        return [(folder / f"{name}-tokens.npy", folder / f"{name}-ends.npy") for name in self.names]

    def _staying(self, paths: list[tuple[Path, Path]], decided: Decisions) -> TokenStore:
        """Return the tokens of the documents that stay so far; the others have none."""
        gone = decided.documents[decided.documents >= self.num_fixed] - self.num_fixed
        staying = []
        for number, (tokens, ends) in enumerate(paths):
            first, last = self.all.firsts[number : number + 2]
            rows = gone[(gone >= first) & (gone < last)] - first
            arrays = without(np.load(tokens), np.load(ends), rows)
            for path, array in zip((tokens, ends), arrays, strict=True):
                np.save(path.with_name(f"staying-{path.name}"), array)
            staying.append((tokens.with_name(f"staying-{tokens.name}"), ends.with_name(f"staying-{ends.name}")))
        return TokenStore(staying)

    def _decide(self, family: Family, followers: dict[int, list[int]], changes: dict[int, tuple[int, float]]) -> None:
        members = family.members + self.num_fixed
        best = members[best_first(self.index, members, self.num_fixed)]
        staying: list[int] = []
        for document in best.tolist():
            if len(staying) < self.config.template_keep or not self._removed(document, staying, followers, changes):
                staying.append(document)

    def _removed(
        self, document: int, staying: list[int], followers: dict[int, list[int]], changes: dict[int, tuple[int, float]]
    ) -> bool:
        """Remove a document, and those removed for it, for the nearest that stays, if all of them resemble it."""
        everyone = [document, *followers.get(document, ())]
        likeness = np.stack([self._likeness(everyone, other) for other in staying[:_MOST_COMPARED]])
        nearest = int(likeness.min(axis=1).argmax())
        if likeness[nearest].min() < 1.0 - self.config.template_max_slot_share:
            return False
        changes.update(
            {one: (staying[nearest], float(value)) for one, value in zip(everyone, likeness[nearest], strict=True)}
        )
        return True

    def _likeness(self, documents: list[int], other: int) -> np.ndarray:
        """Return the share of each document's words that stand in another one in the same order."""
        tokens, ends = self.all.sequences(np.array(documents) - self.num_fixed)
        lengths = common_lengths(self.all.sequence(other - self.num_fixed), tokens, ends)
        return np.asarray(lengths / np.maximum(np.diff(ends), 1))

    def _describe(self, families: list[Family]) -> dict[str, object]:
        shown = []
        for family in families[:_SHOWN]:
            block = int(np.searchsorted(self.all.firsts, family.members[0], side="right")) - 1
            row = int(family.members[0] - self.all.firsts[block])
            example = read_staged(self.out.root, self.names[block])[0].slice(row, 1).to_pylist()[0]
            shown.append(
                {
                    "size": len(family.members),
                    "example_id": example["id"],
                    "skeleton": show_skeleton(example["text"], family.skeleton)[0][:_SKELETON_CHARS],
                }
            )
        documents = sum(len(family.members) for family in families)
        return {"families": len(families), "documents": documents, "largest": shown}


def _followers(decided: Decisions, num_fixed: int) -> dict[int, list[int]]:
    """Return for each staying document those that were removed for it."""
    followers: dict[int, list[int]] = {}
    for document, survivor in zip(decided.documents.tolist(), decided.survivors.tolist(), strict=True):
        if survivor >= num_fixed:
            followers.setdefault(survivor, []).append(document)
    return followers


def _with_changes(decided: Decisions, changes: dict[int, tuple[int, float]]) -> Decisions:
    documents = np.array(sorted(changes), np.int64)
    added = Decisions(
        documents,
        np.array([changes[one][0] for one in documents.tolist()], np.int64),
        np.full(len(documents), TEMPLATE, np.uint8),
        np.array([changes[one][1] for one in documents.tolist()], np.float64),
    )
    kept = ~np.isin(decided.documents, documents)
    rest = Decisions(
        decided.documents[kept], decided.survivors[kept], decided.methods[kept], decided.similarities[kept]
    )
    return join_decisions([rest, added])

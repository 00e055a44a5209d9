"""Find sensitive entities in one text.

Each pattern has a cheap trigger. The triggers of the chosen types form three RE2 sets: three passes over the text tell
which of them occur at all, and the patterns are tried in windows around those. Everything is linear in the length of
the text: windows that meet are searched once, and a match that fails its check costs another search from its next word.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from llmctl.filtering.pii.catalogue import entities
from llmctl.filtering.pii.entity import Entity, Pattern

SET_MEMORY_BYTES = 256 << 20
CLOSING_BYTES = 16 << 10
_RANK = {"high": 0, "medium": 1, "low": 2}
_WORD = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
_DIGITS = frozenset(b"0123456789")
_JOINTS = frozenset(b".,/:-")


@dataclass(frozen=True)
class Found:
    """One entity in a text: its type and where its bytes begin and end."""

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class _Search:
    """One pattern around a trigger, with the entities that share it, each with its rank (lower goes first)."""

    regexp: Any
    before: int
    after: int
    entities: tuple[tuple[int, Entity], ...]


class Detector:
    """Finds the chosen types. Building one takes a fraction of a second; use `detector`."""

    def __init__(self, names: Sequence[str]) -> None:
        owners: dict[Pattern, list[tuple[int, Entity]]] = {}
        for rank, entity in enumerate(entities()):
            for pattern in entity.patterns if entity.name in names else ():
                owners.setdefault(pattern, []).append((rank, entity))
        searches: dict[str, list[_Search]] = {}
        for pattern, ranked in owners.items():
            search = _Search(_compiled(pattern.regex), pattern.before, pattern.after, tuple(ranked))
            searches.setdefault(pattern.trigger, []).append(search)
        self._triggers = [(_compiled(trigger), group) for trigger, group in searches.items()]
        self._sets = _trigger_sets({pattern.trigger: pattern.kind for pattern in owners})

    def find(self, text: Any) -> list[Found]:
        """Return what is in a text of UTF-8 bytes, by position; no two overlap.

        Where two overlap, higher confidence wins, then length, then the order of the catalogue.
        """
        candidates = set()
        for trigger_set, numbers in self._sets:
            for place in trigger_set.Match(text) or ():
                trigger, searches = self._triggers[numbers[place]]
                places = _places(trigger, text)
                for search in searches:
                    for low, high in _windows(places, search, len(text)):
                        for rank, entity in search.entities:
                            for start, end in _spans(search.regexp, text, entity, low, high):
                                preference = (_RANK[entity.confidence], start - end, rank)
                                candidates.add((*preference, start, end, entity.name))
        return _without_overlaps(candidates)


def _compiled(pattern: str) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    return re2.compile(pattern, options)


def _trigger_sets(triggers: Mapping[str, str]) -> list[tuple[Any, list[int]]]:
    """Return one RE2 set for each kind of trigger, with the numbers of its triggers."""
    import re2

    options = re2.Options()
    options.max_mem = SET_MEMORY_BYTES
    options.log_errors = False
    groups: dict[str, list[int]] = {}
    for number, kind in enumerate(triggers.values()):
        groups.setdefault(kind, []).append(number)
    names = list(triggers)
    sets = []
    for numbers in groups.values():
        trigger_set = re2.Set.SearchSet(options)
        for number in numbers:
            trigger_set.Add(names[number])
        trigger_set.Compile()
        sets.append((trigger_set, numbers))
    return sets


def _places(trigger: Any, text: Any) -> list[tuple[int, int]]:
    return [match.span() for match in trigger.finditer(text)]


def _windows(places: Sequence[tuple[int, int]], search: _Search, size: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of the text around a trigger's places; those that meet are one."""
    low = high = -1
    for start, end in places:
        first, last = max(0, start - search.before), min(size, end + search.after)
        if first <= high:
            high = max(high, last)
            continue
        if high >= 0:
            yield low, high
        low, high = first, last
    if high >= 0:
        yield low, high


def _spans(regexp: Any, text: Any, entity: Entity, position: int, stop: int) -> Iterator[tuple[int, int]]:
    while position < stop:
        match = regexp.search(text, position, stop)
        if match is None:
            return
        start, end = match.span(1) if regexp.groups else match.span()
        accepted = _accepted(text, start, end, entity)
        if accepted:
            yield start, accepted
            position = max(accepted, match.start() + 1)
        else:
            position = _next_word(text, match.start(), match.end())


def _accepted(text: Any, start: int, end: int, entity: Entity) -> int:
    """Return where the entity ends, 0 if the match is none."""
    if entity.check is not None:
        value = bytes(text[start:end]).decode("utf-8")
        result = entity.check(value)
        if not result:
            return 0
        if result is not True:
            end = start + len(value[:result].encode())
    if entity.until:
        end = _closed(text, end, entity.until)
    if entity.edges == "none":
        return end
    before, after = bytes(text[max(0, start - 2) : start]), bytes(text[end : end + 2])
    if (before and before[-1] in _WORD) or (after and after[0] in _WORD):
        return 0
    if entity.edges == "digits":
        if len(before) == 2 and before[1] in _JOINTS and before[0] in _DIGITS:
            return 0
        if len(after) == 2 and after[0] in _JOINTS and after[1] in _DIGITS:
            return 0
    return end


def _closed(text: Any, end: int, until: str) -> int:
    """Return where what closes an entity ends, or `end` if that does not come, or a new beginning comes first."""
    import re2

    match = re2.compile(until).search(text, end, end + CLOSING_BYTES)
    return match.end() if match is not None and bytes(match.group(1)) == b"END" else end


def _next_word(text: Any, start: int, end: int) -> int:
    """Return where a search goes on after a match that was none: behind its first word."""
    position = start
    while position < end and text[position] in _WORD:
        position += 1
    return max(position, start + 1)


def _without_overlaps(candidates: Collection[tuple[int, int, int, int, int, str]]) -> list[Found]:
    """Take candidates in their order of preference unless they overlap one that is taken."""
    starts: list[int] = []
    chosen: list[Found] = []
    for *_, start, end, name in sorted(candidates):
        place = bisect_left(starts, start)
        if place and chosen[place - 1].end > start:
            continue
        if place < len(starts) and starts[place] < end:
            continue
        starts.insert(place, start)
        chosen.insert(place, Found(name, start, end))
    return chosen


@lru_cache(maxsize=8)
def detector(names: tuple[str, ...]) -> Detector:
    """Return the detector of some types, built once in a process."""
    return Detector(names)

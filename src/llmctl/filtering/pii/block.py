"""Sensitive entities of a block of documents: found by each source's policy, counted, masked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llmctl.filtering.pii.catalogue import selected_types
from llmctl.filtering.pii.detect import Found, detector
from llmctl.filtering.pii.mask import masked
from llmctl.text.buffers import text_buffers

if TYPE_CHECKING:
    from llmctl.filtering.policy import Policy

RULE = "sensitive_entities"
TYPES_COLUMN = "sensitive_types"


@dataclass
class Sensitive:
    """What was found in a block's documents.

    Attributes:
        settings: the rule's parameters by document, as numbers into `parameters`; -1 where the rule is off.
        parameters: the different parameters.
        found: the entities of those documents that have any.
    """

    settings: np.ndarray
    parameters: list[Any]
    found: dict[int, list[Found]] = field(default_factory=dict)

    @property
    def counts(self) -> np.ndarray:
        """Return the number of entities by document, float64; NaN where nobody looked."""
        counts = np.where(self.settings >= 0, 0.0, np.nan)
        for row, entities in self.found.items():
            counts[row] = len(entities)
        return counts

    def columns(self) -> dict[str, pa.Array]:
        """Return the column of attributes/ that has the counts by type as JSON; null where there are none."""
        types: list[str | None] = [None] * len(self.settings)
        for row, entities in self.found.items():
            counts = sorted(Counter(entity.name for entity in entities).items())
            types[row] = "{" + ", ".join(f'"{name}": {count}' for name, count in counts) + "}"
        return {TYPES_COLUMN: pa.array(types, pa.large_string())}

    def masks(self, rows: Iterable[int], modes: Sequence[str]) -> list[int]:
        """Return those of some documents whose mode is one of `modes`."""
        return [row for row in rows if self.settings[row] >= 0 and self._of(row).mode in modes]

    def _of(self, row: int) -> Any:
        return self.parameters[self.settings[row]]

    def mask(self, texts: Any) -> pa.Array:
        """Return the texts with what was found replaced, where the mode says so."""
        return self._replaced(texts, {row: self.found[row] for row in self.masks(sorted(self.found), ("mask",))})

    def mask_removed(self, originals: Any, changed: np.ndarray, decided: np.ndarray) -> pa.Array:
        """Return the texts of removed documents as they were read, but masked unless the mode is `report`.

        Args:
            originals: the texts as they were read.
            changed: which of them the line rules changed; there the original is searched again.
            decided: -1 for the documents that stay.
        """
        rows = self.masks(np.flatnonzero(decided >= 0).tolist(), ("mask", "drop"))
        replaced = {row: self.found[row] for row in rows if row in self.found and not changed[row]}
        again = [row for row in rows if changed[row]]
        if again:
            replaced |= self._find(originals, again)
        return self._replaced(originals, replaced)

    def _replaced(self, texts: Any, found: Mapping[int, list[Found]]) -> pa.Array:
        texts = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
        if not found:
            return texts
        data, offsets = text_buffers(texts)
        view: Any = memoryview(data)  # type: ignore[arg-type] # arrays are buffers
        rows = sorted(found)
        values = [
            masked(view[offsets[row] : offsets[row + 1]], found[row], self._of(row).consistent).decode() for row in rows
        ]
        mask = np.zeros(len(offsets) - 1, np.bool_)
        mask[rows] = True
        return pc.replace_with_mask(texts, pa.array(mask), pa.array(values, texts.type))

    def _find(self, texts: Any, rows: Iterable[int]) -> dict[int, list[Found]]:
        data, offsets = text_buffers(texts)
        view: Any = memoryview(data)  # type: ignore[arg-type] # arrays are buffers
        detectors = [detector(selected_types(parameters.types)) for parameters in self.parameters]
        found = {}
        for row in rows:
            entities = detectors[self.settings[row]].find(view[offsets[row] : offsets[row + 1]])
            if entities:
                found[row] = entities
        return found

    def statistics(self, sources: Sequence[str], decided: np.ndarray) -> dict[str, Any]:
        """Return counts by source and type, and of documents.

        Args:
            sources: the source of each document.
            decided: -1 for the documents that stay.
        """
        by_source: dict[str, Counter[str]] = {}
        documents: Counter[str] = Counter(
            {"searched": int((self.settings >= 0).sum()), "with_entities": len(self.found)}
        )
        for row, entities in self.found.items():
            by_source.setdefault(sources[row], Counter()).update(entity.name for entity in entities)
            documents["masked"] += bool(decided[row] < 0 and self._of(row).mode == "mask")
        return {"documents": dict(documents), "by_source": {name: dict(counts) for name, counts in by_source.items()}}


def find_entities(texts: Any, policies: Sequence[Policy], policy_of_document: np.ndarray) -> Sensitive | None:
    """Look for the sensitive entities of each document's policy; None if no policy asks for any.

    Args:
        texts: Arrow strings of shape [documents].
        policy_of_document: int32 of shape [documents].
    """
    by_policy = [policy.rules.get(RULE) for policy in policies]
    parameters = [item for item in by_policy if item is not None]
    if not parameters:
        return None
    numbers = np.cumsum([item is not None for item in by_policy]) - 1
    numbers = np.where([item is None for item in by_policy], -1, numbers)
    sensitive = Sensitive(numbers[policy_of_document], parameters)
    sensitive.found = sensitive._find(texts, np.flatnonzero(sensitive.settings >= 0).tolist())
    return sensitive


def merged_statistics(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sum of several blocks' statistics, with the counts by type over all sources."""
    documents: Counter[str] = Counter()
    by_source: dict[str, Counter[str]] = {}
    for part in parts:
        documents.update(part["documents"])
        for source, counts in part["by_source"].items():
            by_source.setdefault(source, Counter()).update(counts)
    total: Counter[str] = Counter()
    for counts in by_source.values():
        total.update(counts)
    return {
        "documents": dict(sorted(documents.items())),
        "by_type": dict(sorted(total.items())),
        "by_source": {source: dict(sorted(counts.items())) for source, counts in sorted(by_source.items())},
    }

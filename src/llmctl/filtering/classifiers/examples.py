"""Read labelled examples: two folders, or rows with a label."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from llmctl import console
from llmctl.artifacts.raw.plan import plan_blocks
from llmctl.artifacts.raw.read import read_block
from llmctl.errors import UserError
from llmctl.text.grams import MAX_CHARS

if TYPE_CHECKING:
    from llmctl.artifacts.inputs import Input
    from llmctl.filtering.classifiers.config import ClassifierConfig

SHOWN_LABELS = 8


@dataclass
class Examples:
    """Labelled texts.

    Attributes:
        texts: the beginning of every text that is looked at.
        positive: bool of shape [documents].
        label: the label that `positive` stands for.
        counts: how many records were read, invalid, without label, empty, left out by sampling.
    """

    texts: pa.Array
    positive: np.ndarray
    label: str
    counts: dict[str, int]


class _Reservoir:
    """A sample of texts of bounded size, the same for the same seed: those whose drawn numbers are smallest."""

    def __init__(self, size: int, seed: list[int]) -> None:
        self._size = size
        self._draw = np.random.default_rng(seed)
        self._numbers = np.zeros(0)
        self._order = np.zeros(0, np.int64)
        self._texts = pa.chunked_array([pa.array([], pa.large_string())])
        self.seen = 0

    def add(self, texts: pa.ChunkedArray) -> None:
        self._numbers = np.concatenate([self._numbers, self._draw.random(len(texts))])
        self._order = np.concatenate([self._order, np.arange(self.seen, self.seen + len(texts))])
        self.seen += len(texts)
        self._texts = pa.chunked_array([*self._texts.chunks, *texts.chunks], pa.large_string())
        if len(self._texts) > 2 * self._size:
            self._cut()

    def _cut(self) -> None:
        kept = np.sort(np.argsort(self._numbers, kind="stable")[: self._size])
        self._numbers, self._order = self._numbers[kept], self._order[kept]
        self._texts = pa.chunked_array([self._texts.take(pa.array(kept)).combine_chunks()])

    def texts(self) -> pa.ChunkedArray:
        if len(self._texts) > self._size:
            self._cut()
        return self._texts


def read_folders(good: Input, bad: Input, config: ClassifierConfig) -> Examples:
    """Read examples from a folder of each kind; the score is about the bad ones.

    Raises:
        UserError: one of them has no text.
    """
    counts: Counter[str] = Counter()
    columns = []
    for number, source in enumerate((good, bad)):
        sample = _Reservoir(config.max_documents, [config.seed, number])
        for texts, _ in _batches(source, config, counts):
            sample.add(texts)
        if not sample.seen:
            raise UserError(
                f"--{source.role} {source.name} has no text in it", "give files with documents of that kind"
            )
        counts["left_out"] += sample.seen - len(sample.texts())
        columns.append(sample.texts())
    positive = np.repeat([False, True], [len(column) for column in columns])
    texts = pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.large_string())
    return Examples(_joined(texts), positive, "bad", dict(counts))


def read_rows(source: Input, config: ClassifierConfig) -> Examples:
    """Read rows with a label.

    Raises:
        UserError: no labels, a single one, or more than two and none chosen.
    """
    counts: Counter[str] = Counter()
    samples: dict[str, _Reservoir] = {}
    for texts, metadata in _batches(source, config, counts):
        labels = _labels(metadata, config.label_field)
        found = pa.array(labels, pa.large_string())
        counts["without_label"] += found.null_count
        for name in sorted({label for label in labels if label is not None}):
            # Numbered by name, so that the sample does not depend on which label comes first.
            sample = samples.setdefault(name, _Reservoir(config.max_documents, [config.seed, *name.encode()]))
            sample.add(texts.filter(pc.equal(found, pa.scalar(name, pa.large_string())).fill_null(False)))
    totals = {name: sample.seen for name, sample in sorted(samples.items())}
    if not totals:
        raise UserError(
            f"no record of {source.name} has the field `{config.label_field}`",
            "name the field that holds the label: --label-field NAME",
        )
    label = _positive(totals, config)
    counts["left_out"] += sum(sample.seen - len(sample.texts()) for sample in samples.values())
    if counts["without_label"]:
        console.warning(
            f"{counts['without_label']:,} records have no `{config.label_field}` and are left out",
            "label them, or name another field with --label-field",
        )
    order = [name for name in totals if name != label] + [label]
    positive = np.concatenate([np.full(len(samples[name].texts()), name == label) for name in order])
    texts = pa.chunked_array([chunk for name in order for chunk in samples[name].texts().chunks], pa.large_string())
    return Examples(_joined(texts), positive, label, dict(counts))


def _joined(texts: pa.ChunkedArray) -> pa.Array:
    joined = texts.combine_chunks()
    return joined if isinstance(joined, pa.Array) else joined.chunk(0)


def _batches(source: Input, config: ClassifierConfig, counts: Counter[str]) -> Any:
    """Yield (texts, metadata) of the records that have any text."""
    for block in plan_blocks(source, config.read):
        batch = read_block(block, config.read)
        counts["read"] += batch.table.num_rows + len(batch.invalid)
        counts["invalid"] += len(batch.invalid)
        # What lies beyond is not looked at, so it need not be held.
        texts = pc.utf8_slice_codeunits(batch.table.column("text"), 0, 2 * MAX_CHARS)
        filled = pc.greater(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0)
        counts["empty"] += batch.table.num_rows - int(pc.sum(filled).as_py() or 0)
        yield texts.filter(filled), batch.table.column("metadata").filter(filled).to_pylist()
    if counts["invalid"]:
        console.warning(f"{counts['invalid']:,} records of {source.name} are invalid and left out")


def _labels(metadata: list[str | None], field: str) -> list[str | None]:
    labels: list[str | None] = []
    for text in metadata:
        value = orjson.loads(text).get(field) if text else None
        if isinstance(value, (dict, list)):
            raise UserError(f"the field `{field}` holds {value!r}, no label", "a label is a word or a number")
        if value is not None and not isinstance(value, str):
            value = str(value).lower() if isinstance(value, bool) else f"{value:g}"
        labels.append(value)
    return labels


def _positive(totals: dict[str, int], config: ClassifierConfig) -> str:
    shown = ", ".join(f"{name} ({count:,})" for name, count in list(totals.items())[:SHOWN_LABELS])
    shown += ", …" if len(totals) > SHOWN_LABELS else ""
    if len(totals) == 1:
        raise UserError(
            f"all labels are the same: {shown}", "a classifier needs examples of two kinds; add some of the other"
        )
    if config.positive is not None:
        if config.positive not in totals:
            raise UserError(f"no record has the label `{config.positive}`", f"the labels are: {shown}")
        return config.positive
    if len(totals) > 2:
        raise UserError(
            f"there are {len(totals)} labels: {shown}", "say which one the score is about: --positive LABEL"
        )
    for name in ("1", "true"):
        if name in totals:
            return name
    return min(totals, key=lambda name: (totals[name], name))

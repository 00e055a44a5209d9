"""Filter one block of records: statistics, line edits, rules, and the block's files."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from llmctl.artifacts.accounting import Accounting
from llmctl.artifacts.documents import DATA_FOLDER, REMOVED_FOLDER, write_invalid, write_parquet
from llmctl.artifacts.kinds import documents_schema, removed_schema
from llmctl.artifacts.raw.read import read_block
from llmctl.filtering.clusters.search import count_usable
from llmctl.filtering.collection import Collected
from llmctl.filtering.detections import (
    declared,
    detect_all,
    detectors_for,
    fill_languages,
    to_table,
    with_identities,
)
from llmctl.filtering.evaluate import Evaluator, Verdict, all_reasons, deciding_rule
from llmctl.filtering.models import Models
from llmctl.filtering.pii.block import find_entities
from llmctl.filtering.policy import policy_of, resolve_policies
from llmctl.filtering.scores import ATTRIBUTES_FOLDER, StoredScores, stored_columns, with_content
from llmctl.runtime.pool import Unit, UnitResult
from llmctl.text.buffers import text_buffers
from llmctl.text.lines import ACTIONS, CITATIONS, STRIP, edit_lines
from llmctl.text.statistics import document_statistics

if TYPE_CHECKING:
    from llmctl.artifacts.raw.blocks import DocumentBatch
    from llmctl.filtering.config import FilterConfig


@dataclass(frozen=True)
class BlockContext:
    """What every block needs to know."""

    config: FilterConfig
    root: str
    scores: StoredScores | None = None
    collected: tuple[Collected, ...] = ()
    models: Models = field(default_factory=Models)


@dataclass
class Measured:
    """A batch with its statistics.

    Attributes:
        texts: the texts as they would be kept.
        original, edited: the statistics of the texts before and after the line rules.
        changed: which texts the line rules changed.
        detected: the scores of models, of the texts before the line rules.
        line_counts: int64 of shape [documents, len(ACTIONS)].
    """

    texts: pa.Array
    original: dict[str, np.ndarray]
    edited: dict[str, np.ndarray]
    changed: np.ndarray
    line_counts: np.ndarray
    detected: dict[str, np.ndarray] = field(default_factory=dict)


def filter_block(unit: Unit, context: BlockContext) -> UnitResult:
    """Read a block, decide on each document, and write the block's files."""
    config, root = context.config, Path(context.root)
    batch = read_block(unit.payload, config.read)
    policies = resolve_policies(config, context.models)
    evaluator = Evaluator(policies)
    sources = dictionary(batch.table.column("source"))
    policy_numbers = np.array([policy_of(name, policies) for name in sources.dictionary.to_pylist()], np.int32)
    policy_of_document = policy_numbers[sources.indices.to_numpy()] if len(sources) else np.zeros(0, np.int32)

    part = f"part-{unit.name}"
    stored = None
    if context.scores is not None:
        families = evaluator.families("original")
        names = sources.dictionary.to_pylist()
        stored = stored_columns(context.scores, part, batch.content_hash, families, names, policies)
    measured = measure(batch.table.column("text"), evaluator, policy_of_document, stored)
    detectors = [
        *detectors_for(config, policies, context.models, [found.name for found in context.collected]),
        *(found.detector(part) for found in context.collected),
    ]
    measured.detected, reused = detect_all(detectors, batch, part, context.scores)
    sensitive = find_entities(measured.texts, policies, policy_of_document)
    if sensitive is not None:
        measured.detected["sensitive_entities"] = sensitive.counts
    verdicts = evaluator.verdicts(measured.original, measured.edited, policy_of_document, measured.detected)
    decided = deciding_rule(verdicts, batch.table.num_rows)
    attributes = None
    if config.attributes:
        attributes = attributes_table(batch.table, measured, evaluator.edits)
        for name, column in (sensitive.columns() if sensitive else {}).items():
            attributes = attributes.append_column(name, column)
        attributes = with_content(attributes, batch.content_hash)
    named = declared(batch.table)
    table, detected = fill_languages(batch.table, measured.detected)
    batch = replace(batch, table=table)
    removed_texts = batch.table.column("text")
    if sensitive is not None:
        removed_texts = sensitive.mask_removed(removed_texts, measured.changed, decided)
        measured.texts = sensitive.mask(measured.texts)

    files = [write_parquet(root, f"{DATA_FOLDER}/{part}.parquet", kept_table(batch.table, measured.texts, decided))]
    if (decided >= 0).any():
        removed = removed_table(with_texts(batch.table, removed_texts), verdicts, decided, config.keep_text_of_removed)
        files.append(write_parquet(root, f"{REMOVED_FOLDER}/{part}.parquet", removed))
    if attributes is not None:
        attributes = with_identities(attributes, detectors)
        files.append(write_parquet(root, f"{ATTRIBUTES_FOLDER}/{part}.parquet", attributes))
    files += write_invalid(root, part, batch.invalid)
    accounting = account(batch, measured, decided, list(verdicts), detected)
    data = {
        "accounting": accounting.to_mapping(),
        "lines": line_statistics(measured, decided),
        "languages": {
            "declared": int(named.sum()),
            "detected": int(detected.sum()),
            "unknown": int((~named & ~detected).sum()),
        },
        "sensitive": sensitive.statistics(batch.table.column("source").to_pylist(), decided) if sensitive else None,
        "reused_scores": stored is not None and reused == len(detectors),
        "clusters": count_usable(measured.detected, verdicts),
        "fails": {name: int(verdict.failed.sum()) for name, verdict in verdicts.items()},
        "policies": {
            name: int(number) for name, number in zip(sources.dictionary.to_pylist(), policy_numbers, strict=True)
        },
    }
    return UnitResult(files, data)


def dictionary(column: pa.ChunkedArray | pa.Array) -> pa.DictionaryArray:
    """Return a text column as numbers into its distinct values (nulls stay null)."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks else pa.array([], column.type)
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0)
    return column.dictionary_encode()


def measure(
    column: pa.ChunkedArray,
    evaluator: Evaluator,
    policy_of_document: np.ndarray,
    stored: dict[str, np.ndarray] | None = None,
) -> Measured:
    """Compute the statistics that the rules need, before and after the line rules.

    Args:
        column: the texts.
        evaluator: the rules.
        policy_of_document: int32, which policy applies.
        stored: the statistics of the texts before the line rules, if an earlier run has them.
    """
    data, offsets = text_buffers(column)
    lists = evaluator.lists_of(policy_of_document)
    original = stored
    if original is None:
        original = document_statistics(data, offsets, evaluator.families("original"), evaluator.word_lists, lists)
    documents = len(offsets) - 1
    if not evaluator.edits:
        unchanged = np.zeros(documents, np.bool_)
        return Measured(column, original, original, unchanged, np.zeros((documents, len(ACTIONS)), np.int64))

    new_data, new_offsets, line_counts = edit_lines(data, offsets, evaluator.line_actions(), policy_of_document)
    texts = pa.LargeStringArray.from_buffers(documents, pa.py_buffer(new_offsets), pa.py_buffer(new_data))
    changed = np.diff(new_offsets) != np.diff(offsets)
    families = evaluator.families("edited")
    # A text that lost nothing has the statistics it had; what only the edited text needs is computed for all.
    rows = np.flatnonzero(changed) if not families & ~evaluator.families("original") else np.arange(documents)
    again = document_statistics(*text_buffers(texts.take(pa.array(rows))), families, evaluator.word_lists, lists[rows])
    edited = {}
    for name, column_again in again.items():
        edited[name] = original[name].copy() if name in original else np.zeros(documents, np.int64)
        edited[name][rows] = column_again
    return Measured(texts, original, edited, changed, line_counts)


def kept_table(table: pa.Table, texts: pa.Array, decided: np.ndarray) -> pa.Table:
    """Return the documents that stay, with their texts as the line rules leave them."""
    return with_texts(table, texts).filter(pa.array(decided < 0)).cast(documents_schema())


def with_texts(table: pa.Table, texts: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return the table with other texts."""
    position = table.schema.get_field_index("text")
    return table.set_column(position, documents_schema().field("text"), texts)


def removed_table(table: pa.Table, verdicts: dict[str, Verdict], decided: np.ndarray, keep_text: bool) -> pa.Table:
    """Return the documents that go, each with the deciding rule, its value and limit, and every reason."""
    rows = np.flatnonzero(decided >= 0)
    which = decided[rows]
    values = np.zeros(len(rows))
    thresholds = np.zeros(len(rows))
    for number, verdict in enumerate(verdicts.values()):
        here = which == number
        values[here] = verdict.value[rows[here]]
        thresholds[here] = verdict.threshold[rows[here]]
    gone = table.take(pa.array(rows))
    names = pa.DictionaryArray.from_arrays(pa.array(which), pa.array(list(verdicts), pa.large_string()))
    columns = {
        "id": gone.column("id"),
        "reason": names.cast(pa.large_string()),
        "value": pa.array(values),
        "threshold": pa.array(thresholds),
        "all_reasons": all_reasons(verdicts, rows),
        "source": gone.column("source"),
        "lang": gone.column("lang"),
        "text": gone.column("text") if keep_text else pa.nulls(len(rows), pa.large_string()),
    }
    return pa.table(columns, schema=removed_schema())


def attributes_table(table: pa.Table, measured: Measured, edits: bool) -> pa.Table:
    """Return every computed statistic by document; those after the line rules have the prefix ``edited.``."""
    columns: dict[str, Any] = {"id": table.column("id"), "source": table.column("source"), "lang": table.column("lang")}
    columns |= {name: pa.array(values) for name, values in measured.original.items()}
    columns |= to_table(measured.detected)
    if edits:
        columns |= {f"edited.{name}": pa.array(values) for name, values in measured.edited.items()}
        for number, name in enumerate(ACTIONS):
            if number != STRIP:
                columns[f"lines.{name}"] = pa.array(np.ascontiguousarray(measured.line_counts[:, number]))
    return pa.table(columns)


def account(
    batch: DocumentBatch, measured: Measured, decided: np.ndarray, names: list[str], detected: np.ndarray
) -> Accounting:
    """Count the block's records by file, by source and language, and by reason.

    Args:
        detected: bool, which records have their language from the detector.
    """
    accounting = Accounting()
    kept = decided < 0
    files = len(batch.files)
    kept_by_file = np.bincount(batch.file_index[kept], minlength=files)
    removed_by_file = np.bincount(batch.file_index[~kept], minlength=files)
    invalid_by_file = Counter(record.file for record in batch.invalid)
    for number, path in enumerate(batch.files):
        accounting.add_file(
            path,
            kept=int(kept_by_file[number]),
            removed=int(removed_by_file[number]),
            invalid=invalid_by_file.pop(path, 0),
        )
    for path, count in invalid_by_file.items():
        accounting.add_file(path, invalid=count)
    accounting.errors.update(record.error for record in batch.invalid)
    accounting.skipped.update(batch.skipped)
    for number, name in enumerate(names):
        if count := int((decided == number).sum()):
            accounting.reasons[name] += count
    _account_groups(accounting, batch.table, measured.texts, kept, detected)
    return accounting


def _account_groups(
    accounting: Accounting, table: pa.Table, texts: pa.Array, kept: np.ndarray, detected: np.ndarray
) -> None:
    if not table.num_rows:
        return
    sources, languages = dictionary(table.column("source")), dictionary(table.column("lang"))
    language_of = languages.indices.fill_null(len(languages.dictionary)).to_numpy()
    names = [*languages.dictionary.to_pylist(), None]
    codes = sources.indices.to_numpy().astype(np.int64) * len(names) + language_of
    size = len(sources.dictionary) * len(names)
    bytes_in = np.diff(text_buffers(table.column("text"))[1])
    bytes_kept = np.where(kept, np.diff(text_buffers(texts)[1]), 0)
    counts = {
        "in": np.bincount(codes, minlength=size),
        "kept": np.bincount(codes[kept], minlength=size),
        "lang_detected": np.bincount(codes[detected], minlength=size),
        # float64 sums are exact below 2**53 bytes
        "bytes_in": np.bincount(codes, weights=bytes_in, minlength=size),
        "bytes_kept": np.bincount(codes, weights=bytes_kept, minlength=size),
    }
    for code in np.flatnonzero(counts["in"]).tolist():
        source, language = sources.dictionary[code // len(names)].as_py(), names[code % len(names)]
        accounting.add_group(source, language, **{name: int(column[code]) for name, column in counts.items()})


def line_statistics(measured: Measured, decided: np.ndarray) -> dict[str, int]:
    """Return how many kept documents the line rules changed, and what each rule dropped from those."""
    kept = decided < 0
    totals = measured.line_counts[kept].sum(axis=0)
    counts = {"changed_documents": int(measured.changed[kept].sum())}
    for number, name in enumerate(ACTIONS):
        if number != STRIP and totals[number]:
            counts["citation_marks" if number == CITATIONS else name] = int(totals[number])
    return counts

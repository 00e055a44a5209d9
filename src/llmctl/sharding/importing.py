"""Make the table of documents that `tokens` have by themselves, for shards and for files of other tools."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from llmctl.artifacts.documents import write_parquet
from llmctl.artifacts.output import Output
from llmctl.artifacts.tokens import TokenizerFacts, tokens_schema
from llmctl.errors import UserError
from llmctl.runtime.pool import Unit, UnitResult, run_units
from llmctl.sharding.formats import FORMATS, Layout
from llmctl.sharding.source import Part, TokenSource
from llmctl.sharding.vocabulary import TOKENIZER_JSON, bytes_of_ids, load

if TYPE_CHECKING:
    import pyarrow as pa

TABLES_FOLDER = "_state/tables"


@dataclass(frozen=True)
class ImportContext:
    """What every part needs.

    Attributes:
        root: the output folder.
        tokenizer: the ``tokenizer.json``, to know how much text ids stand for.
        append_eos: whether documents that lack the end-of-text token get one.
    """

    root: str
    facts: TokenizerFacts
    tokenizer: str
    append_eos: bool


def import_tables(out: Output, source: TokenSource, append_eos: bool) -> list[Part]:
    """Return the parts with a table each.

    Raises:
        UserError: a file is damaged, holds ids outside the vocabulary, or documents without their end.
    """
    if not source.imported:
        return source.parts
    context = ImportContext(str(out.root), source.facts, str(source.tokenizer[TOKENIZER_JSON]), append_eos)
    units = (
        Unit(f"{number:06d}", part, part.ids.stat().st_size if part.group == 0 and part.ids.is_file() else 0)
        for number, part in enumerate(source.parts)
    )
    done = run_units(import_part, units, context, out, phase="import", label="reading ids")
    return [
        replace(part, table=out.root / result.files[0].path, dtype=result.data["dtype"])
        for part, (_, result) in zip(source.parts, done, strict=True)
    ]


def import_part(unit: Unit, context: ImportContext) -> UnitResult:
    """Check the ids of one part and write the table of its documents."""
    part: Part = unit.payload
    layout = FORMATS[part.format].layout(part.ids, part.group)
    table = document_table(part, layout, context)
    record = write_parquet(Path(context.root), f"{TABLES_FOLDER}/{unit.name}.parquet", table)
    return UnitResult([record], {"documents": table.num_rows, "dtype": layout.dtype.str})


def document_table(part: Part, layout: Layout, context: ImportContext) -> pa.Table:
    """Return the table of a part: `tokens_schema`, and `stored`, the ids that the file has of each document."""
    import pyarrow as pa

    format = FORMATS[part.format]
    buffer = format.buffer(part.ids, part.group)
    missing = _check(part, layout, buffer, context)
    count = len(layout.starts)
    columns = _described(part, layout) if part.sidecar is None else _from_sidecar(part, count)
    stem = PurePosixPath(part.name)
    # The shards of MDS have numbers for names.
    source = part.ids.resolve().parent.name if part.format == "mds" else stem.parent.name or stem.stem.split(".")[0]
    group = f"{part.group}-" if FORMATS[part.format].groups(part.ids) > 1 else ""
    sizes = columns.get("num_bytes")
    return pa.table(
        [
            columns.get("id", [f"{part.name}:{group}{number}" for number in range(count)]),
            columns.get("source", [source] * count),
            columns.get("lang", [None] * count),
            layout.starts,
            layout.lengths + missing,
            _text_bytes(layout, buffer, context) if sizes is None else sizes,
            layout.lengths,
        ],
        schema=tokens_schema().append(pa.field("stored", pa.int64())),
    )


def _described(part: Part, layout: Layout) -> dict[str, Any]:
    return {name: values for name, values in layout.columns.items() if len(values) == len(layout.starts)}


def _from_sidecar(part: Part, count: int) -> dict[str, Any]:
    import pyarrow.parquet as pq

    table = pq.read_table(part.sidecar)
    # A file with several groups has one sidecar; its rows stand in the order of the groups.
    first = FORMATS[part.format].first_document(part.ids, part.group)
    if table.num_rows < first + count:
        raise UserError(f"{part.sidecar} describes {table.num_rows:,} documents of more", "make the folder again")
    rows = table.slice(first, count)
    return {name: rows.column(name).to_pylist() for name in ("id", "source", "lang", "num_bytes")}


def _check(part: Part, layout: Layout, buffer: np.ndarray, context: ImportContext) -> np.ndarray:
    """Check ids and ends; return for each document whether it lacks the end-of-text token (int64)."""
    facts, itemsize = context.facts, layout.dtype.itemsize
    missing = np.zeros(len(layout.starts), np.int64)
    for number, (start, length) in enumerate(zip(layout.starts.tolist(), layout.lengths.tolist(), strict=True)):
        ids = buffer[start : start + length * itemsize].view(layout.dtype)
        if length and (int(ids.max()) >= facts.vocab_size or int(ids.min()) < 0):
            wrong = int(ids.max()) if int(ids.max()) >= facts.vocab_size else int(ids.min())
            raise UserError(
                f"{part.ids}, document {number}: the id {wrong:,} is outside of the vocabulary of "
                f"{facts.vocab_size:,} tokens",
                "give the tokenizer that made the ids",
            )
        missing[number] = not length or int(ids[-1]) != facts.eos_id
    if missing.any() and not context.append_eos:
        raise UserError(
            f"{part.ids}: {int(missing.sum()):,} of {len(missing):,} documents do not end with {facts.eos_token}, "
            f"document {int(np.flatnonzero(missing)[0])} for one",
            "--append-eos adds it; another token that ends documents is named with --eos-token",
        )
    return missing


def _text_bytes(layout: Layout, buffer: np.ndarray, context: ImportContext) -> np.ndarray:
    """Return the bytes of the text that ids stand for, without the end-of-text token."""
    sizes = bytes_of_ids(Path(context.tokenizer), context.facts.vocab_size)
    tokenizer = load(Path(context.tokenizer)) if sizes is None else None
    found = np.zeros(len(layout.starts), np.int64)
    for number, (start, length) in enumerate(zip(layout.starts.tolist(), layout.lengths.tolist(), strict=True)):
        ids = buffer[start : start + length * layout.dtype.itemsize].view(layout.dtype)
        if len(ids) and ids[-1] == context.facts.eos_id:
            ids = ids[:-1]
        if sizes is not None:
            found[number] = int(sizes[ids].sum())
        elif tokenizer is not None:
            found[number] = len(tokenizer.decode(ids.tolist(), skip_special_tokens=False).encode())
    return found

"""Lay token ids out as TFRecord shards with an index for random access, or in files of other tools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmctl import console
from llmctl.artifacts.accounting import Accounting
from llmctl.artifacts.files import FileRecord, atomic_file
from llmctl.artifacts.manifest import Manifest
from llmctl.artifacts.output import Output, open_output, require_space
from llmctl.artifacts.shards import EXPORT_KIND, INDEX_COLUMNS, INDEX_FOLDER, KIND
from llmctl.config.common import RunOptions
from llmctl.errors import RunFailed, UserError
from llmctl.runtime.pool import Unit, UnitResult, run_units
from llmctl.sharding.config import ShardConfig
from llmctl.sharding.formats import FORMATS
from llmctl.sharding.formats.tfrecord import read_offsets
from llmctl.sharding.importing import import_tables
from llmctl.sharding.plan import Documents, PlannedShard, plan_shards, read_documents
from llmctl.sharding.records import ShardContext, ShardWork, write_shard
from llmctl.sharding.source import TokenSource, inputs_damage, open_source

# Below this, opening files costs more than reading them on network disks and object stores.
SMALL_SHARD_BYTES = 16_000_000
# With fewer files than this, readers that hand out whole files leave ranks of one node idle.
FEW_SHARDS = 8


def run(source: Path, output: Path, config: ShardConfig, options: RunOptions) -> Manifest | None:
    """Write documents of token ids as a `shards` artifact, or as an `export` for other tools.

    Args:
        source: `tokens`, `shards`, an `export`, or files that another tool wrote.
        output: the folder to write.
        config: format, size and order.
        options: how to run.

    Returns:
        The manifest; None after a dry run.

    Raises:
        UserError: the input holds texts, or something else than token ids.
        RunFailed: the sums over shards and documents differ.
    """
    opened = open_source(source, config)
    kind = KIND if config.format == "tfrecord" else EXPORT_KIND
    with open_output(output, kind=kind, stage="shard", config=config, inputs=opened.inputs, options=options) as out:
        if out.finished is not None:
            return out.finished
        if options.verify and (damage := inputs_damage(opened.inputs)):
            raise UserError(damage, "make the folder again")
        if options.dry_run and opened.imported:
            _tell_import(opened, output, config)
            return None
        opened.parts = import_tables(out, opened, config.append_eos)
        documents = read_documents(opened.parts, FORMATS[config.format].itemsize(opened.facts.dtype))
        shards = plan_shards(documents, config.shard_size, config.shuffle, config.seed, config.format)
        if options.dry_run:
            _tell_plan(shards, documents, output)
            return None
        require_space(out.root, int(documents.size.sum()))
        return _finish(out, opened, config, shards, documents, _write(out, opened, config, shards, documents))


def _tell_import(source: TokenSource, output: Path, config: ShardConfig) -> None:
    files = sorted({part.ids for part in source.parts})
    size = sum(path.stat().st_size for path in files)
    console.result(
        f"would read {len(files):,} {source.parts[0].format} files ({size / 1e6:,.1f} MB) of {source.inputs[0].root} "
        f"and write their documents as {config.format} to {output}",
        output=str(output),
        files=len(files),
        input_bytes=size,
        format=config.format,
        dry_run=True,
    )


def _tell_plan(shards: Sequence[PlannedShard], documents: Documents, output: Path) -> None:
    size, tokens = int(documents.size.sum()), int(documents.num_tokens.sum())
    console.result(
        f"would write {len(documents.row):,} documents with {tokens:,} tokens of {len(documents.sources):,} sources "
        f"to {len(shards):,} shards ({size / 1e6:,.1f} MB) in {output}",
        output=str(output),
        shards=len(shards),
        documents=len(documents.row),
        tokens=tokens,
        bytes=size,
        dry_run=True,
    )


def _write(
    out: Output, source: TokenSource, config: ShardConfig, shards: Sequence[PlannedShard], documents: Documents
) -> list[UnitResult]:
    def units() -> Iterator[Unit]:
        for number, shard in enumerate(shards):
            chosen = shard.documents
            work = ShardWork(shard.path, documents.part[chosen], documents.row[chosen], shard.tokens)
            yield Unit(f"{number:06d}", work, int(documents.size[chosen].sum()))

    context = ShardContext(str(out.root), tuple(source.parts), source.facts.dtype, source.facts.eos_id, config.format)
    total = int(documents.size.sum())
    done = run_units(write_shard, units(), context, out, phase="shard", label="writing shards", total_bytes=total)
    return [result for _, result in done]


def _finish(
    out: Output,
    source: TokenSource,
    config: ShardConfig,
    shards: Sequence[PlannedShard],
    documents: Documents,
    results: Sequence[UnitResult],
) -> Manifest:
    rows = [
        {
            "path": shard.path,
            "source": shard.source,
            "documents": len(shard.documents),
            "tokens": result.data["tokens"],
            "bytes": result.files[0].bytes,
        }
        for shard, result in zip(shards, results, strict=True)
    ]
    _check_sums(rows, documents, source.manifest, config)
    if config.format == "tfrecord":
        files = [result.files[0] for result in results]
        files += _write_index(out.root, shards, documents, [result.files[1] for result in results])
    else:
        files = [file for result in results for file in result.files]
        hashes = [{**row, "sha256": result.files[0].sha256} for row, result in zip(rows, results, strict=True)]
        files += FORMATS[config.format].finish(out.root, hashes)
    statistics = {
        **_accounting(documents, source).to_mapping(),
        "documents": len(documents.row),
        "tokens": sum(row["tokens"] for row in rows),
        "sources": documents.sources,
        "shards": rows,
        "tokenizer": source.facts.to_mapping(),
    }
    if config.format in ("tfrecord", "mds"):
        _warn_about_sizes(rows)
    _show(rows)
    return out.finish([*files, *source.copy_tokenizer(out.root)], statistics)


def _check_sums(
    rows: Sequence[dict[str, Any]], documents: Documents, manifest: Manifest | None, config: ShardConfig
) -> None:
    """Compare what was written with what the input says, or, if nothing vouches for it, with what was read."""
    expected = {"documents": len(documents.row), "tokens": int(documents.num_tokens.sum())}
    if manifest is not None and not config.append_eos:
        expected = {key: manifest.statistics[key] for key in expected}
    for key, number in expected.items():
        written = sum(row[key] for row in rows)
        if written != number:
            raise RunFailed(
                f"the shards hold {written:,} {key}, and the input says {number:,}",
                "make the tokens again; if that does not help, report this fault",
            )


def _write_index(
    root: Path, shards: Sequence[PlannedShard], documents: Documents, offsets: Sequence[FileRecord]
) -> list[FileRecord]:
    """Write one .npy file a column, shard by shard, so that the index is never in memory as a whole."""
    read = [read_offsets(root, record) for record in offsets]
    columns = {
        "lengths": (documents.num_tokens[shard.documents] for shard in shards),
        "num_bytes": (documents.num_bytes[shard.documents] for shard in shards),
        "source_ids": (documents.source[shard.documents] for shard in shards),
        "record_offsets": (offset[0] for offset in read),
        "token_offsets": (offset[1] for offset in read),
    }
    records = []
    for name, dtype in INDEX_COLUMNS.items():
        relative = f"{INDEX_FOLDER}/{name}.npy"
        header = {"descr": dtype, "fortran_order": False, "shape": (len(documents.row),)}
        with atomic_file(root / relative) as out:
            np.lib.format.write_array_header_1_0(out, header)
            for values in columns[name]:
                out.write(np.ascontiguousarray(values, dtype).view(np.uint8))
        records.append(out.record(relative))
    return records


def _accounting(documents: Documents, source: TokenSource) -> Accounting:
    accounting = Accounting()
    counts = np.bincount(documents.part, minlength=len(source.parts))
    for part, count in zip(source.parts, counts, strict=True):
        accounting.add_file(part.name, kept=int(count))
    # Every document is kept, so sources and languages are those of the input.
    for row in _groups(source):
        kept = {key: value for key, value in row.items() if key not in ("source", "lang")}
        accounting.add_group(row["source"], row["lang"], **(kept | {"in": row["kept"]}))
    accounting.check()
    return accounting


def _groups(source: TokenSource) -> list[dict[str, Any]]:
    """Return documents, bytes and tokens by source and language, as they stand in a manifest."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if source.manifest is not None:
        return list(source.manifest.statistics.get("by_source", ()))
    tables = [pq.read_table(part.table, columns=["source", "lang", "num_tokens", "num_bytes"]) for part in source.parts]
    sums = [("num_tokens", "count"), ("num_tokens", "sum"), ("num_bytes", "sum")]
    grouped = pa.concat_tables(tables).group_by(["source", "lang"]).aggregate(sums)
    return [
        {
            "source": row["source"],
            "lang": row["lang"],
            "kept": row["num_tokens_count"],
            "bytes_in": row["num_bytes_sum"],
            "bytes_kept": row["num_bytes_sum"],
            "tokens": row["num_tokens_sum"],
        }
        for row in grouped.to_pylist()
    ]


def _warn_about_sizes(rows: Sequence[dict[str, Any]]) -> None:
    if not rows:
        return
    average = sum(row["bytes"] for row in rows) / len(rows)
    if len(rows) < FEW_SHARDS:
        console.warning(
            f"only {len(rows)} shards: readers that hand out whole files cannot balance more ranks than that",
            "a smaller --shard-size gives more; `llmctl pretrain` reads by document and does not mind",
        )
    elif average < SMALL_SHARD_BYTES:
        sources = len({row["source"] for row in rows})
        console.warning(
            f"{len(rows):,} shards of {average / 1e6:.2g} MB on average: on network disks and object stores opening so "
            "small files takes longer than reading them",
            "a larger --shard-size gives fewer"
            if len(rows) > sources
            else "each source has one; `llmctl tokenize --set read.source=NAME` makes one source of all",
        )


def _show(rows: Sequence[dict[str, Any]]) -> None:
    sources: dict[str, list[int]] = {}
    for row in rows:
        total = sources.setdefault(row["source"], [0, 0, 0, 0])
        for position, value in enumerate((1, row["documents"], row["tokens"], row["bytes"])):
            total[position] += value
    shown = sorted(sources.items(), key=lambda item: -item[1][2])[:20]
    title = "shards by source" + (f" (the largest 20 of {len(sources)})" if len(sources) > 20 else "")
    console.table(
        title,
        ("source", "shards", "documents", "tokens", "MB"),
        [(source, *counts[:3], round(counts[3] / 1e6, 1)) for source, counts in shown],
    )

"""Lay token ids out as TFRecord shards with an index for random access."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmctl import console
from llmctl.artifacts.accounting import Accounting
from llmctl.artifacts.files import FileRecord, atomic_file
from llmctl.artifacts.inputs import Input, open_input
from llmctl.artifacts.manifest import MANIFEST_NAME, STATE_FOLDER, Manifest, read_manifest
from llmctl.artifacts.output import Output, open_output, require_space
from llmctl.artifacts.shards import INDEX_COLUMNS, INDEX_FOLDER, KIND
from llmctl.artifacts.tokens import KIND as TOKENS_KIND
from llmctl.artifacts.tokens import TokenizerFacts, TokenPart, copy_tokenizer, token_parts
from llmctl.config.common import RunOptions
from llmctl.errors import RunFailed, UserError
from llmctl.runtime.pool import Unit, UnitResult, run_units
from llmctl.sharding.config import ShardConfig
from llmctl.sharding.plan import Documents, PlannedShard, plan_shards, read_documents
from llmctl.sharding.records import ShardContext, ShardWork, read_offsets, write_shard

# Below this, opening files costs more than reading them on network disks and object stores.
SMALL_SHARD_BYTES = 16_000_000
# With fewer files than this, readers that hand out whole files leave ranks of one node idle.
FEW_SHARDS = 8


def run(source: Path, output: Path, config: ShardConfig, options: RunOptions) -> Manifest | None:
    """Write the documents of a `tokens` artifact as a `shards` artifact.

    Returns:
        The manifest; None after a dry run.

    Raises:
        UserError: the input holds texts, or something else than tokens.
        RunFailed: the sums over shards and documents differ.
    """
    tokens = open_tokens(source)
    with open_output(output, kind=KIND, stage="shard", config=config, inputs=[tokens], options=options) as out:
        if out.finished is not None:
            return out.finished
        assert tokens.manifest is not None
        if options.verify:
            damaged = tokens.manifest.damaged_files()
            if damaged:
                raise UserError(f"{source}: {damaged[0]}", "make the tokens again")
        facts = TokenizerFacts.from_manifest(tokens.manifest, source)
        parts = token_parts(tokens)
        documents = read_documents(parts, np.dtype(facts.dtype).itemsize)
        shards = plan_shards(documents, config.shard_size, config.shuffle, config.seed)
        if options.dry_run:
            _tell_plan(shards, documents, output)
            return None
        require_space(out.root, int(documents.size.sum()))
        results = _write(out, shards, documents, parts, facts)
        return _finish(out, tokens.manifest, shards, documents, parts, facts, results)


def open_tokens(source: Path) -> Input:
    """Open a `tokens` artifact.

    Raises:
        UserError: it is something else; texts are sent to `llmctl tokenize`.
    """
    texts = False
    if source.is_file():
        texts = True
    elif source.is_dir() and not (source / STATE_FOLDER).is_dir():
        texts = not (source / MANIFEST_NAME).is_file() or read_manifest(source).kind == "documents"
    if texts:
        raise UserError(f"{source} holds no token ids", f"tokenize it first: llmctl tokenize {source} tokens")
    return open_input(source, kinds=(TOKENS_KIND,), raw=False)


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
    out: Output,
    shards: Sequence[PlannedShard],
    documents: Documents,
    parts: Sequence[TokenPart],
    facts: TokenizerFacts,
) -> list[UnitResult]:
    def units() -> Iterator[Unit]:
        for number, shard in enumerate(shards):
            chosen = shard.documents
            work = ShardWork(shard.path, documents.part[chosen], documents.row[chosen], shard.tokens)
            yield Unit(f"{number:06d}", work, int(documents.size[chosen].sum()))

    context = ShardContext(str(out.root), tuple(parts), facts.dtype, facts.eos_id)
    total = int(documents.size.sum())
    done = run_units(write_shard, units(), context, out, phase="shard", label="writing shards", total_bytes=total)
    return [result for _, result in done]


def _finish(
    out: Output,
    manifest: Manifest,
    shards: Sequence[PlannedShard],
    documents: Documents,
    parts: Sequence[TokenPart],
    facts: TokenizerFacts,
    results: Sequence[UnitResult],
) -> Manifest:
    files = [result.files[0] for result in results]
    rows = [
        {
            "path": shard.path,
            "source": shard.source,
            "documents": len(shard.documents),
            "tokens": result.data["tokens"],
            "bytes": file.bytes,
        }
        for shard, result, file in zip(shards, results, files, strict=True)
    ]
    _check_sums(rows, manifest)
    index = _write_index(out.root, shards, documents, [result.files[1] for result in results])
    statistics = {
        **_accounting(documents, parts, manifest).to_mapping(),
        "documents": len(documents.row),
        "tokens": sum(row["tokens"] for row in rows),
        "sources": documents.sources,
        "shards": rows,
        "tokenizer": facts.to_mapping(),
    }
    _warn_about_sizes(rows)
    _show(rows)
    return out.finish([*files, *index, *copy_tokenizer(manifest, out.root)], statistics)


def _check_sums(rows: Sequence[dict[str, Any]], manifest: Manifest) -> None:
    for key in ("documents", "tokens"):
        written, expected = sum(row[key] for row in rows), manifest.statistics[key]
        if written != expected:
            raise RunFailed(
                f"the shards hold {written:,} {key}, and the input says {expected:,}",
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


def _accounting(documents: Documents, parts: Sequence[TokenPart], manifest: Manifest) -> Accounting:
    accounting = Accounting()
    counts = np.bincount(documents.part, minlength=len(parts))
    for part, count in zip(parts, counts, strict=True):
        accounting.add_file(f"data/{part.table.name}", kept=int(count))
    # Every document is kept, so sources and languages are those of the tokens.
    for row in manifest.statistics.get("by_source", ()):
        kept = {key: value for key, value in row.items() if key not in ("source", "lang")}
        accounting.add_group(row["source"], row["lang"], **(kept | {"in": row["kept"]}))
    accounting.check()
    return accounting


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

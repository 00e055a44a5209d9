"""Read files of token ids in the formats of other tools again, and name what is damaged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np

from llmctl import console
from llmctl.artifacts.files import sha256_of
from llmctl.artifacts.manifest import Manifest
from llmctl.errors import UserError
from llmctl.sharding.faults import MAX_FAULTS_PER_FILE, Fault, Verified, file_fault, foreign_files
from llmctl.sharding.formats import FORMATS, BrokenFile, Format, Layout
from llmctl.sharding.source import SIDECAR_FOLDER, sidecar_of

if TYPE_CHECKING:
    import pyarrow as pa


def verify_export(path: Path, manifest: Manifest) -> tuple[list[Fault], Verified]:
    """Check every document of an export against the checksum of its ids, and every file against the manifest."""
    format = FORMATS[str(manifest.config["format"])]
    faults = foreign_files(path, manifest, ("data", SIDECAR_FOLDER))
    hashes = {record.path: record.sha256 for record in manifest.files}
    checked = set()
    seen = Verified()
    rows = manifest.statistics.get("shards", ())
    with console.progress("verifying", sum(int(row["bytes"]) for row in rows)) as shown:
        for row in rows:
            name, sidecar = str(row["path"]), sidecar_of(str(row["path"]))
            checked |= {name, sidecar}
            if name not in hashes or sidecar not in hashes:
                faults.append(Fault(name, "the manifest does not vouch for this shard"))
                continue
            fault = file_fault(path, sidecar, hashes[sidecar])
            if fault is not None:
                faults.append(fault)
            found = _shard_faults(path, name, format, _read(path / sidecar, fault), manifest, seen)
            if not found and sha256_of(path / name) != hashes[name]:
                found = [Fault(name, "it differs from the checksum in the manifest, though every document is whole")]
            faults += found
            shown.advance(int(row["bytes"]))
    others = (file_fault(path, record.path, record.sha256) for record in manifest.files if record.path not in checked)
    return faults + [fault for fault in others if fault], seen


def _read(path: Path, fault: Fault | None) -> pa.Table | None:
    import pyarrow.parquet as pq

    return None if fault is not None else pq.read_table(path)


def _shard_faults(
    root: Path, name: str, format: Format, documents: pa.Table | None, manifest: Manifest, seen: Verified
) -> list[Fault]:
    path = root / name
    if not path.is_file():
        return [Fault(name, "this shard is missing")]
    seen.files += 1
    seen.bytes += path.stat().st_size
    faults: list[Fault] = []
    first = 0
    try:
        for group in range(max(1, format.groups(path))):
            first = format.first_document(path, group)
            layout, buffer = format.layout(path, group), format.buffer(path, group)
            faults += _document_faults(name, first, layout, buffer, documents, manifest.statistics["tokenizer"])
            seen.records += len(layout.starts)
            seen.tokens += int(layout.lengths.sum())
            first += len(layout.starts)
    except BrokenFile as failure:
        return [*faults, Fault(name, failure.reason, failure.record, failure.offset)]
    if documents is not None and first != documents.num_rows:
        faults.append(Fault(name, f"it holds {first:,} documents instead of {documents.num_rows:,}"))
    return faults[:MAX_FAULTS_PER_FILE]


def _document_faults(
    name: str, first: int, layout: Layout, buffer: np.ndarray, documents: pa.Table | None, facts: dict[str, Any]
) -> list[Fault]:
    """Compare the ids of a group's documents with the table that describes them."""
    if documents is None or documents.num_rows < first + len(layout.starts):
        return []
    rows = documents.slice(first, len(layout.starts))
    lengths, sums = (rows.column(column).to_pylist() for column in ("num_tokens", "crc32c"))
    dtype = np.dtype(facts["dtype"]).newbyteorder("<")
    faults = []
    for number, (start, length) in enumerate(zip(layout.starts.tolist(), layout.lengths.tolist(), strict=True)):
        ids = buffer[start : start + length * layout.dtype.itemsize].view(layout.dtype)
        if length != lengths[number]:
            problem = f"it has {length:,} tokens instead of {lengths[number]:,}"
        elif google_crc32c.value(ids.astype(dtype, copy=False).tobytes()) != sums[number]:
            problem = "the checksum of its ids is wrong"
        else:
            continue
        faults.append(Fault(name, problem, first + number, start))
    return faults


def verify_foreign(path: Path, name: str, files: list[Path]) -> tuple[list[Fault], Verified]:
    """Check the structure of files that other tools wrote; they have no checksums of documents."""
    if not files:
        raise UserError(f"{path} holds no shards", "give the output of `llmctl shard`, or files of another tool")
    format, faults, seen = FORMATS[name], [], Verified(outcome="their structure holds; such files have no checksums")
    with console.progress("verifying", sum(file.stat().st_size for file in files if file.is_file())) as shown:
        for file in files:
            shown_name = file.relative_to(path).as_posix() if path.is_dir() else file.name
            try:
                for group in range(max(1, format.groups(file))):
                    layout = format.layout(file, group)
                    format.buffer(file, group)
                    seen.records += len(layout.starts)
                    seen.tokens += int(layout.lengths.sum())
                seen.files += 1
                seen.bytes += file.stat().st_size
                shown.advance(file.stat().st_size)
            except BrokenFile as failure:
                faults.append(Fault(shown_name, failure.reason, failure.record, failure.offset))
    return faults, seen

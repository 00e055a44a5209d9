"""Read every record of a shards folder again and name what is damaged by file, record and byte offset."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmctl import console
from llmctl.artifacts.documents import DATA_FOLDER
from llmctl.artifacts.files import sha256_of
from llmctl.artifacts.manifest import MANIFEST_NAME, read_manifest
from llmctl.artifacts.shards import EXPORT_KIND, KIND, TokenDocuments
from llmctl.artifacts.tfrecord import (
    FOOTER_BYTES,
    BrokenRecord,
    Span,
    check_header,
    check_record,
    decode_example,
    map_file,
)
from llmctl.errors import RunFailed, UserError
from llmctl.sharding.faults import MAX_FAULTS_PER_FILE, Fault, Verified, file_fault, foreign_files
from llmctl.sharding.source import foreign_files as others_files
from llmctl.sharding.verify_exports import verify_export, verify_foreign

SUFFIX = ".tfrecord"


def verify(path: Path) -> None:
    """Verify a `shards` folder, an `export`, or files that others wrote, and print the outcome.

    Raises:
        UserError: there are no shards there.
        RunFailed: something is damaged; each fault is printed before.
    """
    if (path / MANIFEST_NAME).is_file():
        faults, seen = verify_artifact(path)
    else:
        faults, seen = verify_files(path)
    for fault in faults:
        console.warning(fault.sentence())
    text = f"{path}: {seen.records:,} records in {seen.files:,} files ({seen.bytes / 1e6:,.1f} MB) read, " + (
        f"{len(faults):,} faults" if faults else seen.outcome
    )
    console.result(
        text,
        path=str(path),
        files=seen.files,
        records=seen.records,
        tokens=seen.tokens,
        bytes=seen.bytes,
        faults=[vars(fault) for fault in faults],
    )
    if faults:
        raise RunFailed(f"{path} is damaged: {len(faults):,} faults", "make the shards again, or restore the files")


def verify_files(path: Path) -> tuple[list[Fault], Verified]:
    """Check files without a manifest: framing and checksums of TFRecord, the structure of other formats."""
    if not path.exists():
        raise UserError(f"{path} does not exist", "give a folder of shards")
    files = [path] if path.is_file() and SUFFIX in path.name else sorted(path.rglob(f"*{SUFFIX}*"))
    if not files:
        return verify_foreign(path, *(others_files(path) or ("", [])))
    faults: list[Fault] = []
    seen = Verified()
    with console.progress("verifying", sum(file.stat().st_size for file in files)) as shown:
        for file in files:
            name = file.name if path.is_file() else file.relative_to(path).as_posix()
            faults += _FileCheck(file, name, None, seen).run()
            shown.advance(file.stat().st_size)
    return faults, seen


def verify_artifact(path: Path) -> tuple[list[Fault], Verified]:
    """Check every record of a `shards` artifact against its frame, its manifest and its index."""
    manifest = read_manifest(path, (KIND, EXPORT_KIND))
    if manifest.kind == EXPORT_KIND:
        return verify_export(path, manifest)
    faults = foreign_files(path, manifest)
    index_faults = [
        fault
        for record in manifest.files
        if not record.path.startswith(f"{DATA_FOLDER}/") and (fault := file_fault(path, record.path, record.sha256))
    ]
    faults += index_faults
    documents = None
    if not any(fault.file.startswith("index/") for fault in index_faults):
        documents = TokenDocuments(path.resolve(), manifest, verify=False)
    seen = Verified()
    records = {record.path: record for record in manifest.files}
    firsts = {file.path: file.first for file in documents.files} if documents else {}
    shards = [row["path"] for row in manifest.statistics.get("shards", ())]
    faults += [Fault(name, "the manifest does not vouch for this shard") for name in shards if name not in records]
    with console.progress("verifying", sum(records[name].bytes for name in shards if name in records)) as shown:
        for row in manifest.statistics.get("shards", ()):
            name = row["path"]
            if name not in records:
                continue
            if not (path / name).is_file():
                faults.append(Fault(name, "this shard is missing"))
                continue
            expected = _Expected(documents, firsts.get(name, 0), int(row["documents"])) if documents else None
            found = _FileCheck(path / name, name, expected, seen).run()
            if not found and sha256_of(path / name) != records[name].sha256:
                found = [Fault(name, "it differs from the checksum in the manifest, though every record is whole")]
            faults += found
            shown.advance(records[name].bytes)
    return faults, seen


@dataclass(frozen=True)
class _Expected:
    """What the index says of one file."""

    documents: TokenDocuments
    first: int
    count: int

    def offset(self, record: int) -> int | None:
        """Return where a record starts, if the file should have it."""
        return int(self.documents._record_offsets[self.first + record]) if record < self.count else None


class _FileCheck:
    """The check of one file, record after record; a broken record does not hide those after it."""

    def __init__(self, path: Path, name: str, expected: _Expected | None, seen: Verified) -> None:
        self.path, self.name, self.expected, self.seen = path, name, expected, seen
        self.faults: list[Fault] = []
        self.offset = 0

    def run(self) -> list[Fault]:
        """Return the faults of the file."""
        try:
            buffer = map_file(self.path)
        except OSError as failure:
            return [Fault(self.name, f"cannot be read: {failure.strerror}")]
        self.seen.files += 1
        self.seen.bytes += len(buffer)
        record = 0
        while self.offset < len(buffer) and len(self.faults) < MAX_FAULTS_PER_FILE:
            if self.expected is not None and record >= self.expected.count:
                self._fault(record, f"{len(buffer) - self.offset:,} bytes follow after the last record")
                return self.faults
            if not self._record(buffer, record):
                break
            record += 1
        if self.expected is not None and self.offset >= len(buffer) and record < self.expected.count:
            missing = self.expected.count - record
            self.faults.append(
                Fault(self.name, f"the file ends before this record: {missing:,} records are lost", record, self.offset)
            )
        return self.faults

    def _fault(self, record: int, problem: str) -> None:
        self.faults.append(Fault(self.name, problem, record, self.offset))

    def _record(self, buffer: np.ndarray, record: int) -> bool:
        """Check one record and go to the next; False if there is no way to find it."""
        try:
            span = check_record(buffer, self.offset)
        except BrokenRecord as failure:
            self._fault(record, failure.reason)
            return self._skip(buffer, record)
        self.seen.records += 1
        problem = self._content(buffer, span, record)
        if problem:
            self._fault(record, problem)
        self.offset = span.end + FOOTER_BYTES
        return True

    def _skip(self, buffer: np.ndarray, record: int) -> bool:
        following = self.expected.offset(record + 1) if self.expected is not None else None
        if following is not None:
            self.offset = following
            return True
        try:
            self.offset = check_header(buffer, self.offset).end + FOOTER_BYTES
        except BrokenRecord:
            return False
        return True

    def _content(self, buffer: np.ndarray, span: Span, record: int) -> str | None:
        """Compare a whole record with the index."""
        if self.expected is None:
            return None
        documents, number = self.expected.documents, self.expected.first + record
        try:
            features: dict[str, Any] = decode_example(buffer[span.start : span.end].tobytes())
            ids = np.frombuffer(features["input_ids"], documents.dtype)
            source = features["source"].decode()
        except (ValueError, KeyError, AttributeError, TypeError) as failure:
            return f"not a record of llmctl: {failure}"
        self.seen.tokens += len(ids)
        if span.offset != int(documents._record_offsets[number]):
            return f"the index places it at byte {int(documents._record_offsets[number]):,}"
        if len(ids) != int(documents.lengths[number]) or source != documents.sources[documents.source_ids[number]]:
            return f"it has {len(ids):,} tokens of {source}, and the index says otherwise"
        if span.end - ids.nbytes != int(documents._token_offsets[number]):
            return f"its ids start at byte {span.end - ids.nbytes:,}, and the index says otherwise"
        if len(ids) == 0 or ids[-1] != documents.eos_id or int(ids.max()) >= documents.vocab_size:
            return "its ids do not end with the end-of-text token, or lie outside the vocabulary"
        return None

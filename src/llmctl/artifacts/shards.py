"""Read a `shards` artifact: documents of token ids in memory-mapped TFRecord files.

    documents = open_shards(Path("shards"))
    documents.tokens(0)            # a view of the file, no copy
    documents.lengths.sum()        # tokens of the whole artifact

Layout: ``data/<source>-00000-of-000NN.tfrecord`` holds one Example a document with the raw little-endian ids in
`input_ids`; ``index/*.npy`` tells for each document where its record and its ids start; ``tokenizer/`` is the
tokenizer that made the ids.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmctl.artifacts.inputs import open_input
from llmctl.artifacts.tfrecord import BrokenRecord, check_record, decode_example, map_file
from llmctl.errors import RunFailed, UserError

if TYPE_CHECKING:
    from llmctl.artifacts.manifest import Manifest

KIND = "shards"
# What `llmctl shard --format` writes for other tools.
EXPORT_KIND = "export"
INDEX_FOLDER = "index"
TOKENIZER_FOLDER = "tokenizer"
# Columns of the index, one .npy file each: {name: dtype}.
INDEX_COLUMNS = {
    "lengths": "<i8",  # tokens, with the final EOS
    "num_bytes": "<i8",  # UTF-8 bytes of the text
    "source_ids": "<i4",
    "record_offsets": "<i8",  # of the record's frame in its file
    "token_offsets": "<i8",  # of the ids in the same file
}
# A map holds a file descriptor, and systems commonly allow 1,024.
MAX_OPEN_FILES = 256


@dataclass(frozen=True)
class ShardFile:
    """One file of the artifact.

    Attributes:
        path: relative to the artifact.
        source: the source of all its documents.
        first: number of its first document; `documents`: how many it holds.
    """

    path: str
    source: str
    first: int
    documents: int
    tokens: int
    bytes: int


@dataclass(frozen=True)
class Locations:
    """Where records lie in memory, for compiled readers. Addresses are good for as long as `maps` is held.

    Attributes:
        tokens, records: int64 [documents], address of the first id and of the record's frame.
        ends: int64 [documents], address of the end of the file.
        maps: the mapped files.
    """

    tokens: np.ndarray
    records: np.ndarray
    ends: np.ndarray
    maps: list[np.ndarray]


class TokenDocuments:
    """The documents of a `shards` artifact, in its order. Use `open_shards`.

    Attributes:
        sources: names of the sources.
        lengths: int64 [documents], tokens including the final EOS.
        num_bytes: int64 [documents], UTF-8 bytes of the text (for bits per byte).
        source_ids: int32 [documents], index into `sources`.
        tokenizer: folder that `AutoTokenizer.from_pretrained` loads.
        vocab_size: one more than the largest id, added tokens included.
        fingerprint: SHA-256 of the manifest.
    """

    def __init__(self, folder: Path, manifest: Manifest, verify: bool) -> None:
        self.folder, self.verify, self.manifest = folder, verify, manifest
        self.fingerprint = manifest.fingerprint
        self.tokenizer = folder / TOKENIZER_FOLDER
        statistics = manifest.statistics
        try:
            described = statistics["tokenizer"]
            self.vocab_size = int(described["vocab_size"])
            self.eos_id = int(described["eos_id"])
            self.pad_id = None if described["pad_id"] is None else int(described["pad_id"])
            self.dtype = np.dtype(described["dtype"]).newbyteorder("<")
            self.sources = [str(source) for source in statistics["sources"]]
            self.files = _shard_files(statistics["shards"])
        except (KeyError, TypeError, ValueError):
            raise UserError(f"the manifest of {folder} lacks what shards must have", "make the shards again") from None
        columns = {name: _load_column(folder, name, dtype) for name, dtype in INDEX_COLUMNS.items()}
        self.lengths, self.num_bytes = columns["lengths"], columns["num_bytes"]
        self.source_ids = columns["source_ids"]
        self._record_offsets, self._token_offsets = columns["record_offsets"], columns["token_offsets"]
        self._starts = np.array([file.first for file in self.files] or [0], np.int64)
        self._check_index()
        self._verified = np.zeros(len(self.lengths) if verify else 0, bool)
        self._maps: OrderedDict[int, np.ndarray] = OrderedDict()

    def _check_index(self) -> None:
        documents = sum(file.documents for file in self.files)
        counts = {len(column) for column in (self.lengths, self.num_bytes, self.source_ids, self._token_offsets)}
        if counts | {len(self._record_offsets)} != {documents}:
            raise UserError(f"the index of {self.folder} does not fit its shards", "make the shards again")

    def __len__(self) -> int:
        return len(self.lengths)

    def __reduce__(self) -> tuple[Any, ...]:
        # Worker processes map the files themselves.
        return open_shards, (self.folder, self.verify)

    @property
    def num_tokens(self) -> int:
        """Return the tokens of all documents."""
        return sum(file.tokens for file in self.files)

    def tokens(self, document: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return the ids of a document, or a piece of them, as a read-only view of the file.

        Args:
            document: number of the document, from 0.
            start, stop: range of tokens within the document; `stop` of None means to its end (the EOS).

        Raises:
            RunFailed: the file is cut, or a checksum of the record is wrong (told at the record's first use).
        """
        if not 0 <= document < len(self.lengths):
            raise IndexError(f"document {document} of {len(self.lengths)}")
        buffer = self._record(document)
        length = int(self.lengths[document])
        start, stop, _ = slice(start, stop).indices(length)
        begin = int(self._token_offsets[document]) + start * self.dtype.itemsize
        return buffer[begin : begin + max(stop - start, 0) * self.dtype.itemsize].view(self.dtype)

    def locations(self, documents: np.ndarray) -> Locations:
        """Return where the records of documents lie in memory; nothing is checked."""
        numbers = np.searchsorted(self._starts, documents, side="right") - 1
        used, which = np.unique(numbers, return_inverse=True)
        maps = [self._map(int(number)) for number in used]
        bases = np.array([buffer.__array_interface__["data"][0] for buffer in maps], np.int64)
        sizes = np.array([len(buffer) for buffer in maps], np.int64)
        return Locations(
            bases[which] + self._token_offsets[documents],
            bases[which] + self._record_offsets[documents],
            (bases + sizes)[which],
            maps,
        )

    def unverified(self, documents: np.ndarray) -> np.ndarray:
        """Return those of the documents whose checksums are to be checked before they are used."""
        return documents[~self._verified[documents]] if self.verify else documents[:0]

    def mark_verified(self, documents: np.ndarray) -> None:
        """Take note that the checksums of documents hold."""
        self._verified[documents] = True

    def features(self, document: int) -> dict[str, Any]:
        """Return all features of a document's record: `id`, `source`, `lang`, `num_bytes`, `input_ids`, …"""
        buffer = self._record(document)
        span = check_record(buffer, int(self._record_offsets[document]))
        return decode_example(buffer[span.start : span.end].tobytes())

    def locate(self, document: int) -> tuple[ShardFile, int]:
        """Return the file of a document and the number of its record in it."""
        file = self.files[int(np.searchsorted(self._starts, document, side="right")) - 1]
        return file, document - file.first

    def _record(self, document: int) -> np.ndarray:
        number = int(np.searchsorted(self._starts, document, side="right")) - 1
        buffer = self._map(number)
        if self.verify and not self._verified[document]:
            self._verify(buffer, document)
            self._verified[document] = True
        return buffer

    def _map(self, number: int) -> np.ndarray:
        if number in self._maps:
            self._maps.move_to_end(number)
            return self._maps[number]
        path = self.folder / self.files[number].path
        try:
            buffer = map_file(path)
        except OSError as failure:
            raise RunFailed(f"cannot read {path}: {failure.strerror}", "make the shards again") from None
        if len(buffer) != self.files[number].bytes:
            raise RunFailed(
                f"{path} has {len(buffer):,} bytes instead of {self.files[number].bytes:,}", "make the shards again"
            )
        self._maps[number] = buffer
        while len(self._maps) > MAX_OPEN_FILES:
            self._maps.popitem(last=False)  # views that are still in use keep their map alive
        return buffer

    def _verify(self, buffer: np.ndarray, document: int) -> None:
        offset, start = int(self._record_offsets[document]), int(self._token_offsets[document])
        end = start + int(self.lengths[document]) * self.dtype.itemsize
        try:
            span = check_record(buffer, offset)
            if not span.start <= start <= end <= span.end:
                raise BrokenRecord(offset, "the index places its tokens outside of it")
        except BrokenRecord as failure:
            file, record = self.locate(document)
            raise RunFailed(
                f"{self.folder / file.path}, record {record} at byte {failure.offset:,}: {failure.reason}",
                f"`llmctl shard --verify {self.folder}` lists all damage; make the shards again",
            ) from None


def _shard_files(rows: list[dict[str, Any]]) -> list[ShardFile]:
    files, first = [], 0
    for row in rows:
        documents = int(row["documents"])
        files.append(
            ShardFile(str(row["path"]), str(row["source"]), first, documents, int(row["tokens"]), int(row["bytes"]))
        )
        first += documents
    return files


def _load_column(folder: Path, name: str, dtype: str) -> np.ndarray:
    path = folder / INDEX_FOLDER / f"{name}.npy"
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as failure:
        raise UserError(f"cannot read {path}: {failure}", "make the shards again") from None
    if loaded.dtype != np.dtype(dtype) or loaded.ndim != 1:
        raise UserError(f"{path} holds {loaded.dtype} of {loaded.ndim} dimensions", "make the shards again")
    return loaded


def open_shards(folder: Path | str, verify: bool = True) -> TokenDocuments:
    """Open a `shards` artifact for random access.

    Args:
        folder: the output of `llmctl shard`.
        verify: check the checksums of each record at its first use in this process (about 6 GB/s).

    Raises:
        UserError: not a finished `shards` artifact, or one of its files is missing or has another size.
    """
    source = open_input(folder, role="source", kinds=(KIND,), raw=False)
    assert source.manifest is not None
    known = {file.path for file in source.files}
    documents = TokenDocuments(source.root, source.manifest, verify)
    foreign = [file.path for file in documents.files if file.path not in known]
    if foreign:
        raise UserError(f"the manifest of {folder} does not vouch for {foreign[0]}", "make the shards again")
    return documents

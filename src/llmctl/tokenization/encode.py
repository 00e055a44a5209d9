"""Encode blocks of documents: the unit of work of `llmctl tokenize`."""

from __future__ import annotations

import base64
import multiprocessing
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmctl.artifacts.accounting import Accounting
from llmctl.artifacts.documents import DATA_FOLDER, write_invalid, write_parquet
from llmctl.artifacts.files import FileRecord, atomic_file
from llmctl.artifacts.raw.blocks import DocumentBatch, ReadOptions
from llmctl.artifacts.raw.read import read_block
from llmctl.artifacts.tokens import TABLE_SUFFIX, TOKENS_SUFFIX, TokenizerFacts, tokens_schema
from llmctl.errors import RunFailed
from llmctl.runtime.pool import Unit, UnitResult
from llmctl.text.buffers import text_buffers
from llmctl.tokenization.splits import known_split, pieces

if TYPE_CHECKING:
    import pyarrow as pa
    from tokenizers import Tokenizer

# Text that is encoded at once: enough to keep threads busy, little enough to bound memory.
CHUNK_BYTES = 4_000_000
# Texts up to this size are decoded again, the first of each chunk.
ROUND_TRIP_BYTES = 200_000


@dataclass(frozen=True)
class EncodeContext:
    """What every block needs.

    Attributes:
        root: the output folder.
        tokenizer: the ``tokenizer.json`` to load.
        lossless: the tokenizer is a byte-level one of ours, so a failed round trip is a fault.
    """

    root: str
    tokenizer: str
    facts: TokenizerFacts
    read: ReadOptions
    allow_special: bool
    lossless: bool


@contextmanager
def tokenizer_threads(count: int) -> Iterator[None]:
    """Let the tokenizers library use `count` threads in this process; worker processes always use one each."""
    names = ("TOKENIZERS_PARALLELISM", "RAYON_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if count > 1 else "false"
    os.environ["RAYON_NUM_THREADS"] = str(count)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class Encoder:
    """A loaded tokenizer that turns texts into ids, each text ended by EOS."""

    def __init__(self, tokenizer: Tokenizer, facts: TokenizerFacts, allow_special: bool = False) -> None:
        self.tokenizer, self.facts, self.allow_special = tokenizer, facts, allow_special
        self.dtype = np.dtype(facts.dtype).newbyteorder("<")
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = not allow_special
        self._cut = known_split(tokenizer.to_str())

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all texts one after the other, and the number of ids of each, EOS included (int64)."""
        parts = [list(pieces(text)) if self._cut else [text] for text in texts]
        encoded = iter(
            self.tokenizer.encode_batch_fast([piece for part in parts for piece in part], add_special_tokens=False)
        )
        eos = np.array([self.facts.eos_id], self.dtype)
        arrays: list[np.ndarray] = []
        lengths = np.zeros(len(texts), np.int64)
        for number, part in enumerate(parts):
            for _ in part:
                ids = np.array(next(encoded).ids, self.dtype)
                arrays.append(ids)
                lengths[number] += len(ids)
            arrays.append(eos)
            lengths[number] += 1
        return (np.concatenate(arrays) if arrays else np.zeros(0, self.dtype)), lengths

    def gives_back(self, text: str, ids: np.ndarray) -> bool:
        """Tell whether the ids (without EOS) decode to the text, as the tokenizer normalises it."""
        normalizer = self.tokenizer.normalizer
        expected = text if normalizer is None else normalizer.normalize_str(text)
        return bool(self.tokenizer.decode(ids.tolist(), skip_special_tokens=False) == expected)


@lru_cache(maxsize=2)
def _encoder(path: str, facts: TokenizerFacts, allow_special: bool) -> Encoder:
    from tokenizers import Tokenizer

    return Encoder(Tokenizer.from_file(path), facts, allow_special)


@dataclass
class _Counts:
    """What the chunks of one block add up to."""

    lengths: list[np.ndarray] = field(default_factory=list)
    words: list[np.ndarray] = field(default_factory=list)
    vocabulary: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    checked: int = 0
    equal: int = 0


def encode_block(unit: Unit, context: EncodeContext) -> UnitResult:
    """Encode one block and write its ids, its table and its invalid records.

    Raises:
        RunFailed: a document would not end with the only EOS it has, or does not decode to its text.
    """
    if multiprocessing.parent_process() is not None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    root, part = Path(context.root), f"part-{unit.name}"
    batch = read_block(unit.payload, context.read)
    encoder = _encoder(context.tokenizer, context.facts, context.allow_special)
    counts = _Counts(vocabulary=np.zeros(context.facts.vocab_size, np.int64))
    data, offsets = text_buffers(batch.table.column("text"))
    relative = f"{DATA_FOLDER}/{part}{TOKENS_SUFFIX}"
    with atomic_file(root / relative) as out:
        for first, last in _chunks(offsets):
            texts = [data[offsets[row] : offsets[row + 1]].tobytes().decode() for row in range(first, last)]
            ids, lengths = encoder.encode(texts)
            _check(unit, batch, first, ids, lengths, context)
            _check_round_trip(unit, batch, first, texts[0], ids[: lengths[0] - 1], encoder, context.lossless, counts)
            counts.vocabulary += np.bincount(ids, minlength=len(counts.vocabulary))
            counts.lengths.append(lengths)
            counts.words.append(np.fromiter((len(text.split()) for text in texts), np.int64, len(texts)))
            out.write(ids.view(np.uint8))
    table = _table(batch, counts, np.diff(offsets))
    files = [out.record(relative), write_parquet(root, f"{DATA_FOLDER}/{part}{TABLE_SUFFIX}", table)]
    files += write_invalid(root, part, batch.invalid)
    return _result(files, batch, table, counts)


def _chunks(offsets: np.ndarray) -> Iterator[tuple[int, int]]:
    first, rows = 0, len(offsets) - 1
    while first < rows:
        last = int(np.searchsorted(offsets, offsets[first] + CHUNK_BYTES, side="right")) - 1
        last = min(max(last, first + 1), rows)
        yield first, last
        first = last


def _check(
    unit: Unit, batch: DocumentBatch, first: int, ids: np.ndarray, lengths: np.ndarray, context: EncodeContext
) -> None:
    """Check that every document ends with EOS and, where special tokens are plain text, holds no other EOS."""
    ends = np.cumsum(lengths) - 1
    eos = ids == context.facts.eos_id
    found = int(np.count_nonzero(eos))
    if not eos[ends].all() or (found != len(lengths) and not context.allow_special):
        inside = eos.copy()
        inside[ends] = False
        row = first + int(np.searchsorted(ends, np.flatnonzero(inside)[0])) if inside.any() else first
        raise RunFailed(
            f"document {batch.table.column('id')[row].as_py()!r} in {batch.files[int(batch.file_index[row])]} gives "
            f"{context.facts.eos_token} inside its text ({found} for {len(lengths)} documents in block {unit.name})",
            "the tokenizer writes that token for plain text; name another with --eos-token, or give --allow-special",
        )


def _check_round_trip(
    unit: Unit,
    batch: DocumentBatch,
    row: int,
    text: str,
    ids: np.ndarray,
    encoder: Encoder,
    lossless: bool,
    counts: _Counts,
) -> None:
    if len(text) > ROUND_TRIP_BYTES:
        return
    counts.checked += 1
    if encoder.gives_back(text, ids):
        counts.equal += 1
    elif lossless:
        raise RunFailed(
            f"document {batch.table.column('id')[row].as_py()!r} in block {unit.name} does not decode to its text",
            "please report this fault with the document",
        )


def _table(batch: DocumentBatch, counts: _Counts, num_bytes: np.ndarray) -> pa.Table:
    import pyarrow as pa

    lengths = np.concatenate(counts.lengths) if counts.lengths else np.zeros(0, np.int64)
    columns = [
        batch.table.column("id"),
        batch.table.column("source"),
        batch.table.column("lang"),
        pa.array(np.cumsum(lengths) - lengths),
        pa.array(lengths),
        pa.array(num_bytes.astype(np.int64)),
    ]
    return pa.table(columns, schema=tokens_schema())


def _result(files: list[FileRecord], batch: DocumentBatch, table: pa.Table, counts: _Counts) -> UnitResult:
    import pyarrow as pa

    accounting = Accounting()
    kept = np.bincount(batch.file_index, minlength=len(batch.files))
    for number, path in enumerate(batch.files):
        accounting.add_file(path, kept=int(kept[number]))
    accounting.skipped.update(batch.skipped)
    for record in batch.invalid:
        accounting.add_file(record.file, invalid=1)
        accounting.errors[record.error] += 1
    words = np.concatenate(counts.words) if counts.words else np.zeros(0, np.int64)
    sums = (
        table.append_column("words", pa.array(words))
        .group_by(["source", "lang"])
        .aggregate([("id", "count"), ("num_tokens", "sum"), ("num_bytes", "sum"), ("words", "sum")])
    )
    for row in sums.to_pylist():
        size = row["num_bytes_sum"]
        group: dict[str, int] = {"in": row["id_count"], "kept": row["id_count"], "bytes_in": size, "bytes_kept": size}
        group |= {"tokens": row["num_tokens_sum"], "words": row["words_sum"]}
        accounting.add_group(row["source"], row["lang"], **group)
    return UnitResult(
        files,
        {
            "accounting": accounting.to_mapping(),
            "vocabulary": pack_counts(counts.vocabulary),
            "checked": counts.checked,
            "equal": counts.equal,
        },
    )


def pack_counts(counts: np.ndarray) -> str:
    """Write counts as text for a unit's record."""
    return base64.b64encode(zlib.compress(counts.astype("<i8").tobytes(), 1)).decode()


def unpack_counts(text: str) -> np.ndarray:
    """Read counts back."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i8")


def merged_accounting(data: dict[str, Any]) -> Accounting:
    """Return the accounting of a finished unit."""
    return Accounting.from_mapping(data["accounting"])

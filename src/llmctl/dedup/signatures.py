"""First pass: read a block and write what duplicates are found by (index file, band hashes, invalid records)."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from llmctl.artifacts.documents import write_invalid
from llmctl.artifacts.files import FileRecord, atomic_file, explain_os_error, temporary_name
from llmctl.artifacts.raw.blocks import Block, DocumentBatch
from llmctl.dedup.bands import Bands
from llmctl.dedup.config import DedupConfig
from llmctl.dedup.index import index_schema, write_index
from llmctl.runtime.pool import Unit, UnitResult
from llmctl.text.buffers import Scratch, text_buffers
from llmctl.text.minhash import SCHEME, band_hashes, minhash_signatures, permutations
from llmctl.text.paragraphs import Paragraphs, hash_paragraphs, may_need_nfc
from llmctl.text.shingles import EMPTY, WORDS, ShingleSets, shingle_sets

if TYPE_CHECKING:
    import pyarrow as pa

# Text that the kernels work on at a time; small, so that hashes are still in the cache when they are sorted.
SLICE_BYTES = 8_000_000
BANDS_FOLDER = "_state/bands"
STAGED_FOLDER = "_state/documents"


@dataclass(frozen=True)
class SignContext:
    """What every block is signed with.

    Attributes:
        root: the output folder.
        index_folder: where index files go, relative to it.
    """

    root: str
    index_folder: str
    config: DedupConfig
    bands: Bands


def describe_index(config: DedupConfig, bands: Bands) -> dict[str, str]:
    """Return how shingles and signatures are made; only indexes with equal descriptions can be compared."""
    return {
        "scheme": SCHEME,
        "seed": str(config.seed),
        "num_perm": str(bands.num_perm),
        "ngram_size": str(config.ngram_size),
        "char_ngram_size": str(config.char_ngram_size),
        "char_share": repr(config.char_share),
    }


def save_array(root: Path, relative: str, array: np.ndarray) -> FileRecord:
    """Write a NumPy array of the payload atomically (no pickle: object arrays are refused)."""
    with atomic_file(root / relative) as out:
        np.lib.format.write_array(out, array, allow_pickle=False)
    return out.record(relative)


def save_state(root: Path, relative: str, array: np.ndarray) -> FileRecord:
    """Write a NumPy array of the run's state: whole after a kill, but neither hashed nor forced onto the disk."""
    with state_file(root, relative) as raw:
        np.lib.format.write_array(raw, array, allow_pickle=False)
    return FileRecord(relative, (root / relative).stat().st_size, "")


@contextmanager
def state_file(root: Path, relative: str) -> Iterator[BinaryIO]:
    """Open a file of the run's state under a temporary name and rename it when the block ends without an error."""
    path = root / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        with open(temporary, "wb") as raw:
            yield raw
        os.replace(temporary, path)
    except OSError as failure:
        temporary.unlink(missing_ok=True)
        raise explain_os_error(failure, path) from failure


def stage_documents(root: Path, name: str, batch: DocumentBatch) -> FileRecord:
    """Write the documents of a block uncompressed, so that the last pass need not parse the input again.

    The file is state of the run and no payload.
    """
    import pyarrow as pa

    table = batch.table.append_column("file", pa.array(batch.file_index.astype(np.int32)))
    relative = f"{STAGED_FOLDER}/{name}.arrow"
    with state_file(root, relative) as raw, pa.ipc.new_file(raw, table.schema) as writer:
        writer.write_table(table)
    return FileRecord(relative, (root / relative).stat().st_size, "")


def sign_block(unit: Unit, context: SignContext) -> UnitResult:
    """Read one block; write its documents, its index, its band hashes and its invalid records."""
    from llmctl.artifacts.raw.read import read_block

    block: Block = unit.payload
    batch = read_block(block, context.config.read)
    root = Path(context.root)
    parts: list[np.ndarray] = []
    batch_rows: list[int] = []
    scratches = itertools.cycle([Scratch(), Scratch()])  # one is written to disk while the other is filled

    def record_batches() -> Iterator[pa.RecordBatch]:
        first_rows = _rows_in_files(batch)
        for begin, end in _slices(batch.table):
            record_batch, hashes = _sign_slice(batch, first_rows, begin, end, context, next(scratches))
            parts.append(hashes)
            batch_rows.append(end - begin)
            yield record_batch

    schema = index_schema(context.bands.num_perm, describe_index(context.config, context.bands))
    with ThreadPoolExecutor(1) as writer:
        staged = writer.submit(stage_documents, root, unit.name, batch)  # the disk works while the kernels do
        index = write_index(root, f"{context.index_folder}/{unit.name}.arrow", schema, record_batches())
    files = [staged.result(), index]
    hashes = np.concatenate(parts, axis=1) if parts else np.zeros((context.bands.num_bands, 0), np.uint64)
    files.append(save_state(root, f"{BANDS_FOLDER}/{unit.name}.npy", hashes))
    files += write_invalid(root, unit.name, batch.invalid)
    return UnitResult(files, _unit_data(batch, batch_rows))


def warm_up(context: SignContext) -> None:
    """Compile the kernels of the first pass before worker processes start, each of which would do it again."""
    import pyarrow as pa

    texts = pa.chunked_array([pa.array(["a few words, e\u0301", "\u6f22\u5b57"], pa.large_string())])
    ids = pa.chunked_array([pa.array(["a", "b"], pa.large_string())])
    table = pa.table({"id": ids, "text": texts, "source": ids, "metadata": pa.nulls(2, pa.large_string())})
    batch = DocumentBatch(table, ["a"], np.zeros(2, np.int32))
    _sign_slice(batch, _rows_in_files(batch), 0, 2, context, Scratch())


def _unit_data(batch: DocumentBatch, batch_rows: list[int]) -> dict[str, Any]:
    counts = np.bincount(batch.file_index, minlength=len(batch.files)) if len(batch.files) else np.zeros(0, int)
    return {
        "batch_rows": batch_rows,
        "content_hash": batch.content_hash,
        "files": [[path, int(count)] for path, count in zip(batch.files, counts, strict=True)],
        "invalid": [[record.file, record.error] for record in batch.invalid],
        "skipped": dict(sorted(batch.skipped.items())),
    }


def _rows_in_files(batch: DocumentBatch) -> np.ndarray:
    """Return the position of each row among the block's rows of the same file, int64."""
    positions = np.zeros(len(batch.file_index), np.int64)
    for number in range(len(batch.files)):
        rows = np.flatnonzero(batch.file_index == number)
        positions[rows] = np.arange(len(rows))
    return positions


def _slices(table: pa.Table) -> Iterator[tuple[int, int]]:
    _, offsets = text_buffers(table.column("text"))
    begin = 0
    while begin < table.num_rows:
        end = int(np.searchsorted(offsets, offsets[begin] + SLICE_BYTES, side="right")) - 1
        end = min(max(end, begin + 1), table.num_rows)
        yield begin, end
        begin = end


def _sign_slice(
    batch: DocumentBatch, rows_in_files: np.ndarray, begin: int, end: int, context: SignContext, scratch: Scratch
) -> tuple[pa.RecordBatch, np.ndarray]:
    import pyarrow as pa

    config, bands = context.config, context.bands
    table = batch.table.slice(begin, end - begin)
    data, offsets = text_buffers(table.column("text"))
    data, offsets = _normalised(table.column("text"), data, offsets)
    paragraphs = hash_paragraphs(data, offsets, scratch)
    if bands.num_bands:
        sets = shingle_sets(
            data,
            offsets,
            scratch=scratch,
            ngram_size=config.ngram_size,
            char_ngram_size=config.char_ngram_size,
            char_share=config.char_share,
        )
        signatures = minhash_signatures(sets.values, sets.offsets, *permutations(bands.num_perm, config.seed))
    else:
        sets = _no_shingles(paragraphs)
        signatures = np.zeros((len(sets.kinds), bands.num_perm), np.uint32)
    # Length without the white space that carries nothing, so that padding does not make a text the better one.
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(paragraphs.weights, dtype=np.int64)])
    lengths = np.diff(sums[paragraphs.offsets])
    columns = [
        _one_chunk(table.column("id")),
        pa.array(batch.file_index[begin:end].astype(np.int32)),
        pa.array(rows_in_files[begin:end]),
        pa.array(lengths),
        pa.array(_qualities(table, config.quality_field)),
        pa.array(_priorities(table.column("source"), config.source_priority)),
        pa.array(sets.kinds),
        pa.array(np.ascontiguousarray(paragraphs.text_hashes[:, 0])),
        pa.array(np.ascontiguousarray(paragraphs.text_hashes[:, 1])),
        pa.FixedSizeListArray.from_arrays(pa.array(signatures.reshape(-1)), bands.num_perm),
        pa.LargeListArray.from_arrays(pa.array(sets.offsets), pa.array(sets.values)),
        pa.LargeListArray.from_arrays(pa.array(paragraphs.offsets), pa.array(paragraphs.hashes)),
        pa.LargeListArray.from_arrays(pa.array(paragraphs.offsets), pa.array(paragraphs.weights)),
    ]
    schema = index_schema(bands.num_perm, describe_index(config, bands))
    record_batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    return record_batch, band_hashes(signatures, sets.kinds, bands.num_bands, bands.rows_per_band)


def _no_shingles(paragraphs: Paragraphs) -> ShingleSets:
    """Return empty sets, where no method asks for shingles; only empty documents are told from others."""
    rows = len(paragraphs.offsets) - 1
    kinds = np.where(np.diff(paragraphs.offsets) > 0, WORDS, EMPTY).astype(np.uint8)
    return ShingleSets(np.zeros(0, np.uint64), np.zeros(rows + 1, np.int64), kinds)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    import pyarrow as pa

    joined = column.combine_chunks()
    return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined


def _normalised(column: pa.ChunkedArray, data: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the buffers with every text in NFC; nearly all texts are already."""
    import pyarrow as pa
    import pyarrow.compute as pc

    suspects = may_need_nfc(data, offsets)
    if not suspects.any():
        return data, offsets
    mask = pa.array(suspects)
    texts = _one_chunk(column)
    composed = pc.utf8_normalize(texts.filter(mask), form="NFC")
    return text_buffers(pc.replace_with_mask(texts, mask, composed))


def _qualities(table: pa.Table, name: str | None) -> np.ndarray:
    """Return each record's quality, -inf where it has none; float64."""
    values = np.full(table.num_rows, -math.inf)
    if name is None:
        return values
    import orjson

    for row, text in enumerate(table.column("metadata").to_pylist()):
        value = orjson.loads(text).get(name) if text else None
        if isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value):
            values[row] = value
    return values


def _priorities(sources: pa.ChunkedArray, priority: list[str]) -> np.ndarray:
    """Return the place of each source in the list of priorities (later and unnamed: larger), int32."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not priority:
        return np.zeros(len(sources), np.int32)
    places = pc.index_in(sources, pa.array(priority, sources.type))
    return pc.fill_null(places, len(priority)).to_numpy().astype(np.int32)

"""Shards of mosaicml-streaming (MDS): one folder a source with ``index.json`` and ``shard.00000.mds``, ….

    shard: u32 samples | u32 byte where each sample starts, and the end | configuration as JSON | samples
    sample: u32 size of each column that has no fixed size | the columns, sorted by name

(streaming/base/format/mds/writer.py.) `tokens` is an array of one dimension, ``ndarray:uint16`` or ``ndarray:uint32``:
one byte with the number of dimensions and the width of the length, the length, the ids.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from llmctl.artifacts.files import FileRecord, atomic_file, write_file
from llmctl.artifacts.tfrecord import map_file
from llmctl.sharding.formats.base import BrokenFile, Document, Format, Layout, files_below

INDEX = "index.json"
TOKENS = "tokens"
# Names under which ids are found in the files of others, the first first.
COLUMNS = (TOKENS, "input_ids", "token_ids")
_TEXTS = ("id", "lang", "source")
_CODES = {16: "<u2", 17: "<i2", 32: "<u4", 33: "<i4", 64: "<u8", 65: "<i8", 8: "u1", 9: "i1"}
_NAMES = {"uint8": 8, "int8": 9, "uint16": 16, "int16": 17, "uint32": 32, "int32": 33, "uint64": 64, "int64": 65}
_LARGEST_SHARD = 2**32 - 1


def _config(dtype: str) -> dict[str, Any]:
    return {
        "column_encodings": ["str", "str", "int64", "str", f"ndarray:{dtype}"],
        "column_names": ["id", "lang", "num_bytes", "source", TOKENS],
        "column_sizes": [None, None, 8, None, None],
        "compression": None,
        "format": "mds",
        "hashes": ["sha256"],
        "size_limit": None,
        "version": 2,
    }


class Mds(Format):
    """Folders of ``.mds`` shards."""

    name = "mds"
    suffix = ".mds"
    description = "MDS shards of mosaicml-streaming, one folder a source, with `tokens` as an array"

    def path(self, slug: str, position: int, count: int) -> str:
        """Return ``data/<source>/shard.00000.mds``: each source is a stream that a mixture can name."""
        return f"data/{slug}/shard.{position:05d}.mds"

    def write(self, root: Path, relative: str, documents: Iterable[Document], count: int) -> list[FileRecord]:
        """Write one shard; its samples are in memory until their sizes are known."""
        samples, dtype = [], "uint16"
        for features, ids in documents:
            dtype = ids.dtype.newbyteorder("=").name
            samples.append(_sample(features, ids))
        config = json.dumps(_config(dtype), sort_keys=True).encode()
        ends = np.cumsum([4 + 4 * (count + 1) + len(config), *map(len, samples)], dtype=np.int64)
        if ends[-1] > _LARGEST_SHARD:
            raise BrokenFile(root / relative, "a shard of MDS holds at most 4 GiB; give a smaller --shard-size")
        with atomic_file(root / relative) as out:
            out.write(struct.pack("<I", count) + ends.astype("<u4").tobytes() + config)
            for sample in samples:
                out.write(sample)
        return [out.record(relative)]

    def finish(self, root: Path, shards: Sequence[dict[str, Any]]) -> list[FileRecord]:
        """Write the index of each source."""
        folders: dict[str, list[dict[str, Any]]] = {}
        for shard in shards:
            path = Path(shard["path"])
            described = {
                "raw_data": {
                    "basename": path.name,
                    "bytes": shard["bytes"],
                    "hashes": {"sha256": shard["sha256"]},
                },
                "samples": shard["documents"],
                "zip_data": None,
            }
            config, _ = _head(root / path, map_file(root / path))
            folders.setdefault(path.parent.as_posix(), []).append({**config, **described})
        return [
            write_file(root, f"{folder}/{INDEX}", json.dumps({"shards": rows, "version": 2}, sort_keys=True).encode())
            for folder, rows in folders.items()
        ]

    def layout(self, path: Path, group: int = 0) -> Layout:
        """Find the ids of every sample, and the texts that describe it."""
        data = self.buffer(path)
        config, offsets = _head(path, data)
        names, sizes = config["column_names"], config["column_sizes"]
        ids = next((name for name in COLUMNS if name in names), None)
        if ids is None:
            raise BrokenFile(path, f"none of its columns ({', '.join(names)}) holds token ids")
        encoding = config["column_encodings"][names.index(ids)]
        texts: dict[str, list[str]] = {
            name: [] for name in _TEXTS if name in names and _encoding(config, name) == "str"
        }
        numbers: list[int] = []
        starts, lengths = np.zeros((2, len(offsets) - 1), np.int64)
        dtype = None
        for sample in range(len(offsets) - 1):
            begin, end = int(offsets[sample]), int(offsets[sample + 1])
            try:
                spans = _columns(data, begin, end, names, sizes)
                start, length, dtype = _array(data, *spans[ids], encoding)
                for name, values in texts.items():
                    values.append(data[slice(*spans[name])].tobytes().decode())
                if "num_bytes" in spans and _encoding(config, "num_bytes") == "int64":
                    numbers.append(int(data[slice(*spans["num_bytes"])].view("<i8")[0]))
            except (ValueError, IndexError, struct.error) as failure:
                raise BrokenFile(path, f"its columns cannot be told apart ({failure})", sample, begin) from None
            starts[sample], lengths[sample] = start, length
        columns: dict[str, Any] = dict(texts)
        if "lang" in columns:
            columns["lang"] = [value or None for value in columns["lang"]]
        if numbers:
            columns["num_bytes"] = numbers
        return Layout(starts, lengths, np.dtype(dtype or "<u2"), columns)

    def mapped(self, path: Path) -> bool:
        """Return False for compressed shards."""
        return path.suffix == self.suffix

    def buffer(self, path: Path, group: int = 0) -> np.ndarray:
        """Map a shard, or decompress it."""
        return map_file(path) if self.mapped(path) else _decompressed(path)

    def found(self, folder: Path) -> list[Path]:
        """Find the shards that indexes name, in their order."""
        return [path for index in files_below(folder, INDEX) for path in _shards_of(index)]


def _encoding(config: dict[str, Any], name: str) -> str:
    return str(config["column_encodings"][config["column_names"].index(name)])


def _sample(features: dict[str, Any], ids: np.ndarray) -> bytes:
    texts = [features["id"], features["lang"], features["source"]]
    width = 0 if len(ids) < 2**8 else 1 if len(ids) < 2**16 else 2
    array = bytes([1 << 2 | width]) + len(ids).to_bytes(1 << width, "little") + ids.tobytes()
    sizes = struct.pack("<4I", *map(len, (*texts, array)))
    return b"".join([sizes, texts[0], texts[1], struct.pack("<q", features["num_bytes"]), texts[2], array])


def _head(path: Path, data: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
    """Read the configuration in a shard and where its samples start (int64, with the end)."""
    try:
        count = int(data[:4].view("<u4")[0])
        begin = 4 + 4 * (count + 1)
        offsets = data[4:begin].copy().view("<u4").astype(np.int64)
        if len(offsets) != count + 1 or offsets[-1] != len(data) or (np.diff(offsets) < 0).any() or offsets[0] < begin:
            raise ValueError("the samples do not fill it")
        config = json.loads(data[begin : offsets[0]].tobytes())
        if not {"column_names", "column_encodings", "column_sizes"} <= config.keys():
            raise ValueError("its configuration names no columns")
    except (ValueError, IndexError, AttributeError) as failure:
        raise BrokenFile(path, f"it is not a whole shard of MDS ({failure})") from None
    return config, offsets


def _columns(
    data: np.ndarray, begin: int, end: int, names: Sequence[str], sizes: Sequence[int | None]
) -> dict[str, tuple[int, int]]:
    """Return where each column of a sample starts and ends."""
    variable = sum(1 for size in sizes if not size)
    told = iter(struct.unpack(f"<{variable}I", data[begin : begin + 4 * variable].tobytes()))
    position, spans = begin + 4 * variable, {}
    for name, size in zip(names, sizes, strict=True):
        size = size or next(told)
        spans[name] = (position, position + size)
        position += size
    if position != end:
        raise ValueError(f"they take {position - begin:,} bytes of {end - begin:,}")
    return spans


def _array(data: np.ndarray, begin: int, end: int, encoding: str) -> tuple[int, int, str]:
    """Return where the ids of a column start, their number and dtype."""
    kind, _, rest = encoding.partition(":")
    name, _, shape = rest.partition(":")
    if kind == "bytes":
        # Nothing tells the dtype; llm-foundry writes and reads int64 there.
        code = 65
    elif kind != "ndarray":
        raise ValueError(f"{encoding} is no encoding of token ids")
    elif name:
        code = _NAMES.get(name, 0)
    else:
        code, begin = int(data[begin]), begin + 1
    if code not in _CODES:
        raise ValueError(f"{encoding} holds no integers")
    if kind == "ndarray" and not shape:
        dimensions, width = int(data[begin]) >> 2, 1 << (int(data[begin]) & 3)
        if dimensions != 1:
            raise ValueError(f"an array of {dimensions} dimensions")
        begin += 1 + width
    length, rest_bytes = divmod(end - begin, np.dtype(_CODES[code]).itemsize)
    if rest_bytes:
        raise ValueError("its bytes are not whole ids")
    return begin, length, _CODES[code]


def _shards_of(index: Path) -> list[Path]:
    try:
        described = json.loads(index.read_bytes())
        shards = described["shards"] if described["version"] == 2 else []
        chosen = [shard for shard in shards if shard["format"] == "mds"]
        paths = []
        for shard in chosen:
            raw = index.parent / shard["raw_data"]["basename"]
            packed = index.parent / shard["zip_data"]["basename"] if shard.get("zip_data") else raw
            paths.append(raw if raw.is_file() else packed)
    except (ValueError, KeyError, TypeError):
        return []
    for path, shard in zip(paths, chosen, strict=True):
        if not path.is_file():
            raise BrokenFile(path, f"{index.name} names this shard of {shard['samples']:,} samples, and it is missing")
    return paths


@lru_cache(maxsize=2)
def _decompressed(path: Path) -> np.ndarray:
    import pyarrow as pa

    codecs = {".zstd": "zstd", ".gz": "gzip", ".bz2": "bz2", ".snappy": "snappy", ".br": "brotli"}
    if path.suffix not in codecs:
        raise BrokenFile(path, f"the compression {path.suffix} is not known; decompress it first")
    try:
        with pa.input_stream(path, compression=codecs[path.suffix]) as stream:
            return np.frombuffer(stream.read(), np.uint8)
    except (pa.ArrowException, OSError) as failure:
        raise BrokenFile(path, f"it cannot be decompressed ({failure})") from None

"""Read a `tokens` artifact: raw little-endian ids of each block, and a table that says which document is where.

Layout: ``data/part-<block>.tokens`` (ids, one document after the other, each with its final EOS),
``data/part-<block>.parquet`` (`tokens_schema`), ``tokenizer/`` (a folder that `AutoTokenizer` loads),
``vocabulary.parquet`` (how often each id occurs).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmctl.artifacts.files import FileRecord, write_file
from llmctl.artifacts.tfrecord import map_file
from llmctl.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

    from llmctl.artifacts.inputs import Input
    from llmctl.artifacts.manifest import Manifest

KIND = "tokens"
TOKENIZER_FOLDER = "tokenizer"
TOKENS_SUFFIX, TABLE_SUFFIX = ".tokens", ".parquet"
MAX_UINT16 = 2**16 - 1


def dtype_for(max_id: int) -> str:
    """Return the smallest dtype that holds every id up to `max_id`, added tokens included."""
    return "uint16" if max_id <= MAX_UINT16 else "uint32"


def tokens_schema() -> pa.Schema:
    """Columns of ``data/part-*.parquet``; `start` counts tokens within the part's ``.tokens`` file."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("id", pa.large_string(), nullable=False),
            pa.field("source", pa.large_string(), nullable=False),
            pa.field("lang", pa.large_string()),
            pa.field("start", pa.int64(), nullable=False),
            pa.field("num_tokens", pa.int64(), nullable=False),
            pa.field("num_bytes", pa.int64(), nullable=False),
        ]
    )


@dataclass(frozen=True)
class TokenizerFacts:
    """What readers need to know of the tokenizer without loading it.

    Attributes:
        vocab_size: one more than the largest id, added tokens included: the rows of an embedding.
        dtype: ``uint16`` or ``uint32``, little endian.
    """

    vocab_size: int
    eos_id: int
    eos_token: str
    pad_id: int | None
    pad_token: str | None
    dtype: str

    def to_mapping(self) -> dict[str, Any]:
        """Return the facts as they stand in a manifest's statistics."""
        return dict(vars(self))

    @classmethod
    def from_manifest(cls, manifest: Manifest, where: Path) -> TokenizerFacts:
        """Read the facts from the statistics of a `tokens` or `shards` manifest.

        Raises:
            UserError: they are missing or make no sense.
        """
        try:
            facts = cls(**{name: manifest.statistics["tokenizer"][name] for name in cls.__dataclass_fields__})
            if facts.dtype not in ("uint16", "uint32") or not 0 <= facts.eos_id < facts.vocab_size:
                raise ValueError(facts)
        except (KeyError, TypeError, ValueError):
            raise UserError(f"the manifest of {where} does not describe its tokenizer", "make it again") from None
        return facts


@dataclass(frozen=True)
class TokenPart:
    """One block of a `tokens` artifact."""

    name: str
    table: Path
    tokens: Path


def token_parts(source: Input) -> list[TokenPart]:
    """Return the blocks of a `tokens` input in their order.

    Raises:
        UserError: a table without its ids, or the reverse.
    """
    paths = {file.path: source.absolute(file) for file in source.files}
    parts = []
    for path in sorted(paths):
        stem, suffix = path.rsplit(".", 1)
        other = stem + (TABLE_SUFFIX if f".{suffix}" == TOKENS_SUFFIX else TOKENS_SUFFIX)
        if other not in paths:
            raise UserError(f"{source.root} lacks {other}, which belongs to {path}", "make the folder again")
        if f".{suffix}" == TABLE_SUFFIX:
            parts.append(TokenPart(Path(stem).name, paths[path], paths[other]))
    return parts


def map_tokens(path: Path, dtype: str) -> np.ndarray:
    """Map the ids of a block, read-only.

    Raises:
        UserError: the file does not hold whole ids.
    """
    data = map_file(path)
    if len(data) % np.dtype(dtype).itemsize:
        raise UserError(f"{path} has {len(data):,} bytes, which are not whole {dtype} ids", "make the folder again")
    return data.view(np.dtype(dtype).newbyteorder("<"))


def copy_tokenizer(manifest: Manifest, root: Path) -> list[FileRecord]:
    """Copy the tokenizer of an artifact into another artifact's folder."""
    records = []
    for path in manifest.paths(prefix=f"{TOKENIZER_FOLDER}/"):
        records.append(write_file(root, path.relative_to(manifest.root).as_posix(), path.read_bytes()))
    return records

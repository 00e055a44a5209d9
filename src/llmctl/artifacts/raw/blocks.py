"""What the readers of raw formats give: blocks of records, and the batch of documents that a block holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from llmctl.artifacts.documents import InvalidRecord
from llmctl.config.schema import Opt

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

FORMATS = ("auto", "jsonl", "parquet", "csv", "text", "markdown", "html", "warc")


@dataclass
class ReadOptions:
    """How raw files become documents."""

    format: Annotated[
        Literal["auto", "jsonl", "parquet", "csv", "text", "markdown", "html", "warc"],
        Opt("Format of the files; `auto` recognises each by its content."),
    ] = "auto"
    text_field: Annotated[str, Opt("Field that holds the text.")] = "text"
    id_field: Annotated[str, Opt("Field that holds the record's id.")] = "id"
    source_field: Annotated[str, Opt("Field that holds the source; without it, the folder names the source.")] = (
        "source"
    )
    lang_field: Annotated[str, Opt("Field that holds the language.")] = "lang"
    source: Annotated[str | None, Opt("Source of every record, whatever the records say.")] = None
    max_record_bytes: Annotated[int, Opt("Longest line that is read as a record.", min=1, size=True)] = 512_000_000
    block_bytes: Annotated[int, Opt("Size of the blocks that work is cut into.", min=1024, size=True)] = 256_000_000


@dataclass(frozen=True)
class Segment:
    """A piece of one input file.

    Attributes:
        file: path relative to the input's root.
        start, end: range in bytes (lines), row groups (Parquet) or, for a decompressed stream, of `data` within it;
            `end` of None means to the end of the file.
        data: the decompressed bytes of a piece of a stream that only one reader can cut; None if the worker reads
            the file by itself.
        format: what the planner recognised: a name from `FORMATS`, or one of ``documents`` (a table of our own),
            ``json`` (one array, or objects that span lines) and ``none`` (nothing to read but `invalid`).
        compression: ``gzip``, ``zstd``, ``bzip2``, ``xz`` or nothing.
        line: 1-based number of the first line, if known.
        first_row: number of the first row of a table (CSV, Parquet).
        header: the line with the names of the columns (CSV).
        invalid: what the planner already found that cannot be read.
    """

    file: str
    start: int = 0
    end: int | None = None
    data: bytes | None = None
    format: str = ""
    compression: str = ""
    line: int | None = None
    first_row: int = 0
    header: bytes = b""
    invalid: tuple[InvalidRecord, ...] = ()


@dataclass(frozen=True)
class Block:
    """A unit of reading: one piece of a large file, or several small files.

    Attributes:
        name: unique and sortable, safe in file names, such as ``00003-00001``.
        root: the input's root folder.
        input_bytes: bytes on disk, for progress.
    """

    name: str
    root: str
    segments: tuple[Segment, ...]
    input_bytes: int


@dataclass
class DocumentBatch:
    """The records of one block.

    Attributes:
        table: Arrow table with `artifacts.kinds.documents_schema`.
        files: the block's input files, each once, in a form that can be printed (`artifacts.files.printable_path`).
        file_index: int32 of shape [rows]; which of `files` a row came from.
        invalid: the records that could not be read.
        content_hash: xxh3-128 of the bytes read.
        skipped: what was read and is no document, by reason: answers of a crawl that are no pages.
    """

    table: pa.Table
    files: list[str]
    file_index: np.ndarray
    invalid: list[InvalidRecord] = field(default_factory=list)
    content_hash: str = ""
    skipped: Counter[str] = field(default_factory=Counter)

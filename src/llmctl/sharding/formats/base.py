"""What a format of files of token ids must be able to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from llmctl.artifacts.files import FileRecord
from llmctl.artifacts.tfrecord import Feature
from llmctl.errors import UserError

# One document to write: id, source, lang, dtype, num_tokens, num_bytes; and its ids.
Document = tuple[dict[str, Feature], np.ndarray]


class BrokenFile(UserError):
    """A file that is not what its format says; `record` and `offset` say where, if that is known."""

    def __init__(self, path: Path, problem: str, record: int | None = None, offset: int | None = None) -> None:
        self._arguments = path, problem, record, offset
        where = "" if record is None else f", record {record}" + ("" if offset is None else f" at byte {offset:,}")
        super().__init__(f"{path}{where}: {problem}", "make the file again, or get it again from where it comes from")
        self.reason, self.record, self.offset = problem, record, offset

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions cross process borders.
        return type(self), self._arguments


@dataclass(frozen=True)
class Layout:
    """Where the documents of a file lie in its bytes, as `Format.buffer` gives them.

    Attributes:
        starts: int64 [documents], byte where the ids start.
        lengths: int64 [documents], number of ids.
        dtype: of the ids.
        columns: `id`, `source`, `lang`, `num_bytes`, where the file tells them.
    """

    starts: np.ndarray
    lengths: np.ndarray
    dtype: np.dtype[Any]
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)


class Format:
    """One format. A file may have groups that are read by themselves (row groups of Parquet)."""

    name: str
    suffix: str
    description: str

    def path(self, slug: str, position: int, count: int) -> str:
        """Return the path of a shard below the output: the file that is named in the manifest."""
        return f"data/{slug}-{position:05d}-of-{count:05d}{self.suffix}"

    def itemsize(self, dtype: str) -> int:
        """Return the bytes of an id in a file, at most."""
        return np.dtype(dtype).itemsize

    def write(self, root: Path, relative: str, documents: Iterable[Document], count: int) -> list[FileRecord]:
        """Write one shard and return its files; the first is `relative`."""
        raise NotImplementedError

    def finish(self, root: Path, shards: Sequence[dict[str, Any]]) -> list[FileRecord]:
        """Write what spans shards.

        Args:
            root: the output folder.
            shards: `path`, `documents`, `bytes`, `sha256` of each, in order.
        """
        return []

    def groups(self, path: Path) -> int:
        """Return the number of groups of a file."""
        return 1

    def first_document(self, path: Path, group: int) -> int:
        """Return the number of the first document of a group in its file."""
        return 0

    def mapped(self, path: Path) -> bool:
        """Tell whether `buffer` maps the file; otherwise it is read into memory."""
        return True

    def layout(self, path: Path, group: int = 0) -> Layout:
        """Tell where the documents of a group lie.

        Raises:
            BrokenFile: the file is damaged.
        """
        raise NotImplementedError

    def buffer(self, path: Path, group: int = 0) -> np.ndarray:
        """Return the bytes (uint8) that `Layout.starts` counts in."""
        raise NotImplementedError

    def found(self, folder: Path) -> list[Path]:
        """Return the files of this format below a folder that others wrote, sorted; they are told by content."""
        raise NotImplementedError


def files_below(folder: Path, pattern: str) -> list[Path]:
    """Return the files that match, sorted by path; hidden ones are left out. `folder` may be one file."""
    if folder.is_file():
        return [folder] if folder.match(pattern) else []
    found = (path for path in folder.rglob(pattern) if path.is_file())
    return sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))

"""Write files so that a kill or a full disk never leaves half a file under its final name."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from llmctl.errors import RunFailed, UserError

TEMPORARY_MARK = ".tmp-"
_COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class FileRecord:
    """A finished file: path relative to its artifact, size and SHA-256."""

    path: str
    bytes: int
    sha256: str

    def to_mapping(self) -> dict[str, Any]:
        """Return the record as it stands in a manifest."""
        return {"path": self.path, "bytes": self.bytes, "sha256": self.sha256}


class HashingFile:
    """A binary file that hashes what is written to it. Supports what Parquet and JSON writers need; no seeking."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._hash = hashlib.sha256()
        self._size = 0

    def write(self, data: Any) -> int:
        """Write bytes and add them to the hash."""
        self._hash.update(data)
        written = self._raw.write(data)
        self._size += written
        return written

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._size

    def flush(self) -> None:
        """Hand buffered bytes to the system."""
        self._raw.flush()

    def close(self) -> None:
        """Do nothing: the context that opened the file closes it."""

    @property
    def closed(self) -> bool:
        """Tell whether the file below is closed."""
        return self._raw.closed

    def writable(self) -> bool:
        """Return True."""
        return True

    def readable(self) -> bool:
        """Return False."""
        return False

    def seekable(self) -> bool:
        """Return False."""
        return False

    def record(self, path: str) -> FileRecord:
        """Return what was written so far as a record."""
        return FileRecord(path, self._size, self._hash.hexdigest())


def fsync_directory(folder: Path) -> None:
    """Make renames inside `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def temporary_name(path: Path) -> Path:
    """Return a name beside `path` that no other process uses and that a later run recognises as left over."""
    return path.with_name(f"{path.name}{TEMPORARY_MARK}{os.getpid()}-{secrets.token_hex(4)}")


@contextmanager
def atomic_file(path: Path) -> Iterator[HashingFile]:
    """Open `path` for writing under a temporary name; fsync and rename it when the block ends without an error.

    Raises:
        RunFailed: the disk is full or the folder cannot be written to.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        with open(temporary, "wb") as raw:
            hashing = HashingFile(raw)
            yield hashing
            raw.flush()
            os.fsync(raw.fileno())
        os.replace(temporary, path)
        fsync_directory(path.parent)
    except OSError as failure:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise explain_os_error(failure, path) from failure
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_file(root: Path, relative: str, data: bytes) -> FileRecord:
    """Write one small file atomically and return its record."""
    with atomic_file(root / relative) as out:
        out.write(data)
    return out.record(relative)


def write_json(root: Path, relative: str, value: Any) -> FileRecord:
    """Write JSON atomically: sorted as given, two-space indent, one final newline."""
    text = json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False)
    return write_file(root, relative, text.encode("utf-8", "surrogatepass") + b"\n")


def adopt_file(root: Path, relative: str) -> FileRecord:
    """Record a file that a library has written itself: fsync it and hash it."""
    path = root / relative
    with open(path, "rb") as handle:
        os.fsync(handle.fileno())
        digest = hashlib.file_digest(handle, "sha256") if hasattr(hashlib, "file_digest") else _digest(handle)
    return FileRecord(relative, path.stat().st_size, digest.hexdigest())


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with open(path, "rb") as handle:
        return _digest(handle).hexdigest()


def _digest(handle: BinaryIO) -> Any:
    digest = hashlib.sha256()
    while chunk := handle.read(_COPY_BYTES):
        digest.update(chunk)
    return digest


def explain_os_error(failure: OSError, path: Path) -> Exception:
    """Turn an error of the operating system into a sentence with a hint."""
    if failure.errno in (errno.ENOSPC, errno.EDQUOT):
        return RunFailed(
            f"no space left on the disk while writing {path}",
            "free some space and run the same command again: what is finished is kept",
        )
    if failure.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UserError(f"cannot write to {path}: {failure.strerror}", "choose an output folder you may write to")
    if failure.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        return UserError(f"cannot write to {path}: {failure.strerror}", "choose another output folder")
    return RunFailed(f"cannot write {path}: {failure.strerror or failure}", None)


def safe_relative(path: str, where: str) -> str:
    """Return a path from a manifest, or refuse one that leads out of its folder.

    Raises:
        UserError: the path is absolute, empty or contains ``..``.
    """
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or "\\" in path or "\x00" in path:
        raise UserError(f"{where} names the path {path!r}, which leads out of the folder", "do not trust this folder")
    return path


def printable_path(path: str) -> str:
    """Return a path as valid Unicode: bytes of a file name that are no UTF-8 become ``\\xNN``."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files that a killed run left behind."""
    if folder.is_dir():
        for path in folder.rglob(f"*{TEMPORARY_MARK}*"):
            if path.is_file():
                path.unlink(missing_ok=True)

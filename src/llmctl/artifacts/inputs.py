"""What a stage reads: a finished artifact, or a raw file or folder tree. Inputs are only ever read."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmctl.artifacts.files import printable_path, sha256_of
from llmctl.artifacts.manifest import MANIFEST_NAME, STATE_FOLDER, Manifest, read_manifest
from llmctl.errors import RunFailed, UserError

RAW = "raw"


@dataclass(frozen=True)
class InputFile:
    """One file of an input: path relative to the input's root, size in bytes, time of last change."""

    path: str
    bytes: int
    mtime_ns: int
    sha256: str | None = None


@dataclass
class Input:
    """One input of a stage.

    Attributes:
        role: what the stage uses it for: ``source``, ``model``, ``tokenizer``, …
        kind: the artifact's kind, or ``raw``.
        root: the folder that the files' paths are relative to.
        files: sorted by path, so that work is planned the same way everywhere.
    """

    role: str
    name: str
    kind: str
    root: Path
    files: list[InputFile]
    manifest: Manifest | None = None
    _hasher: threading.Thread | None = field(default=None, repr=False)
    _hashes: dict[str, str] = field(default_factory=dict, repr=False)
    _hash_failure: list[BaseException] = field(default_factory=list, repr=False)

    @property
    def total_bytes(self) -> int:
        """Return the size of all files."""
        return sum(file.bytes for file in self.files)

    def absolute(self, file: InputFile) -> Path:
        """Return where a file lies."""
        return self.root / file.path

    def start_hashing(self, known: Mapping[str, tuple[int, int, str]] | None = None) -> None:
        """Hash raw files in the background while the stage works.

        Args:
            known: {path: (bytes, mtime_ns, sha256)} from an earlier run; trusted where size and time are unchanged.
        """
        if self.manifest is not None or self._hasher is not None:
            return
        for file in self.files:
            entry = (known or {}).get(printable_path(file.path))
            if entry is not None and entry[:2] == (file.bytes, file.mtime_ns):
                self._hashes[file.path] = entry[2]
        self._hasher = threading.Thread(target=self._hash_files, daemon=True)
        self._hasher.start()

    def _hash_files(self) -> None:
        try:
            for file in self.files:
                if file.path not in self._hashes:
                    try:
                        self._hashes[file.path] = sha256_of(self.absolute(file))
                    except OSError:
                        self._hashes[file.path] = ""  # told as invalid by the stage that reads it
        except BaseException as failure:  # handed to the main thread
            self._hash_failure.append(failure)

    def describe(self) -> dict[str, Any]:
        """Return the entry of this input in a manifest (waits for the hashes of raw files).

        Raises:
            RunFailed: a file changed while the stage was reading it.
        """
        if self.manifest is not None:
            return {
                "role": self.role,
                "name": printable_path(self.name),
                "kind": self.kind,
                "fingerprint": self.manifest.fingerprint,
            }
        self.start_hashing()
        assert self._hasher is not None
        self._hasher.join()
        if self._hash_failure:
            raise self._hash_failure[0]
        self.check_unchanged()
        files = [
            {"path": printable_path(file.path), "bytes": file.bytes, "sha256": self._hashes[file.path]}
            for file in self.files
        ]
        canonical = json.dumps(files, sort_keys=True, ensure_ascii=True).encode()
        fingerprint = hashlib.sha256(canonical).hexdigest()
        name = printable_path(self.name)
        return {"role": self.role, "name": name, "kind": RAW, "fingerprint": fingerprint, "files": files}

    def known_hashes(self) -> dict[str, tuple[int, int, str]]:
        """Return {path: (bytes, mtime_ns, sha256)} of the files hashed so far, for ``run.json``."""
        return {
            printable_path(file.path): (file.bytes, file.mtime_ns, self._hashes[file.path])
            for file in self.files
            if file.path in self._hashes
        }

    def check_unchanged(self) -> None:
        """Refuse to vouch for files that changed since the stage listed them."""
        for file in self.files:
            try:
                status = self.absolute(file).stat()
            except OSError:
                continue  # unreadable files are told by the reader
            if (status.st_size, status.st_mtime_ns) != (file.bytes, file.mtime_ns):
                raise RunFailed(
                    f"{file.path} changed while it was being read", "run again when it is no longer written to"
                )


def open_input(
    path: Path | str, *, role: str = "source", kinds: Iterable[str] = (), raw: bool = True, payload: str = "data/"
) -> Input:
    """Open what a stage reads.

    Args:
        path: a folder with a manifest, or (if `raw`) any file or folder tree.
        role: what the input is for.
        kinds: the artifact kinds that the stage can use.
        raw: whether files without a manifest are welcome.
        payload: which files of an artifact are read.

    Raises:
        UserError: nothing there, nothing to read in it, an unfinished or a wrong artifact.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path} does not exist", _sibling_hint(path))
    if path.is_dir() and ((path / MANIFEST_NAME).is_file() or (path / STATE_FOLDER).is_dir() or not raw):
        manifest = read_manifest(path, kinds)
        files = []
        for record in sorted(manifest.files, key=lambda record: record.path):
            if not record.path.startswith(payload):
                continue
            target = path / record.path
            if not target.is_file():
                raise UserError(f"{path} lacks {record.path}, which its manifest names", "make the folder again")
            status = target.stat()
            if status.st_size != record.bytes:
                raise UserError(
                    f"{target} has {status.st_size:,} bytes instead of {record.bytes:,}", "make the folder again"
                )
            files.append(InputFile(record.path, record.bytes, status.st_mtime_ns, record.sha256))
        return Input(role, path.resolve().name, manifest.kind, path.resolve(), files, manifest)
    if not raw:
        raise UserError(f"{path} is a file, and an llmctl folder is needed", f"kinds: {', '.join(kinds)}")
    files = list_raw_files(path)
    root = path.resolve() if path.is_dir() else path.resolve().parent
    return Input(role, path.resolve().name, RAW, root, files)


def _sibling_hint(path: Path) -> str:
    from llmctl.errors import nearest

    try:
        siblings = [item.name for item in (path.parent if path.parent.parts else Path()).iterdir()]
    except OSError:
        return "check the path"
    close = nearest(path.name, siblings)
    return f"did you mean {path.parent / close}?" if close else "check the path"


def list_raw_files(path: Path) -> list[InputFile]:
    """List the files of a raw input, sorted by path; hidden files and folders are left out, link loops are cut.

    Raises:
        UserError: there is no file, or a folder cannot be read.
    """
    if path.is_file():
        status = path.stat()
        return [InputFile(path.name, status.st_size, status.st_mtime_ns)]
    found: list[InputFile] = []
    visited: set[tuple[int, int]] = set()
    failures: list[OSError] = []
    for folder, subfolders, names in os.walk(path, followlinks=True, onerror=failures.append):
        try:
            status = os.stat(folder)
        except OSError as failure:  # gone since it was listed
            failures.append(failure)
            continue
        if (status.st_dev, status.st_ino) in visited:
            subfolders[:] = []
            continue
        visited.add((status.st_dev, status.st_ino))
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in names:
            file = Path(folder) / name
            if name.startswith(".") or not file.is_file():
                continue
            try:
                status = file.stat()
            except OSError:  # gone since it was listed, as a temporary file may be
                continue
            relative = file.relative_to(path).as_posix()
            found.append(InputFile(relative, status.st_size, status.st_mtime_ns))
    if failures:
        raise UserError(
            f"cannot read the folder {failures[0].filename}: {failures[0].strerror}", "check its permissions"
        )
    if not found:
        raise UserError(f"{path} holds no files", "give a file, or a folder with files in it")
    return sorted(found, key=lambda file: file.path)

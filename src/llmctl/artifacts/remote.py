"""Folders in object storage (`s3://…` and every other protocol of fsspec) as inputs and outputs of a command.

An input is copied to a cache folder first, file by file, and only what changed: files of an artifact are known by
their checksums, others by what the storage says of them. An output is written to a folder beside the cache, where a
killed command goes on, and is copied when it is finished: a mark that says so, the files, the manifest, which comes
last. Whoever finds a manifest finds all that it names.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmctl import __version__, console
from llmctl.artifacts.files import FileRecord, atomic_file, safe_relative, sha256_of, temporary_name, write_json
from llmctl.artifacts.manifest import CONFIG_NAME, MANIFEST_NAME, RUN_NAME, STATE_FOLDER, read_manifest
from llmctl.artifacts.output import require_space
from llmctl.artifacts.storage import explained, filesystem
from llmctl.errors import RunFailed, UserError

# An object that says that a folder without a manifest is ours, and being written.
UPLOAD_MARK = "_upload.json"
_TRANSFERS = 8
# A `Path` has made one slash of the two.
_URL = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]+):/+(.*)$", re.DOTALL)


def url_of(path: Path | str) -> str | None:
    """Return the URL that a path of the command line stands for; None for a path of this machine."""
    found = _URL.match(str(path))
    if found is None or Path(path).exists():
        return None
    protocol, rest = found.groups()
    slash = "/" if protocol in ("file", "local") else ""
    return f"{protocol}://{slash}{rest.rstrip('/')}"


def cache_folder(url: str, kind: str) -> Path:
    """Return the folder of this machine for a URL; its last part is the name of the URL's."""
    base = os.environ.get("LLMCTL_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache"), "llmctl"
    )
    digest = hashlib.sha256(url.encode()).hexdigest()[:16]
    return Path(base) / "remote" / kind / digest / (url.rstrip("/").rsplit("/", 1)[-1] or "root")


@dataclass
class Remote:
    """A folder or file in object storage.

    Attributes:
        url: as the user wrote it.
        local: its copy on this machine.
    """

    url: str
    local: Path
    _sizes: dict[str, dict[str, Any]] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        with explained(self.url):
            self.fs, self.root = filesystem(self.url)

    def path(self, relative: str) -> str:
        """Return where a file lies in the storage."""
        return f"{self.root.rstrip('/')}/{relative}"

    def listing(self) -> dict[str, dict[str, Any]]:
        """Return {relative path: what the storage says of it}; empty if there is nothing."""
        with explained(self.url):
            self.fs.invalidate_cache()
            found = self.fs.find(self.root, detail=True)
        prefix = self.root.rstrip("/") + "/"
        return {
            name[len(prefix) :]: info
            for name, info in sorted(found.items())
            if name.startswith(prefix) and len(name) > len(prefix) and info.get("type") == "file"
        }

    def read(self, relative: str) -> bytes | None:
        """Return a small file, or None if it is not there."""
        with explained(self.url):
            try:
                return bytes(self.fs.cat_file(self.path(relative)))
            except FileNotFoundError:
                return None

    def write(self, relative: str, data: bytes) -> None:
        """Write a small file."""
        with explained(self.url):
            self.fs.makedirs(self.path(relative).rsplit("/", 1)[0], exist_ok=True)
            self.fs.pipe_file(self.path(relative), data)

    def remove(self, relative: str) -> None:
        """Delete a file; one that is not there does not matter."""
        with explained(self.url):
            try:
                self.fs.rm_file(self.path(relative))
            except FileNotFoundError:
                return

    # -- inputs -------------------------------------------------------------------------------------------------

    def fetch(self, fresh: bool) -> Path:
        """Copy the folder to this machine, and return where.

        Args:
            fresh: copy every file again and leave it to the reader to find damage; otherwise files that are here
                already are taken as they are, and what is copied is compared with its checksum.
        """
        with explained(self.url):
            self.fs.invalidate_cache()
            if self.fs.isfile(self.root):
                return self._fetch_file()
        manifest = self.read(MANIFEST_NAME)
        if manifest is not None:
            return self._fetch_artifact(manifest, fresh)
        files = self.listing()
        if not files:
            raise UserError(f"{self.url} does not exist, or holds nothing", "check the address")
        if UPLOAD_MARK in files or any(name.startswith(f"{STATE_FOLDER}/") for name in files):
            raise UserError(f"{self.url} is not finished", "run the command that writes it again")
        self._fetch_raw(files)
        return self.local

    def _fetch_file(self) -> Path:
        with explained(self.url):
            info = self.fs.info(self.root)
        self._fetch_raw({self.local.name: info}, parent=self.root.rpartition("/")[0])
        return self.local / self.local.name

    def _fetch_artifact(self, data: bytes, fresh: bool) -> Path:
        """Copy the files of a manifest; the manifest comes last, so that a cut copy is not taken for a whole one."""
        here = self.local / MANIFEST_NAME
        if here.is_file() and here.read_bytes() != data:
            shutil.rmtree(self.local)
        self.local.mkdir(parents=True, exist_ok=True)
        self._save(self.local / f"_{MANIFEST_NAME}", data)
        try:
            files = [
                FileRecord(safe_relative(str(item["path"]), self.url), int(item["bytes"]), str(item["sha256"]))
                for item in json.loads(data)["files"]
            ]
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{self.url}/{MANIFEST_NAME} is not a manifest of llmctl", "check the address") from None
        wanted = [record for record in files if fresh or not self._is_here(record)]
        present = self.listing() if fresh else {}
        for record in [record for record in wanted if fresh and record.path not in present]:
            (self.local / record.path).unlink(missing_ok=True)  # the reader says that it is missing
            wanted.remove(record)
        self._copy([(record.path, record.bytes, None if fresh else record.sha256) for record in wanted])
        if fresh:
            self._fetch_foreign(present, {record.path for record in files})
        run = self.read(RUN_NAME)
        if run is not None:
            self._save(self.local / RUN_NAME, run)
        (self.local / f"_{MANIFEST_NAME}").replace(here)
        return self.local

    def _fetch_foreign(self, present: dict[str, dict[str, Any]], known: set[str]) -> None:
        """Copy what the manifest does not name, and delete what is no longer there."""
        own = {MANIFEST_NAME, RUN_NAME, CONFIG_NAME, f"_{MANIFEST_NAME}"}
        self._copy([(name, int(info["size"]), None) for name, info in present.items() if name not in known | own])
        for path in [path for path in self.local.rglob("*") if path.is_file()]:
            if path.relative_to(self.local).as_posix() not in present.keys() | own:
                path.unlink()

    def _is_here(self, record: FileRecord) -> bool:
        path = self.local / record.path
        return path.is_file() and path.stat().st_size == record.bytes

    @staticmethod
    def _save(path: Path, data: bytes) -> None:
        with atomic_file(path) as out:
            out.write(data)

    def _fetch_raw(self, files: dict[str, dict[str, Any]], parent: str | None = None) -> None:
        known_path = self.local.parent / "listing.json"
        try:
            known = json.loads(known_path.read_bytes())
        except (OSError, ValueError):
            known = {}
        states = {safe_relative(name, self.url): _state_of(info) for name, info in files.items()}
        wanted = [
            (name, int(files[name]["size"]), None)
            for name, state in states.items()
            if known.get(name) != state or not (self.local / name).is_file()
        ]
        known_path.unlink(missing_ok=True)
        for path in [path for path in self.local.rglob("*") if path.is_file()]:
            if path.relative_to(self.local).as_posix() not in states:
                path.unlink()
        self._copy(wanted, parent)
        write_json(known_path.parent, known_path.name, states)

    def _copy(self, wanted: Sequence[tuple[str, int, str | None]], parent: str | None = None) -> None:
        """Copy files (path, bytes, SHA-256 if it is to be compared) to this machine."""
        root = self.root if parent is None else parent

        def one(item: tuple[str, int, str | None]) -> int:
            relative, size, sha256 = item
            target = self.local / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = temporary_name(target)
            try:
                with explained(f"{self.url}/{relative}"):
                    self.fs.get_file(f"{root.rstrip('/')}/{relative}", str(temporary))
                if sha256 is not None and sha256_of(temporary) != sha256:
                    raise RunFailed(
                        f"{self.url}/{relative} differs from its checksum in the manifest", "make the folder again"
                    )
                os.replace(temporary, target)
            finally:
                temporary.unlink(missing_ok=True)
            return size

        self.local.mkdir(parents=True, exist_ok=True)
        total = sum(size for _, size, _ in wanted)
        require_space(self.local, total)
        _transfer(one, wanted, f"reading {self.url}", total)

    # -- outputs ------------------------------------------------------------------------------------------------

    @property
    def _record(self) -> Path:
        return self.local.parent / "uploaded.jsonl"

    @property
    def _base(self) -> Path:
        return self.local.parent / "base.json"

    def prepare(self, overwrite: bool) -> None:
        """Make the local folder of an output stand where the storage stands, and refuse what is not ours there.

        Raises:
            UserError: something else lies there, or another run has written there since this one began.
        """
        manifest = self.read(MANIFEST_NAME)
        found = None if manifest is None else hashlib.sha256(manifest).hexdigest()
        if manifest is None:
            names = list(self.listing())
            if names and UPLOAD_MARK not in names:
                raise UserError(f"the output {self.url} is not empty and was not made by llmctl", "choose a new folder")
        elif not _is_manifest(manifest):
            raise UserError(f"{self.url}/{MANIFEST_NAME} was not made by llmctl", "choose a new folder")
        try:
            base = json.loads(self._base.read_bytes())["manifest"]
        except (OSError, ValueError, KeyError):
            base = found
            self.local.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.local.parent, self._base.name, {"url": self.url, "manifest": found})
        mine = sha256_of(self.local / MANIFEST_NAME) if (self.local / MANIFEST_NAME).is_file() else None
        if found not in (base, mine) and self.local.exists():
            if not overwrite:
                raise UserError(
                    f"another run has written to {self.url} since this one began here",
                    "use --overwrite to replace it, or give another output folder",
                )
            write_json(self.local.parent, self._base.name, {"url": self.url, "manifest": found})
        if manifest is not None and not self.local.exists():
            for name in (RUN_NAME, CONFIG_NAME):
                data = self.read(name)
                if data is not None:
                    self._save(self.local / name, data)
            self._save(self.local / MANIFEST_NAME, manifest)

    def publish(self, names: dict[str, str]) -> None:
        """Copy a finished output to the storage, the manifest last, and delete it here.

        Args:
            names: {path of this machine: URL}, put right in ``run.json``.
        """
        manifest = (self.local / MANIFEST_NAME).read_bytes()
        if self.read(MANIFEST_NAME) != manifest:
            self._upload(manifest, names)
        shutil.rmtree(self.local.parent, ignore_errors=True)

    def _upload(self, manifest: bytes, names: dict[str, str]) -> None:
        records = [record for record in read_manifest(self.local).files if (self.local / record.path).is_file()]
        self.write(UPLOAD_MARK, json.dumps({"llmctl": __version__}).encode())
        self.remove(MANIFEST_NAME)
        present, done = self.listing(), self._uploaded()
        wanted = [
            record
            for record in records
            if done.get(record.path) != record.sha256 or present.get(record.path, {}).get("size") != record.bytes
        ]
        with open(self._record, "a", encoding="utf-8") as log:

            def one(record: FileRecord) -> int:
                with explained(f"{self.url}/{record.path}"):
                    self.fs.makedirs(self.path(record.path).rsplit("/", 1)[0], exist_ok=True)
                    self.fs.put_file(str(self.local / record.path), self.path(record.path))
                log.write(json.dumps({"path": record.path, "sha256": record.sha256}) + "\n")
                log.flush()
                return record.bytes

            _transfer(one, wanted, f"writing {self.url}", sum(record.bytes for record in wanted))
        kept = {record.path for record in records} | {UPLOAD_MARK}
        for name in present.keys() - kept:
            self.remove(name)
        for name in (CONFIG_NAME, RUN_NAME):
            if (self.local / name).is_file():
                text = (self.local / name).read_text(encoding="utf-8", errors="surrogateescape")
                for path, url in names.items() if name == RUN_NAME else ():
                    text = text.replace(path, url)
                self.write(name, text.encode("utf-8", "surrogateescape"))
        self.write(MANIFEST_NAME, manifest)
        self.remove(UPLOAD_MARK)

    def _uploaded(self) -> dict[str, str]:
        done = {}
        if self._record.is_file():
            for line in self._record.read_text(encoding="utf-8").splitlines():
                try:
                    entry = json.loads(line)
                    done[str(entry["path"])] = str(entry["sha256"])
                except (ValueError, KeyError, TypeError):
                    continue  # the last line of a killed run
        return done


def _transfer(one: Callable[[Any], int], items: Iterable[Any], label: str, total: int) -> None:
    with console.progress(label, total) as shown, ThreadPoolExecutor(_TRANSFERS) as threads:
        futures = [threads.submit(one, item) for item in items]
        try:
            for future in futures:
                shown.advance(future.result())
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def _state_of(info: dict[str, Any]) -> str:
    """Return what tells one content of an object from another: its tag, or else its time."""
    known = ("ETag", "etag", "md5Hash", "content_md5", "mtime", "LastModified", "last_modified", "created")
    return f"{info.get('size')} {next((info[name] for name in known if info.get(name)), '')}"


def _is_manifest(data: bytes) -> bool:
    try:
        loaded = json.loads(data)
    except ValueError:
        return False
    return isinstance(loaded, dict) and {"kind", "schema_version", "stage", "files"} <= loaded.keys()

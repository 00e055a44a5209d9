"""What `llmctl shard --verify` finds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from llmctl.artifacts.documents import DATA_FOLDER
from llmctl.artifacts.files import TEMPORARY_MARK, sha256_of
from llmctl.artifacts.manifest import Manifest

# A file full of zeros would otherwise give one line a record.
MAX_FAULTS_PER_FILE = 100


@dataclass(frozen=True)
class Fault:
    """One damage.

    Attributes:
        record: number of the record in its file, from 0; None if it is the file as a whole.
        offset: byte in the file where the record starts.
    """

    file: str
    problem: str
    record: int | None = None
    offset: int | None = None

    def sentence(self) -> str:
        """Return the fault as one line."""
        where = self.file if self.record is None else f"{self.file}, record {self.record} at byte {self.offset:,}"
        return f"{where}: {self.problem}"


@dataclass
class Verified:
    """What was read."""

    files: int = 0
    records: int = 0
    tokens: int = 0
    bytes: int = 0
    outcome: str = "all checksums hold"


def foreign_files(path: Path, manifest: Manifest, folders: Iterable[str] = (DATA_FOLDER,)) -> list[Fault]:
    """Return a fault for each file of the payload's folders that the manifest does not name."""
    known = {record.path for record in manifest.files}
    found = (file for folder in folders for file in sorted((path / folder).rglob("*")) if file.is_file())
    names = [file.relative_to(path).as_posix() for file in found if TEMPORARY_MARK not in file.name]
    return [Fault(name, "foreign file: the manifest does not name it") for name in names if name not in known]


def file_fault(root: Path, name: str, sha256: str) -> Fault | None:
    """Return what is wrong with a file as a whole."""
    if not (root / name).is_file():
        return Fault(name, "this file is missing")
    return None if sha256_of(root / name) == sha256 else Fault(name, "it differs from the checksum in the manifest")

"""Follow an artifact back to what it was made from, as far as the folders still lie where they lay."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmctl.artifacts.files import printable_path
from llmctl.artifacts.inputs import RAW, list_raw_files
from llmctl.artifacts.manifest import MANIFEST_NAME, Manifest, read_manifest, read_run
from llmctl.errors import UserError

MATCHES = "matches"  # the folder is there, with the fingerprint that was recorded
CHANGED = "changed"  # something is there, but not what was read
MISSING = "missing"  # nothing is there
UNKNOWN = "unknown"  # nobody wrote down where it lay
MAX_DEPTH = 50


@dataclass
class Ancestor:
    """One input of an artifact, with its own inputs.

    Attributes:
        role, name, kind, fingerprint: as recorded in the manifest of what was made from it.
        path: where it lay, if known.
        state: `MATCHES`, `CHANGED`, `MISSING` or `UNKNOWN`. Raw files are compared by size, artifacts by fingerprint.
        stage: the command that made it, if it still lies there.
        num_files, bytes: of raw input, as recorded.
    """

    role: str
    name: str
    kind: str
    fingerprint: str
    path: Path | None = None
    state: str = UNKNOWN
    stage: str | None = None
    num_files: int | None = None
    bytes: int | None = None
    inputs: list[Ancestor] = field(default_factory=list)

    def to_mapping(self) -> dict[str, Any]:
        """Return the ancestor and its inputs as JSON values."""
        return {
            "role": self.role,
            "name": self.name,
            "kind": self.kind,
            "fingerprint": self.fingerprint,
            "path": None if self.path is None else str(self.path),
            "state": self.state,
            "stage": self.stage,
            "num_files": self.num_files,
            "bytes": self.bytes,
            "inputs": [ancestor.to_mapping() for ancestor in self.inputs],
        }


def trace(manifest: Manifest, folder: Path, depth: int = 0) -> list[Ancestor]:
    """Return the inputs of an artifact, each with its own, back to the raw files.

    Args:
        manifest: of the artifact.
        folder: where it lies; its ``run.json`` tells where the inputs lay.
        depth: of the recursion; chains longer than `MAX_DEPTH` are cut.
    """
    recorded = read_run(folder).get("inputs")
    places = recorded if isinstance(recorded, dict) else {}
    return [_ancestor(entry, places.get(entry.get("role")), folder, depth) for entry in _mappings(manifest.inputs)]


def _mappings(entries: list[Any]) -> list[dict[str, Any]]:
    return [entry for entry in entries if isinstance(entry, dict)]


def _ancestor(entry: dict[str, Any], place: Any, folder: Path, depth: int) -> Ancestor:
    ancestor = Ancestor(
        role=str(entry.get("role", "?")),
        name=str(entry.get("name", "?")),
        kind=str(entry.get("kind", "?")),
        fingerprint=str(entry.get("fingerprint", "")),
    )
    files = _mappings(entry.get("files") or [])
    if ancestor.kind == RAW:
        ancestor.num_files = len(files)
        ancestor.bytes = sum(int(file.get("bytes", 0)) for file in files)
    if not isinstance(place, str) or not place or "://" in place:
        return ancestor  # what lies in object storage is not looked up
    ancestor.path = _where(Path(place), folder)
    if not ancestor.path.exists():
        ancestor.state = MISSING
    elif ancestor.kind == RAW:
        ancestor.state = MATCHES if _same_sizes(ancestor.path, files) else CHANGED
    else:
        _follow(ancestor, depth)
    return ancestor


def _where(place: Path, folder: Path) -> Path:
    """Return a recorded place, or the folder of the same name beside the artifact when both were moved together."""
    beside = folder.resolve().parent / place.name
    return beside if not place.exists() and beside.exists() else place


def _same_sizes(path: Path, files: list[dict[str, Any]]) -> bool:
    try:
        present = {printable_path(file.path): file.bytes for file in list_raw_files(path)}
    except UserError:
        return False
    return present == {str(file.get("path")): file.get("bytes") for file in files}


def _follow(ancestor: Ancestor, depth: int) -> None:
    assert ancestor.path is not None
    if not (ancestor.path / MANIFEST_NAME).is_file():
        ancestor.state = CHANGED
        return
    try:
        manifest = read_manifest(ancestor.path)
    except UserError:
        ancestor.state = CHANGED
        return
    ancestor.state = MATCHES if manifest.fingerprint == ancestor.fingerprint else CHANGED
    if ancestor.state == MATCHES:
        ancestor.stage = manifest.stage
        if depth < MAX_DEPTH:
            ancestor.inputs = trace(manifest, ancestor.path, depth + 1)

"""The manifest: what a folder is, what it was made from and with, and the checksum of every file.

``manifest.json`` is a pure function of input, configuration and llmctl's version, so equal runs have equal
manifests; host, times and paths stand in ``run.json``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmctl.artifacts.files import FileRecord, safe_relative, sha256_of, write_json
from llmctl.artifacts.kinds import UPGRADES, check_version
from llmctl.errors import UserError

MANIFEST_NAME = "manifest.json"
RUN_NAME = "run.json"
CONFIG_NAME = "config.yaml"
STATE_FOLDER = "_state"


@dataclass
class Manifest:
    """The manifest of one artifact.

    Attributes:
        inputs: one mapping per input: ``name`` (folder name), ``role``, ``kind`` (an artifact's, or ``raw``),
            ``fingerprint`` (SHA-256 of the input's manifest, or of its file list), ``files`` (for raw input).
        statistics: stage-specific; data stages have ``records`` with ``in``, ``kept``, ``removed``, ``invalid``.
    """

    kind: str
    stage: str
    config: dict[str, Any]
    inputs: list[dict[str, Any]] = field(default_factory=list)
    files: list[FileRecord] = field(default_factory=list)
    statistics: dict[str, Any] = field(default_factory=dict)
    schema_version: int = 1
    tool_version: str = ""
    root: Path = field(default=Path(), compare=False)
    fingerprint: str = field(default="", compare=False)

    def to_mapping(self) -> dict[str, Any]:
        """Return the manifest as it is written."""
        return {
            "kind": self.kind,
            "schema_version": self.schema_version,
            "stage": self.stage,
            "tool_version": self.tool_version,
            "config": self.config,
            "inputs": self.inputs,
            "files": [record.to_mapping() for record in sorted(self.files, key=lambda record: record.path)],
            "statistics": self.statistics,
        }

    def write(self, root: Path) -> None:
        """Write the manifest; it comes last, and its presence says that the folder is complete."""
        record = write_json(root, MANIFEST_NAME, self.to_mapping())
        self.root, self.fingerprint = root, record.sha256

    def paths(self, prefix: str = "", suffix: str = "") -> list[Path]:
        """Return the paths of the payload files whose relative path starts and ends as asked, sorted."""
        return [
            self.root / record.path
            for record in sorted(self.files, key=lambda record: record.path)
            if record.path.startswith(prefix) and record.path.endswith(suffix)
        ]

    def damaged_files(self, advance: Callable[[int], None] | None = None) -> list[str]:
        """Read every file again and return a sentence for each that is missing or differs from its checksum.

        Args:
            advance: called with the bytes of each file after it was read, for progress.
        """
        problems = []
        for record in self.files:
            path = self.root / record.path
            if not path.is_file():
                problems.append(f"{record.path} is missing")
            elif path.stat().st_size != record.bytes:
                problems.append(f"{record.path} has {path.stat().st_size:,} bytes instead of {record.bytes:,}")
            elif sha256_of(path) != record.sha256:
                problems.append(f"{record.path} differs from its checksum")
            if advance is not None:
                advance(record.bytes)
        return problems


def read_manifest(folder: Path, kinds: Iterable[str] = ()) -> Manifest:
    """Read and check the manifest of a finished artifact.

    Args:
        folder: the artifact's folder.
        kinds: the kinds that the caller can use; empty means any.

    Raises:
        UserError: no manifest, a broken one, another kind, a newer schema, or paths that lead out of the folder.
    """
    path = folder / MANIFEST_NAME
    if not path.is_file():
        if (folder / STATE_FOLDER).is_dir():
            raise UserError(f"{folder} is not finished", "run the command that writes it again: it goes on from there")
        raise UserError(f"{folder} has no {MANIFEST_NAME}", "give a folder that an llmctl command has finished")
    data = path.read_bytes()
    try:
        mapping = json.loads(data)
        kind_name, version = str(mapping["kind"]), int(mapping["schema_version"])
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is not a manifest that llmctl can read", "make the folder again") from None
    kind = check_version(kind_name, version, str(folder))
    while version < kind.schema_version:
        mapping = UPGRADES[kind_name, version](mapping)
        version += 1
    wanted = list(kinds)
    if wanted and kind_name not in wanted:
        raise UserError(
            f"{folder} holds `{kind_name}`, and {' or '.join(f'`{name}`' for name in wanted)} is needed",
            f"convert it: llmctl shard {folder} SHARDS"
            if kind_name == "export" and "shards" in wanted
            else f"it was written by `llmctl {mapping.get('stage', '?')}`; give the output of another stage",
        )
    return _from_mapping(mapping, folder, hashlib.sha256(data).hexdigest())


def _from_mapping(mapping: Mapping[str, Any], folder: Path, fingerprint: str) -> Manifest:
    where = str(folder / MANIFEST_NAME)
    try:
        files = [
            FileRecord(safe_relative(str(item["path"]), where), int(item["bytes"]), str(item["sha256"]))
            for item in mapping["files"]
        ]
        return Manifest(
            kind=str(mapping["kind"]),
            stage=str(mapping["stage"]),
            config=dict(mapping["config"]),
            inputs=list(mapping["inputs"]),
            files=files,
            statistics=dict(mapping["statistics"]),
            schema_version=int(mapping["schema_version"]),
            tool_version=str(mapping["tool_version"]),
            root=folder,
            fingerprint=fingerprint,
        )
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{where} lacks what a manifest must have", "make the folder again") from None


def read_run(folder: Path) -> dict[str, Any]:
    """Return ``run.json`` of an artifact (host, times, input paths), or nothing if it is missing or broken."""
    try:
        loaded = json.loads((folder / RUN_NAME).read_bytes())
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}

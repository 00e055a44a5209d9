"""Own an output folder from the first byte to the manifest: claim, resume, finish.

    with open_output(output, kind="documents", stage="filter", config=config, inputs=[source], options=options) as out:
        if out.finished is not None:
            return out.finished            # the same command was run before: nothing to do
        ...                                # write files with `atomic_file` or `out.write_json`
        return out.finish(records, statistics)

While a run is going, ``_state/`` holds its claim and the record of each finished unit of work; a later run with the
same configuration and input goes on from there. The manifest is written last, then ``_state/`` goes away.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import llmctl
from llmctl import console
from llmctl.artifacts.files import (
    FileRecord,
    explain_os_error,
    printable_path,
    remove_leftovers,
    write_file,
    write_json,
)
from llmctl.artifacts.inputs import Input
from llmctl.artifacts.kinds import KINDS
from llmctl.artifacts.manifest import (
    CONFIG_NAME,
    MANIFEST_NAME,
    RUN_NAME,
    STATE_FOLDER,
    Manifest,
    read_manifest,
    read_run,
)
from llmctl.config.common import RunOptions
from llmctl.config.load import differences
from llmctl.config.schema import to_mapping, to_yaml
from llmctl.errors import RunFailed, UserError

CLAIM_NAME = "claim.json"
UNITS_FOLDER = "units"
LOCK_NAME = "lock"


def check_separate(output: Path, inputs: Iterable[Path]) -> None:
    """Refuse an output folder that is an input, lies inside one, or contains one.

    Raises:
        UserError: the folders overlap.
    """
    target = output.resolve()
    for source in inputs:
        resolved = source.resolve()
        if target == resolved:
            raise UserError(
                f"the output {output} is the input itself", "choose another output folder: inputs are never changed"
            )
        if resolved.is_dir() and resolved in target.parents:
            raise UserError(f"the output {output} lies inside the input {source}", "choose a folder outside of it")
        if target in resolved.parents:
            raise UserError(
                f"the input {source} lies inside the output {output}", "choose a folder that does not contain it"
            )


class Output:
    """A claimed output folder. Use `open_output`."""

    def __init__(
        self,
        root: Path,
        kind: str,
        stage: str,
        config: Any,
        inputs: Sequence[Input],
        options: RunOptions,
    ) -> None:
        self.root = root
        self.kind = KINDS[kind]
        self.stage = stage
        self.config = config
        self.inputs = list(inputs)
        self.options = options
        self.finished: Manifest | None = None
        self._identity = json.loads(json.dumps(to_mapping(config, identity_only=True)))
        self._started = time.time()
        self._lock: int | None = None

    # -- claim ----------------------------------------------------------------------------------------------

    @property
    def state(self) -> Path:
        """Return the folder for the state of the unfinished run."""
        return self.root / STATE_FOLDER

    def claim(self) -> None:
        """Take the folder, or find that it is finished already.

        Raises:
            UserError: it holds something else, was made with another configuration or input, or is in use.
        """
        check_separate(
            self.root,
            [source.root / source.files[0].path if self._single(source) else source.root for source in self.inputs],
        )
        if self.root.exists() and not self.root.is_dir():
            raise UserError(f"the output {self.root} is a file", "give a folder")
        ours = self._is_ours()
        if self.root.is_dir() and not ours and any(self.root.iterdir()):
            raise UserError(f"the output {self.root} is not empty and was not made by llmctl", "choose a new folder")
        if self.options.dry_run:
            return
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if not ours:
                self.state.mkdir()
            self._take_lock()
        except OSError as failure:
            raise explain_os_error(failure, self.root) from failure
        if ours and self.options.overwrite:
            self._clear()
        elif (self.root / MANIFEST_NAME).is_file():
            self._check_finished()
        elif (self.state / CLAIM_NAME).is_file():
            self._check_unfinished()
        elif ours:
            self._clear()  # an earlier run was killed while it cleared the folder
        if self.finished is None:
            self._begin()

    def _is_ours(self) -> bool:
        """Tell whether llmctl made the folder; what it did not make is never deleted, not even with --overwrite."""
        if (self.state / LOCK_NAME).is_file() or (self.state / CLAIM_NAME).is_file():
            return True
        if self.state.is_dir() and list(self.root.iterdir()) == [self.state]:
            return True
        try:
            manifest = json.loads((self.root / MANIFEST_NAME).read_bytes())
        except (OSError, ValueError):
            return False
        return isinstance(manifest, dict) and {"kind", "schema_version", "stage", "files"} <= manifest.keys()

    @staticmethod
    def _single(source: Input) -> bool:
        # A raw file given by itself: its folder is not the input.
        return source.manifest is None and len(source.files) == 1 and source.name == source.files[0].path

    def _take_lock(self) -> None:
        self.state.mkdir(exist_ok=True)
        descriptor = os.open(self.state / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(descriptor, 100).decode(errors="replace").strip()
            os.close(descriptor)
            raise UserError(
                f"another llmctl run writes to {self.root}" + (f" ({owner})" if owner else ""),
                "wait for it to end, or choose another output folder",
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {platform.node()}".encode(), 0)
        self._lock = descriptor

    def _clear(self) -> None:
        # The manifest goes first: a kill from now on leaves an unfinished folder, not a damaged one.
        (self.root / MANIFEST_NAME).unlink(missing_ok=True)
        for path in self.root.iterdir():
            if path == self.state:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        self._clear_state()

    def _clear_state(self) -> None:
        for path in self.state.iterdir():
            if path.name == LOCK_NAME:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _check_finished(self) -> None:
        manifest = read_manifest(self.root)
        changes: list[str] = []
        if (manifest.kind, manifest.stage) != (self.kind.name, self.stage):
            changes = [f"stage: {manifest.stage} ({manifest.kind}) → {self.stage} ({self.kind.name})"]
        else:
            changes = differences(self._identity, manifest.config)
            if not changes:
                known = read_run(self.root).get("input_hashes", {})
                described = [self._describe(source, known.get(source.role, {})) for source in self.inputs]
                if not _same_inputs(described, manifest.inputs):
                    changes = ["the input has changed"]
        if not changes:
            self.finished = manifest
            return
        self._refuse_or_clear(f"{self.root} is finished, with another configuration or input", changes)

    def _describe(self, source: Input, known: dict[str, Any]) -> dict[str, Any]:
        source.start_hashing({path: tuple(entry) for path, entry in known.items()} if not self.options.verify else None)
        return source.describe()

    def _check_unfinished(self) -> None:
        try:
            claim = json.loads((self.state / CLAIM_NAME).read_bytes())
        except ValueError:
            claim = None
        if not isinstance(claim, dict):
            self._clear()
            return
        changes = []
        if claim.get("stage") != self.stage:
            changes = [f"stage: {claim.get('stage')} → {self.stage}"]
        else:
            changes = differences(self._identity, claim.get("config", {}))
            if claim.get("tool_version") != llmctl.__version__:
                changes.append(f"llmctl: {claim.get('tool_version')} → {llmctl.__version__}")
            if not changes and claim.get("inputs") != self._input_list():
                changes = ["the list of input files has changed"]
        if changes:
            self._refuse_or_clear(f"{self.root} holds an unfinished run with another configuration or input", changes)
        else:
            remove_leftovers(self.root)

    def _refuse_or_clear(self, problem: str, changes: list[str]) -> None:
        shown = "; ".join(changes[:5]) + ("; …" if len(changes) > 5 else "")
        if self.options.if_changed == "overwrite":
            console.info(f"{self.root}: starting anew ({shown})")
            self._clear()
            return
        raise UserError(f"{problem} ({shown})", "use --overwrite to start anew, or give another output folder")

    def _input_list(self) -> list[Any]:
        return [
            [
                source.role,
                source.kind,
                source.manifest.fingerprint if source.manifest else "",
                [[printable_path(file.path), file.bytes] for file in source.files],
            ]
            for source in self.inputs
        ]

    def _begin(self) -> None:
        write_json(
            self.state,
            CLAIM_NAME,
            {
                "stage": self.stage,
                "kind": self.kind.name,
                "config": self._identity,
                "tool_version": llmctl.__version__,
                "inputs": self._input_list(),
            },
        )
        for source in self.inputs:
            source.start_hashing()

    # -- units of work ------------------------------------------------------------------------------------------

    def load_unit(self, name: str) -> dict[str, Any] | None:
        """Return the record of a finished unit of work, or None if it is missing, or its files are not there whole."""
        path = self.state / UNITS_FOLDER / f"{name}.json"
        try:
            unit = json.loads(path.read_bytes())
            for item in unit["files"]:
                if (self.root / item["path"]).stat().st_size != item["bytes"]:
                    return None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return unit

    def save_unit(self, name: str, unit: dict[str, Any], files: Sequence[FileRecord]) -> None:
        """Record a finished unit: its files are on disk already, so a kill from now on does not lose it."""
        write_json(self.state, f"{UNITS_FOLDER}/{name}.json", {**unit, "files": [file.to_mapping() for file in files]})

    # -- end ----------------------------------------------------------------------------------------------------

    def write_json(self, relative: str, value: Any) -> FileRecord:
        """Write a JSON file of the payload."""
        return write_json(self.root, relative, value)

    def finish(self, files: Sequence[FileRecord], statistics: dict[str, Any]) -> Manifest:
        """Write config, run record and, last, the manifest; then drop the state of the run.

        Args:
            files: every file of the payload.
            statistics: what the manifest tells; only values that are equal for equal runs.
        """
        described = [source.describe() for source in self.inputs]
        if self.options.executor == "ray":
            remove_leftovers(self.root)  # of workers that died and whose units others did again
        config_file = write_file(self.root, CONFIG_NAME, to_yaml(self.config).encode())
        write_json(self.root, RUN_NAME, self._run_record())
        manifest = Manifest(
            kind=self.kind.name,
            stage=self.stage,
            config=self._identity,
            inputs=described,
            files=[*files, config_file] if _all_identity(self.config) else list(files),
            statistics=statistics,
            schema_version=self.kind.schema_version,
            tool_version=llmctl.__version__,
        )
        manifest.write(self.root)
        self.finished = manifest
        self.drop_state()
        return manifest

    def _run_record(self) -> dict[str, Any]:
        def stamp(seconds: float) -> str:
            return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")

        return {
            "host": platform.node(),
            "python": sys.version.split()[0],
            "started": stamp(self._started),
            "ended": stamp(time.time()),
            "duration_s": round(time.time() - self._started, 3),
            "workers": self.options.num_workers,
            "executor": self.options.executor,
            "inputs": {
                source.role: str(source.root / source.name if self._single(source) else source.root)
                for source in self.inputs
            },
            "input_hashes": {source.role: source.known_hashes() for source in self.inputs if source.manifest is None},
        }

    def drop_state(self) -> None:
        """Delete the state of a finished run."""
        shutil.rmtree(self.state, ignore_errors=True)

    def release(self) -> None:
        """Give up the claim; what is written stays."""
        if self._lock is not None:
            # A claim on a finished folder that was refused leaves the folder as it was.
            if self.finished is not None or (self.root / MANIFEST_NAME).is_file():
                self.drop_state()
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Output:
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *exception: object) -> None:
        # A mistake that was told before any work was done must not stand in the way of the command put right.
        if kind is not None and issubclass(kind, UserError) and self._nothing_done():
            self.drop_state()
            with contextlib.suppress(OSError):
                self.root.rmdir()
        self.release()

    def _nothing_done(self) -> bool:
        """Tell whether the folder holds the claim of this run and nothing else."""
        if self._lock is None or self.finished is not None:
            return False
        inside = {path.name for path in self.root.iterdir()}
        return inside == {STATE_FOLDER} and {path.name for path in self.state.iterdir()} <= {LOCK_NAME, CLAIM_NAME}


def _same_inputs(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> bool:
    def key(entry: dict[str, Any]) -> tuple[Any, ...]:
        return entry.get("role"), entry.get("kind"), entry.get("fingerprint")

    return [key(entry) for entry in ours] == [key(entry) for entry in theirs]


def _all_identity(config: Any) -> bool:
    # config.yaml may differ between equal runs when some fields do not count; then it is no payload.
    return bool(to_mapping(config) == to_mapping(config, identity_only=True))


def open_output(
    output: Path | str,
    *,
    kind: str,
    stage: str,
    config: Any,
    inputs: Sequence[Input],
    options: RunOptions | None = None,
) -> Output:
    """Claim an output folder for a stage; `Output.finished` is its manifest if there is nothing left to do.

    Raises:
        UserError: the folder overlaps an input, holds something else, or was made with another configuration.
        RunFailed: the disk is full.
    """
    options = options or RunOptions()
    # Workers on other machines have other working folders.
    root = Path(output).absolute() if options.executor == "ray" else Path(output)
    claimed = Output(root, kind, stage, config, inputs, options)
    try:
        claimed.claim()
    except BaseException:
        claimed.release()
        raise
    if claimed.finished is not None:
        console.info(f"{output} is up to date")
    return claimed


def require_space(folder: Path, needed_bytes: int) -> None:
    """Refuse to begin what cannot fit on the disk.

    Raises:
        RunFailed: less than `needed_bytes` are free.
    """
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise RunFailed(
            f"{folder} has {free / 1e6:,.1f} MB free, and {needed_bytes / 1e6:,.1f} MB are needed",
            "free some space and run the same command again",
        )

"""Read what each stage of a chain did, from its manifest, run record and logs alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmctl.artifacts.manifest import Manifest, read_manifest, read_run
from llmctl.errors import UserError
from llmctl.report.logs import curve, last_of_each_step, read_log

Points = list[tuple[float, float]]
# Names under which a statistic may say what a model that only knows how often each token occurs would need.
UNIGRAM_KEYS = ("unigram_bits_per_byte", "unigram_entropy_bits_per_byte")
MAX_LISTED_SAMPLES = 20


@dataclass
class StageSummary:
    """What one stage did.

    Attributes:
        name: the command, with its part where it has one (``rlhf ppo``).
        problem: why the folder could not be read; everything else is empty then.
        records: ``in``, ``kept``, ``removed``, ``invalid``; empty for stages without.
        reasons: removed records by deciding reason.
        bytes: size of the payload.
        duration_s: wall-clock time; None if unknown.
        metrics, validation: rows of the logs, one a step.
        findings: of a diagnosis.
        samples: ``prompt``, ``before``, ``after``.
    """

    folder: Path
    name: str
    kind: str = ""
    problem: str | None = None
    records: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    duration_s: float | None = None
    statistics: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    validation: list[dict[str, Any]] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)
    samples: list[dict[str, str]] = field(default_factory=list)

    @property
    def is_training(self) -> bool:
        """Tell whether the stage trained a model."""
        return bool(self.metrics)

    @property
    def is_reinforcement(self) -> bool:
        """Tell whether the stage maximised a reward."""
        return any("reward_mean" in row for row in self.metrics[:1])

    def points(self, key: str) -> Points:
        """Return the curve of a training quantity."""
        return curve(self.metrics, key)

    def validation_points(self, key: str) -> Points:
        """Return the curve of a validation quantity."""
        return curve(self.validation, key)

    def number(self, *keys: str) -> float | None:
        """Return the first of some statistics that is a number, wherever in the manifest's statistics it stands."""
        for key in keys:
            found = _find(self.statistics, key)
            if found is not None:
                return found
        return None


def read_chain(folders: Sequence[Path]) -> list[StageSummary]:
    """Read each folder of a chain; one that cannot be read is told in its `problem`."""
    return [read_stage(Path(folder)) for folder in folders]


def read_stage(folder: Path) -> StageSummary:
    """Read one folder."""
    try:
        manifest = read_manifest(folder)
    except UserError as failure:
        return StageSummary(folder, folder.name, problem=failure.problem)
    summary = StageSummary(folder, stage_name(manifest), manifest.kind, statistics=manifest.statistics)
    summary.config = manifest.config
    summary.bytes = sum(record.bytes for record in manifest.files)
    summary.records = _counts(manifest.statistics.get("records"))
    summary.reasons = _counts(manifest.statistics.get("by_reason"))
    duration = read_run(folder).get("duration_s")
    summary.duration_s = float(duration) if isinstance(duration, (int, float)) else None
    summary.metrics = last_of_each_step(read_log(folder / "metrics.jsonl").rows)
    # A line with a `set` is of another text than the stage's own.
    own = [row for row in read_log(folder / "validation.jsonl").rows if not row.get("set")]
    summary.validation = last_of_each_step(own)
    found = manifest.statistics.get("findings")
    summary.findings = [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
    summary.samples = read_samples(folder)
    return summary


def stage_name(manifest: Manifest) -> str:
    """Return a stage's name; the part of `rlhf` is told where the manifest has it elsewhere."""
    part = manifest.config.get("method") or manifest.config.get("algorithm")
    return f"{manifest.stage} {part}" if manifest.stage == "rlhf" and part else manifest.stage


def _counts(value: Any) -> dict[str, int]:
    if not isinstance(value, Mapping):
        return {}
    return {str(key): count for key, count in value.items() if isinstance(count, int) and not isinstance(count, bool)}


def _find(value: Any, key: str) -> float | None:
    if isinstance(value, Mapping):
        direct = value.get(key)
        if isinstance(direct, (int, float)) and not isinstance(direct, bool):
            return float(direct)
        for inner in value.values():
            if isinstance(inner, Mapping):
                found = _find(inner, key)
                if found is not None:
                    return found
    return None


def read_samples(folder: Path) -> list[dict[str, str]]:
    """Read samples: ``samples.json`` (prompt, before, after), or ``samples.jsonl`` (prompt, when, response)."""
    rows: Any = None
    try:
        rows = json.loads((folder / "samples.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        rows = None
    if not isinstance(rows, list):
        rows = _paired(read_log(folder / "samples.jsonl").rows)
    samples = []
    for row in rows[:MAX_LISTED_SAMPLES]:
        if isinstance(row, Mapping) and "prompt" in row:
            samples.append({key: str(row.get(key, "")) for key in ("prompt", "before", "after")})
    return samples


def _paired(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Put the answers from before and after beside each other, in order of the prompts."""
    before = [row for row in rows if row.get("when") == "before"]
    after = [row for row in rows if row.get("when") == "after"]
    pairs = zip(before, after, strict=False)
    return [
        {"prompt": first.get("prompt"), "before": first.get("response"), "after": second.get("response")}
        for first, second in pairs
        if first.get("prompt") == second.get("prompt")
    ]

"""The chain as a short table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmctl.report.chain import Points, StageSummary, read_chain
from llmctl.report.markup import duration, number, size

CHAIN_COLUMNS = ("stage", "in", "kept", "removed", "invalid", "time", "size", "result")


def chain_rows(folders: Sequence[Path | str]) -> list[list[Any]]:
    """Return a row (`CHAIN_COLUMNS`) for each stage's folder; counts are None where a stage has none."""
    return [chain_row(stage) for stage in read_chain([Path(folder) for folder in folders])]


def chain_row(stage: StageSummary) -> list[Any]:
    """Return the row of one stage."""
    counts = [stage.records.get(key) for key in ("in", "kept", "removed", "invalid")]
    if stage.problem is not None:
        return [stage.name, *counts, None, None, stage.problem]
    return [stage.name, *counts, duration(stage.duration_s), size(stage.bytes), outcome(stage)]


def outcome(stage: StageSummary) -> str:
    """Return what a stage came to, in a few words with its main numbers."""
    if stage.is_reinforcement:
        name = "score_mean" if stage.points("score_mean") else "reward_mean"
        parts = [_change("reward", stage.points(name))]
        kl = stage.points("kl")
        parts += [f"KL {number(_late(kl), 3)}"] if kl else []
        return ", ".join(part for part in parts if part)
    if stage.is_training:
        parts = [_change("loss", stage.points("loss"))]
        bits = stage.validation_points("bits_per_byte")
        if bits:
            parts.append(f"{number(bits[-1][1], 3)} bits per byte on validation text")
        elif stage.validation_points("loss"):
            parts.append(_change("validation loss", stage.validation_points("loss")))
        accuracy = stage.validation_points("accuracy")
        if accuracy:
            parts.append(f"accuracy {number(accuracy[-1][1], 3)}")
        return ", ".join(part for part in parts if part)
    if stage.kind == "report":
        count = len(stage.findings)
        return "no findings" if not count else f"{count} finding{'s' if count > 1 else ''}"
    parts = []
    tokens = stage.number("tokens", "num_tokens")
    if tokens is not None:
        parts.append(f"{int(tokens):,} tokens")
    if stage.reasons:
        reason, count = max(stage.reasons.items(), key=lambda item: item[1])
        parts.append(f"most removed by {reason} ({count:,})")
    return ", ".join(parts)


def ends(points: Points) -> tuple[float, float]:
    """Return the mean of the first and of the last few values of a noisy curve (a twentieth of it, at least one)."""
    count = max(1, len(points) // 20)
    values = [value for _, value in points]
    return sum(values[:count]) / count, sum(values[-count:]) / count


def _late(points: Points) -> float:
    return ends(points)[1]


def _change(name: str, points: Points) -> str:
    if not points:
        return ""
    first, last = ends(points)
    return f"{name} {number(first, 3)} → {number(last, 3)}"

"""What a run was really given: a line a step from every replica, and what they add up to.

    samples/replica-0003.jsonl: {"step": 7, "columns": {"code": 2, ...}, "tokens": {"github": 4096, ...}}

With `--log-samples` a line also has `rows`: [number, column, epoch, place in the epoch] of each sample.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmctl.loading.loader import Samples
from llmctl.loading.mixture import MixturePlan
from llmctl.training.records import JsonLines

SAMPLES_FOLDER = "samples"


class SampleLog:
    """The lines of one replica.

    Args:
        root: the run's folder.
        rows: write every sample, not only counts.
    """

    def __init__(self, root: Path, replica: int, columns: Sequence[str], sources: Sequence[str], rows: bool) -> None:
        self.folder, self.columns, self.sources, self.with_rows = root / SAMPLES_FOLDER, columns, sources, rows
        self._lines = JsonLines(self.folder / f"replica-{replica:04d}.jsonl")

    def cut_after(self, step: int, *, others_from: int | None = None) -> None:
        """Drop lines of later steps: they will be written again, or were never trained on.

        Args:
            others_from: also cut the files of replicas from this one on, which an earlier start of the run had.
        """
        self._lines.close()
        self._lines.cut_after(step)
        if others_from is not None:
            for path in self.folder.glob("replica-*.jsonl"):
                if int(path.stem.rpartition("-")[2]) >= others_from:
                    JsonLines(path).cut_after(step)

    def add(self, step: int, samples: Samples, source_tokens: np.ndarray) -> None:
        """Write what the replica is given in a step."""
        counts = np.bincount(samples.columns, minlength=len(self.columns))
        line: dict[str, Any] = {
            "step": step,
            "columns": {name: int(count) for name, count in zip(self.columns, counts, strict=True) if count},
            "tokens": {name: int(count) for name, count in zip(self.sources, source_tokens, strict=True) if count},
        }
        if self.with_rows:
            line["rows"] = samples.rows()
        self._lines.write(line)

    def close(self) -> None:
        """Close the file."""
        self._lines.close()


def read_lines(root: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of all replicas."""
    for path in sorted((root / SAMPLES_FOLDER).glob("replica-*.jsonl")):
        for line in path.read_bytes().splitlines():
            yield json.loads(line)


def realized(root: Path, plan: MixturePlan) -> dict[str, Any]:
    """Add up what a run was given: samples of each column by phase, and tokens of each source."""
    by_phase = [dict.fromkeys(plan.columns, 0) for _ in plan.phases]
    tokens: dict[str, int] = {}
    for line in read_lines(root):
        for index, phase in enumerate(plan.phases):
            if phase.first_step <= line["step"] < phase.first_step + phase.steps:
                for name, count in line["columns"].items():
                    by_phase[index][name] += count
        for name, count in line["tokens"].items():
            tokens[name] = tokens.get(name, 0) + count
    return {"phases": by_phase, "tokens_by_source": dict(sorted(tokens.items()))}

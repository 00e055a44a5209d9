"""Simulated runs: healthy ones that look like real logs, for rules to be silent on and for faults to be put into."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmctl.diagnosis.columns import columns_of
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding
from llmctl.diagnosis.registry import build_rule, lacking

Rows = list[dict[str, Any]]


def warmup_cosine(steps: int, peak: float, warmup: int) -> np.ndarray:
    """Learning rates of a linear warm-up and a cosine decay to a tenth."""
    index = np.arange(1, steps + 1)
    cosine = 0.1 + 0.45 * (1 + np.cos(np.pi * np.clip((index - warmup) / max(steps - warmup, 1), 0, 1)))
    return peak * np.where(index <= warmup, index / max(warmup, 1), cosine)


@dataclass
class Simulated:
    """A run as columns over steps 1…n, to be changed by a test before it becomes evidence."""

    columns: dict[str, np.ndarray]
    validation: dict[str, np.ndarray] = field(default_factory=dict)
    ranks: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    restarts: list[int] = field(default_factory=list)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def __setitem__(self, name: str, values: np.ndarray) -> None:
        self.columns[name] = values

    @property
    def num_steps(self) -> int:
        return len(self.columns["step"])

    def rows(self) -> Rows:
        return _rows(self.columns)

    def evidence(self) -> Evidence:
        evidence = Evidence(Path("run"), "llmctl", columns_of(self.rows()), config=self.config, restarts=self.restarts)
        if self.validation:
            evidence.validation["validation"] = columns_of(_rows(self.validation))
        evidence.ranks = {rank: columns_of(_rows(columns)) for rank, columns in self.ranks.items()}
        return evidence

    def write(self, folder: Path) -> Path:
        """Write the run as a folder of logs."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in self.rows()))
        if self.validation:
            lines = "".join(json.dumps(row) + "\n" for row in _rows(self.validation))
            (folder / "validation.jsonl").write_text(lines)
        for rank, columns in self.ranks.items():
            (folder / "events").mkdir(exist_ok=True)
            lines = "".join(json.dumps(row) + "\n" for row in _rows(columns))
            (folder / "events" / f"rank-{rank}.jsonl").write_text(lines)
        return folder


def _rows(columns: dict[str, np.ndarray]) -> Rows:
    names = list(columns)
    table = zip(*(columns[name].tolist() for name in names), strict=True)
    return [
        {name: int(value) if name == "step" else value for name, value in zip(names, row, strict=True)} for row in table
    ]


def pretraining(
    steps: int = 400,
    seed: int = 0,
    *,
    noise: float = 0.03,
    start: float = 9.1,
    end: float = 3.2,
    peak: float = 3e-4,
    warmup: int | None = None,
    tail: float = 0.0,
) -> Simulated:
    """A healthy pretraining run: a power law with noise, warm-up and cosine, timings with pauses and a slow first step.

    Args:
        noise: standard deviation of the loss, relative.
        tail: weight of a heavy upper tail in the noise (small batches).
    """
    random = np.random.default_rng(seed)
    warmup = max(1, steps // 20) if warmup is None else warmup
    index = np.arange(1, steps + 1)
    lr = warmup_cosine(steps, peak, warmup)
    progress = np.cumsum(lr) / peak
    clean = end + (start - end) * (1 + progress / 6) ** -0.9
    loss = clean * np.exp(noise * random.standard_normal(steps) + tail * random.exponential(0.1, steps))
    norm = (0.6 + 1.5 * np.exp(-progress / 15)) * np.exp(0.2 * random.standard_normal(steps))
    compute = 0.9 + 0.01 * random.standard_normal(steps)
    data = 0.01 * np.exp(0.4 * random.standard_normal(steps))
    talk = 0.05 * np.exp(0.1 * random.standard_normal(steps))
    update = 0.04 + 0.001 * random.standard_normal(steps)
    whole = compute + data + talk + update + 0.005
    whole[0] += 8.0  # compilation
    whole[index % 100 == 0] += 1.2  # a checkpoint
    memory = np.minimum(8e9 * (1 + 0.2 * (1 - np.exp(-index / 4))), 9.5e9)
    columns = {
        "step": index,
        "loss": loss,
        "grad_norm": norm,
        "lr": lr,
        "tokens": index * 65536,
        "step_time_s": whole,
        "tokens_per_s": 65536 / whole,
        "data_time_s": data,
        "forward_s": compute / 3,
        "backward_s": compute * 2 / 3,
        "communication_s": talk,
        "update_s": update,
        "memory_bytes": memory,
    }
    every = max(1, steps // 12)
    at = index[every - 1 :: every]
    validation = {"step": at, "loss": clean[at - 1] * 1.02 + 0.004 * random.standard_normal(len(at))}
    return Simulated(columns, validation, config={"max_grad_norm": 1.0, "model.vocab_size": 16000})


def reinforcement(steps: int = 80, seed: int = 0) -> Simulated:
    """A healthy PPO run: the reward rises and flattens, KL grows slowly, entropy falls by a third, lengths stay."""
    random = np.random.default_rng(seed)
    index = np.arange(1, steps + 1)
    progress = 1 - np.exp(-index / (steps / 3))
    return Simulated(
        {
            "step": index,
            "loss": 0.05 * random.standard_normal(steps),
            "grad_norm": np.exp(0.3 * random.standard_normal(steps)),
            "lr": np.full(steps, 1e-5),
            "reward_mean": -0.2 + 1.4 * progress + 0.15 * random.standard_normal(steps),
            "kl": 6 * progress * (1 + 0.15 * random.standard_normal(steps)) + 0.05 * random.standard_normal(steps),
            "entropy": 2.4 - 0.8 * progress + 0.05 * random.standard_normal(steps),
            "response_length": 60 + 6 * progress + 3 * random.standard_normal(steps),
            "distinct_2": 0.8 - 0.1 * progress + 0.02 * random.standard_normal(steps),
            "step_time_s": 3 + 0.1 * random.standard_normal(steps),
        }
    )


def several_ranks(run: Simulated, ranks: int = 4, seed: int = 0) -> Simulated:
    """Give a run the events of ranks that exchange gradients during the backward pass: the fast ones wait there."""
    random = np.random.default_rng(seed + 1000)
    steps = run.num_steps
    own = {rank: 0.3 * np.exp(0.02 * random.standard_normal(steps)) for rank in range(ranks)}
    _exchange(run, own, random)
    return run


def _exchange(run: Simulated, forward: dict[int, np.ndarray], random: np.random.Generator, talk: float = 0.05) -> None:
    steps = run.num_steps
    backward = {rank: 2 * values for rank, values in forward.items()}
    arrival = {rank: forward[rank] + backward[rank] for rank in forward}
    latest = np.max(list(arrival.values()), axis=0)
    for rank in forward:
        wait = latest - arrival[rank]
        exchange = talk * np.exp(0.05 * random.standard_normal(steps))
        update = 0.04 * np.exp(0.05 * random.standard_normal(steps))
        data = 0.005 * np.exp(0.3 * random.standard_normal(steps))
        run.ranks[rank] = {
            "step": run["step"],
            "data_time_s": data,
            "forward_s": forward[rank],
            "backward_s": backward[rank] + wait,
            "communication_s": exchange,
            "update_s": update,
            "step_time_s": data + latest + exchange + update,
        }


@pytest.fixture
def make_pretraining() -> Callable[..., Simulated]:
    return pretraining


@pytest.fixture
def make_reinforcement() -> Callable[..., Simulated]:
    return reinforcement


@pytest.fixture
def give_ranks() -> Callable[..., Simulated]:
    return several_ranks


@pytest.fixture
def exchange() -> Callable[..., None]:
    return _exchange


@pytest.fixture
def judge() -> Callable[..., list[Finding]]:
    """Return what a rule finds in a run; the run must have logged what the rule needs."""

    def check(rule: str, run: Simulated | Evidence, **thresholds: Any) -> list[Finding]:
        evidence = run.evidence() if isinstance(run, Simulated) else run
        built = build_rule(rule, thresholds)
        assert lacking(built, evidence) == []
        return built.check(evidence)

    return check

"""What a rule has found: evidence, cause and fix, in order of how bad it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Severity(str, Enum):
    """How bad a finding is."""

    CRITICAL = "critical"  # the run is lost or its result cannot be trusted
    WARNING = "warning"  # the run goes on and is worse or slower than it should be

    @property
    def order(self) -> int:
        """Return 0 for the worst."""
        return list(Severity).index(self)


@dataclass(frozen=True)
class Finding:
    """One fault of a run.

    Attributes:
        rule: the name of the rule's file.
        step: where it begins; None if it holds for the whole run.
        evidence: one sentence with the measured numbers and what they were compared with.
        cause: what most likely brought it about, as far as the evidence tells it from its look-alikes.
        fix: a change of the configuration, or a command.
        rank, layer, module, link: where it is, if the evidence tells.
        values: the numbers of `evidence`, for programs.
    """

    rule: str
    severity: Severity
    step: int | None
    evidence: str
    cause: str
    fix: str
    rank: int | None = None
    layer: int | None = None
    module: str | None = None
    link: str | None = None
    values: dict[str, float] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """Return the place in words: ``step 300, rank 2``."""
        parts = [f"step {self.step:,}"] if self.step is not None else []
        parts += [f"rank {self.rank}"] if self.rank is not None else []
        parts += [f"layer {self.layer}"] if self.layer is not None else []
        parts += [self.module] if self.module else []
        parts += [f"link {self.link}"] if self.link else []
        return ", ".join(parts) or "whole run"

    def to_mapping(self) -> dict[str, Any]:
        """Return the finding as it stands in ``--json``; places that do not apply are left out."""
        mapping: dict[str, Any] = {
            "rule": self.rule,
            "severity": self.severity.value,
            "step": self.step,
            "evidence": self.evidence,
            "cause": self.cause,
            "fix": self.fix,
        }
        for name in ("rank", "layer", "module", "link"):
            if getattr(self, name) is not None:
                mapping[name] = getattr(self, name)
        mapping["values"] = {key: float(value) for key, value in self.values.items()}
        return mapping


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings by severity, then by step, then by name."""
    return sorted(
        findings,
        key=lambda finding: (finding.severity.order, -1 if finding.step is None else finding.step, finding.rule),
    )

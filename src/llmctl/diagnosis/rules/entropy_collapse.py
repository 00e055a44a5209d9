"""The policy gives the same answer again and again.

Signal: the entropy of the policy ends below a fifth of what it was in the first steps and below half a nat, or the
share of distinct n-grams in its responses falls below four tenths of it, and it stays there.

Look-alikes: entropy that falls by half is what learning looks like; a single low batch; a model that was
sharp from the start.

Cause: too many or too large updates on the same responses, a weak KL penalty, sampling at a low temperature, a
reward that a few phrases satisfy.

Fix: raise the KL coefficient or add an entropy bonus, lower the learning rate, one epoch per batch, sample at
temperature 1.

Source: Cui et al. 2025 (arXiv 2505.22617: reward is traded for entropy, and stops when it is spent).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from llmctl.config.schema import Opt
from llmctl.diagnosis.columns import Series
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding, Severity

DIVERSITY = ("distinct_2", "distinct_n", "distinct_1", "diversity")


@dataclass
class Rule:
    """The policy gives the same answer again and again."""

    needs: ClassVar[tuple[str, ...]] = ("entropy|distinct_2|distinct_n|distinct_1|diversity", "reward_mean")

    entropy_ratio: Annotated[float, Opt("Entropy below this share of the start's has collapsed.", min=0, max=1)] = 0.2
    entropy_limit: Annotated[float, Opt("Entropy above this many nats per token has not.", min=0)] = 0.5
    diversity_ratio: Annotated[
        float, Opt("Share of distinct n-grams below this share of the start's.", min=0, max=1)
    ] = 0.4
    min_steps: Annotated[int, Opt("Fewest steps to judge.", min=6)] = 10

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report an entropy or a diversity that is spent."""
        findings = []
        entropy = self._fall(evidence.series("entropy"))
        if entropy and entropy[1] < self.entropy_ratio * entropy[0] and entropy[1] < self.entropy_limit:
            findings.append(self._finding("entropy", evidence.series("entropy"), entropy))
        for name in DIVERSITY:
            series = evidence.series(name)
            fall = self._fall(series)
            if fall and fall[1] < self.diversity_ratio * fall[0]:
                findings.append(self._finding(name, series, fall))
                break
        return findings[:1]

    def _fall(self, series: Series) -> tuple[float, float] | None:
        if len(series) < self.min_steps:
            return None
        start, end = float(np.median(series.values[:5])), float(np.median(series.values[-5:]))
        return (start, end) if start > 0 else None

    def _finding(self, name: str, series: Series, fall: tuple[float, float]) -> Finding:
        start, end = fall
        low = series.values < (start + end) / 2
        step = int(series.steps[int(np.argmax(low))])
        return Finding(
            rule="entropy_collapse",
            severity=Severity.WARNING,
            step=step,
            evidence=f"{name} falls from {start:.3g} to {end:.3g} ({100 * end / start:.0f} % of the start)",
            cause="the policy has settled on a few answers: updates too large, KL penalty too weak",
            fix="raise --kl-coef, lower --lr, take one pass over each batch, sample at temperature 1",
            values={"start": start, "end": end},
        )

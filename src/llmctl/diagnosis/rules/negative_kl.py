"""The KL divergence from the reference is negative.

Signal: the mean of the logged KL over the last half of the run lies below zero by four standard errors and by a
margin.

Look-alikes: single steps below zero are the noise of the estimator log p − log q, whose mean is the divergence; at the
start, where policy and reference are the same, it scatters around zero.

Cause: the responses are not samples of the policy whose probabilities are taken: sampling with top-k, top-p or a
temperature that the log-probabilities do not know, padding counted as text, dropout on while scoring, or a stale
policy.

Fix: sample with top-k 0, top-p 1 and the same temperature as in scoring; mask by length; score in evaluation
mode.

Source: trl issues 235 and 925 (a batch mean that stays below −0.5 means wrong sampling or masks).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from llmctl.config.schema import Opt
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding, Severity
from llmctl.diagnosis.statistics import mean_and_error


@dataclass
class Rule:
    """The KL divergence from the reference is negative."""

    needs: ClassVar[tuple[str, ...]] = ("kl", "reward_mean")

    margin: Annotated[float, Opt("Least distance below zero, in nats.", min=0)] = 0.02
    critical: Annotated[float, Opt("Distance below zero, in nats, that proves wrong sampling or masks.", min=0)] = 0.5
    errors: Annotated[float, Opt("Least distance below zero in standard errors.", min=0)] = 4.0
    min_steps: Annotated[int, Opt("Fewest steps to judge.", min=4)] = 8

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report a KL whose mean is below zero."""
        kl = evidence.series("kl")
        late = kl.tail(0.5)
        if len(kl) < self.min_steps or len(late) < 4:
            return []
        mean, error = mean_and_error(late.values)
        if mean > -self.margin or mean + self.errors * error > 0:
            return []
        below = kl.steps[kl.values < 0]
        return [
            Finding(
                rule="negative_kl",
                severity=Severity.CRITICAL if mean < -self.critical else Severity.WARNING,
                step=int(below[0]) if len(below) else int(late.steps[0]),
                evidence=f"KL is {mean:.3g} ± {error:.2g} nats over the last {len(late)} steps; a divergence is never "
                "negative",
                cause="the responses are not samples of the scored policy: top-k, top-p or temperature in sampling "
                "only, padding counted as text, dropout while scoring, or a stale policy",
                fix="sample with top-k 0, top-p 1 and one temperature for sampling and scoring; mask by length; score "
                "in evaluation mode",
                values={"kl_mean": mean, "standard_error": error},
            )
        ]

"""The policy exploits the reward model instead of answering better.

Signal: the reward rises, and at the same time a witness speaks against it: a held-out reward falls; or at least two of
these: responses become much longer or much shorter, their diversity falls by half, the entropy collapses, more and more
of them do not end, the KL divergence from the reference runs away at an ever faster pace.

Look-alikes: a reward that rises while KL stays moderate and lengths keep is success; a KL that grows in
proportion is the price of it; responses that stop earlier because the policy learns to end are
shorter, but one witness alone is no proof.

Cause: the reward model likes something that people do not (length, a phrase, repetition), and the KL penalty is too
weak to keep the policy where the reward model was trained.

Fix: raise the KL coefficient, stop at the step before the witness turned, and train the reward model on
samples of this policy.

Source: Gao et al. 2022 (arXiv 2210.10760: the true reward peaks and falls as KL grows, the proxy goes on rising);
Singhal et al. 2023 (arXiv 2310.03716: length).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from llmctl.config.schema import Opt
from llmctl.diagnosis.columns import Series
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding, Severity
from llmctl.diagnosis.statistics import mean_and_error, trend_of

# Rewards that the policy is not trained on, in the order in which they are trusted.
HELD_OUT = ("validation_reward_mean", "reward_validation", "gold_reward_mean", "held_out_reward_mean")
DIVERSITY = ("distinct_2", "distinct_n", "distinct_1", "diversity")


@dataclass
class Rule:
    """The policy exploits the reward model instead of answering better."""

    needs: ClassVar[tuple[str, ...]] = ("reward_mean",)

    rise: Annotated[float, Opt("Least rise of the reward in standard errors.", min=0)] = 4.0
    length_ratio: Annotated[float, Opt("Responses drift from this ratio of their length at the start.", min=1)] = 1.6
    diversity_ratio: Annotated[float, Opt("Diversity falls below this share of the start's.", min=0, max=1)] = 0.5
    entropy_ratio: Annotated[float, Opt("Entropy falls below this share of the start's.", min=0, max=1)] = 0.3
    kl_limit: Annotated[float, Opt("KL per response, in nats, that counts as a runaway if it accelerates.", min=0)] = (
        15.0
    )
    min_steps: Annotated[int, Opt("Fewest steps to judge.", min=6)] = 12

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report a rising reward with witnesses against it."""
        # The score is what the reward model says; `reward_mean` may have the KL penalty taken off.
        reward = evidence.series("score_mean" if "score_mean" in evidence.metrics else "reward_mean")
        if len(reward) < self.min_steps:
            return []
        start, end = self._ends(reward)
        error = self._error(reward)
        if end - start < self.rise * error:
            return []
        held_out = self._held_out(evidence)
        witnesses = self._witnesses(evidence)
        if held_out is None and len(witnesses) < 2:
            return []
        step, told = held_out or witnesses[0]
        told_all = ([told] if held_out else []) + [text for _, text in witnesses]
        coefficient = evidence.number("kl_coef")
        raise_to = f"--kl-coef {2 * coefficient:g}" if coefficient else "a larger KL coefficient"
        return [
            Finding(
                rule="reward_hacking",
                severity=Severity.CRITICAL if held_out else Severity.WARNING,
                step=step,
                evidence=f"the reward rises from {start:.3g} to {end:.3g}, while {', '.join(told_all)}",
                cause="the policy has left the texts that the reward model can judge, and exploits it",
                fix=f"take the policy from before step {step}; train on with {raise_to}, and give the reward model "
                "samples of this policy",
                values={"reward_start": start, "reward_end": end},
            )
        ]

    def _ends(self, series: Series) -> tuple[float, float]:
        count = max(3, len(series) // 5)
        return float(np.median(series.values[:count])), float(np.median(series.values[-count:]))

    def _error(self, series: Series) -> float:
        count = max(3, len(series) // 5)
        errors = [mean_and_error(part, 3)[1] for part in (series.values[:count], series.values[-count:])]
        return float(np.hypot(errors[0], errors[1])) + 1e-12

    def _held_out(self, evidence: Evidence) -> tuple[int, str] | None:
        candidates = [evidence.series(name) for name in HELD_OUT]
        candidates += [columns.series("reward_mean").finite() for columns in evidence.validation.values()]
        for series in candidates:
            if len(series) < 4:
                continue
            best = int(np.argmax(series.values))
            after = series.values[best + 1 :]
            spread = float(np.std(np.diff(series.values))) / np.sqrt(2)
            if len(after) >= 2 and np.max(after[-2:]) < series.values[best] - max(2 * spread, 1e-9):
                last = float(np.median(after[-3:]))
                return int(
                    series.steps[best]
                ), f"the held-out reward falls from {series.values[best]:.3g} to {last:.3g}"
        return None

    def _witnesses(self, evidence: Evidence) -> list[tuple[int, str]]:
        found = []
        length = evidence.series("response_length")
        if len(length) >= self.min_steps:
            start, end = self._ends(length)
            if start > 0 and not 1 / self.length_ratio < end / start < self.length_ratio:
                step = self._since(length, start, end)
                found.append((step, f"responses go from {start:.0f} to {end:.0f} tokens"))
        falls = [(name, "diversity", self.diversity_ratio) for name in DIVERSITY]
        falls.append(("entropy", "entropy", self.entropy_ratio))
        told = set()
        for name, noun, ratio in falls:
            series = evidence.series(name)
            if len(series) >= self.min_steps and noun not in told:
                start, end = self._ends(series)
                if start > 0 and end < ratio * start:
                    told.add(noun)
                    found.append((self._since(series, start, end), f"{noun} falls from {start:.3g} to {end:.3g}"))
        endless = evidence.series("share_without_eos")
        if len(endless) >= self.min_steps:
            start, end = self._ends(endless)
            if end > 0.5 and end > start + 0.2:
                found.append((self._since(endless, start, end), f"{100 * end:.0f} % of the responses no longer end"))
        kl = evidence.series("kl")
        if len(kl) >= self.min_steps:
            first, second = np.array_split(kl.values, 2)
            early = trend_of(np.arange(len(first), dtype=float), first).slope
            late = trend_of(np.arange(len(second), dtype=float), second).slope
            end = float(np.median(kl.values[-3:]))
            if end > self.kl_limit and late > 1.5 * max(early, 0):
                found.append((int(kl.steps[len(kl) // 2]), f"KL runs away to {end:.3g} nats"))
        return sorted(found)

    def _since(self, series: Series, start: float, end: float) -> int:
        half = (start + end) / 2
        beyond = series.values > half if end > start else series.values < half
        return int(series.steps[int(np.argmax(beyond))])

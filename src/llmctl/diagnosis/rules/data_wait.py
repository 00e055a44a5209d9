"""Training waits for its data.

Signal: the median share of the step's time that is spent waiting for a batch.

Look-alikes: the first steps, which fill caches and start readers, are left out; a wait now and then (a new shard)
does not move the median, and is reported only if such waits add up to the same share of the whole time.
Waiting that grows is `throughput_falling`, with the data as its cause.

Cause: too few reader processes, slow storage, work on each document that should have been done before.

Fix: more reader processes or a larger prefetch; shards on a local disk; tokenize and pack beforehand.

Source: 10 % of the step is where XProf calls a program input-bound (its rule `InputBoundRule`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from llmctl.config.schema import Opt
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding, Severity


@dataclass
class Rule:
    """Training waits for its data."""

    needs: ClassVar[tuple[str, ...]] = ("data_time_s", "step_time_s")

    share: Annotated[float, Opt("Share of the step's time from which waiting is a fault.", min=0, max=1)] = 0.1
    critical_share: Annotated[float, Opt("Share from which it is the main cost.", min=0, max=1)] = 0.5
    min_steps: Annotated[int, Opt("Fewest steps, after the first ones, to judge.", min=3)] = 10

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report waiting that costs a tenth of the time."""
        shares = evidence.share_of_step("data_time_s")
        if len(shares) < self.min_steps:
            return []
        whole = evidence.step_time()
        wait = evidence.steady("data_time_s")
        wait = wait.where(np.isin(wait.steps, shares.steps))
        typical = shares.median()
        overall = float(np.sum(wait.values) / np.sum(whole.values[np.isin(whole.steps, shares.steps)]))
        waits_now_and_then = float(np.mean(shares.values >= self.share))
        if typical < self.share and (overall < self.share or waits_now_and_then < 0.05):
            return []
        share = max(typical, overall)
        how = (
            f"{100 * typical:.0f} % of each step"
            if typical >= self.share
            else f"{100 * overall:.0f} % of the whole time, in {100 * waits_now_and_then:.0f} % of the steps"
        )
        late = int(shares.steps[int(np.argmax(shares.values >= self.share))])
        return [
            Finding(
                rule="data_wait",
                severity=Severity.CRITICAL if share >= self.critical_share else Severity.WARNING,
                step=late,
                evidence=f"waiting for data takes {how} (median {wait.median():.3g} s of {whole.median():.3g} s)",
                cause="batches are not ready when they are needed: slow storage, or too few readers"
                if typical >= self.share
                else "single waits are long: a new shard is opened or shuffled only when it is needed",
                fix="copy the shards to a local disk; read ahead with more reader processes; tokenize beforehand",
                values={"share": share, "median_wait_s": wait.median()},
            )
        ]

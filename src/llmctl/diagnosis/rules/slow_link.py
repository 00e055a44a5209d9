"""A link between hosts lost most of its speed: exchanges take longer on every rank while the work is unchanged.

Signal: bytes sent by a group of ranks over the shortest time that any of them spent exchanging: the rank that arrives
last waits for nobody, so its time is the link's. That bandwidth falls to a fraction of what the same run had before,
at once or in several steps, and exchanging comes to be felt in the step time.

Look-alikes: with a slow rank the *others* exchange longer and that rank shorter, so the shortest time does not change
(`slow_rank`); a job whose links were slow from the beginning has no better past to compare with
(`communication_bound`, and the probe); more bytes a step are no slower link, which is why bandwidth is compared.

Cause: a port, cable or switch that renegotiated to a lower speed, another job on the same link, a rate limit.

Fix: measure every pair of hosts with `llmctl diagnose --probe-network`, which names the pair; then replace the
cable or port, or leave that host out. Until then more accumulation means fewer exchanges.

Source: a job whose step went from 1.2 to 3.5 s because one switch port ran at 100 Mbit/s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from llmctl.config.schema import Opt
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding, Severity
from llmctl.diagnosis.statistics import Array, rolling_median

# The groups of ranks in which something is exchanged, as the columns of the events name them.
GROUPS = {"dp": "gradients over replicas", "tp": "activations of split layers", "pp": "activations between stages"}
FIRST_STEPS = 3
WINDOW = 5


@dataclass(frozen=True)
class _Exchange:
    """One group's exchange by step: bandwidth (bytes/s), the shortest time of any rank (s), and the step's time (s)."""

    steps: NDArray[np.int64]
    bandwidth: Array
    seconds: Array
    step_s: Array


@dataclass
class Rule:
    """A link between hosts lost most of its speed."""

    needs: ClassVar[tuple[str, ...]] = ("ranks", "steps")

    ratio: Annotated[float, Opt("Bandwidth that is left, as a share of the run's own, from which on it counts.")] = 0.5
    share: Annotated[float, Opt("Least share of the step that the exchange takes then.", min=0, max=1)] = 0.15
    min_steps: Annotated[int, Opt("Fewest steps before and after the change.", min=3)] = 6

    def check(self, evidence: Evidence) -> list[Finding]:
        """Report each group whose exchange lost its speed."""
        findings = []
        for group in GROUPS:
            exchange = _exchange_of(evidence, group)
            finding = self._judge(evidence, group, exchange) if exchange is not None else None
            if finding is not None:
                findings.append(finding)
        return findings

    def _judge(self, evidence: Evidence, group: str, exchange: _Exchange) -> Finding | None:
        count = len(exchange.steps)
        if count < 2 * self.min_steps:
            return None
        smooth = rolling_median(exchange.bandwidth, WINDOW)
        # What the link can do is what it did for a while before; a link does not get faster by itself.
        expected = float(np.median(smooth[: max(self.min_steps, count // 10)]))
        slow = smooth < self.ratio * expected
        start = _since(slow, self.min_steps)
        if start is None or start < self.min_steps // 2:
            return None
        late = slice(start, count)
        seconds, step_s = float(np.median(exchange.seconds[late])), float(np.median(exchange.step_s[late]))
        share = seconds / max(step_s, 1e-9)
        before_s = float(np.median(exchange.step_s[:start]))
        # The longer exchange has to explain the longer step.
        if share < self.share or step_s - before_s < 0.5 * (seconds - float(np.median(exchange.seconds[:start]))):
            return None
        last = slice(max(start, count - max(self.min_steps, count // 10)), count)
        found = float(np.median(exchange.bandwidth[last]))
        step = int(exchange.steps[start])
        return Finding(
            rule="slow_link",
            severity=Severity.CRITICAL if share >= 0.5 else Severity.WARNING,
            step=step,
            evidence=f"exchanging {GROUPS[group]} runs at {_speed(found)} since step {step}, where {_speed(expected)} "
            f"were reached before; it takes {100 * share:.0f} % of the step, which went from {before_s:.3g} to "
            f"{step_s:.3g} s{_stages(smooth[start:], expected)}",
            cause="a link fell to a lower speed: the work of the ranks has not changed, and no rank arrives late",
            fix=f"`llmctl diagnose --probe-network` on these hosts names the slow pair"
            f"{_hosts_in_words(evidence)}; then look at its port, cable and switch (`ethtool`), or leave that host out",
            link=_link_name(evidence),
            values={
                "bytes_per_s": found,
                "expected_bytes_per_s": expected,
                "share": share,
                "step_before_s": before_s,
                "step_after_s": step_s,
            },
        )


def _exchange_of(evidence: Evidence, group: str) -> _Exchange | None:
    """Line up bytes and waiting of all ranks, step by step."""
    waits, names = [], (f"{group}_bytes", f"{group}_wait_s")
    ranks = [columns for columns in evidence.ranks.values() if all(name in columns for name in names)]
    if len(ranks) < 2 or len(ranks) < len(evidence.ranks):
        return None
    steps = evidence.step_time().steps
    for columns in ranks:
        series = columns.series(names[1]).finite()
        steps = np.intersect1d(steps, series.steps, assume_unique=True)
    steps = steps[FIRST_STEPS:]
    if not len(steps):
        return None
    for columns in ranks:
        series = columns.series(names[1]).finite()
        waits.append(series.values[np.searchsorted(series.steps, steps)])
    sent = ranks[0].series(names[0]).finite()
    bytes_sent = sent.values[np.clip(np.searchsorted(sent.steps, steps), 0, len(sent.steps) - 1)]
    shortest = np.min(np.array(waits), axis=0)
    if np.median(bytes_sent) <= 0 or np.median(shortest) <= 0:
        return None
    times = evidence.step_time()
    step_s = times.values[np.searchsorted(times.steps, steps)]
    return _Exchange(steps, bytes_sent / np.maximum(shortest, 1e-9), shortest, step_s)


def _since(slow: NDArray[np.bool_], min_steps: int) -> int | None:
    """Return the position from which on nearly all steps are slow, to the end of the run."""
    if not slow[-min_steps:].mean() > 0.8:
        return None
    tail_share = np.cumsum(slow[::-1])[::-1] / np.arange(len(slow), 0, -1)
    candidates = np.flatnonzero(slow & (tail_share > 0.9))
    if not len(candidates) or len(slow) - candidates[0] < min_steps:
        return None
    return int(candidates[0])


def _stages(smooth: Array, expected: float) -> str:
    """Say when the speed fell in several steps rather than at once."""
    first, last = float(np.median(smooth[:WINDOW])), float(np.median(smooth[-WINDOW:]))
    if last < 0.6 * first:
        return f"; it fell in stages, from {_speed(expected)} over {_speed(first)} to {_speed(last)}"
    return ""


def _speed(bytes_per_s: float) -> str:
    mbit = bytes_per_s * 8 / 1e6
    return f"{mbit / 1000:.3g} Gbit/s" if mbit >= 1000 else f"{mbit:.3g} Mbit/s"


def _link_name(evidence: Evidence) -> str | None:
    """Name the link if there is only one that it can be: two hosts."""
    hosts = sorted(set(evidence.hosts.values()))
    return f"{hosts[0]} – {hosts[1]}" if len(hosts) == 2 else None


def _hosts_in_words(evidence: Evidence) -> str:
    hosts = sorted(set(evidence.hosts.values()))
    return f" ({len(hosts)} hosts: {', '.join(hosts[:4])}{', …' if len(hosts) > 4 else ''})" if len(hosts) > 2 else ""

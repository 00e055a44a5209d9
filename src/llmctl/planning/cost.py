"""What a whole run costs: days, money, energy, CO₂, with interruptions and the best checkpoint interval.

Daly 2006 (a higher-order estimate of the optimum checkpoint interval): with checkpoints of δ seconds every τ seconds of
work, restarts of R seconds and exponential interruptions with mean M, work of T seconds takes
M·e^(R/M)·(e^((τ+δ)/M) − 1)·T/τ on average. Young 1974: τ ≈ √(2·δ·M).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# Beyond this a run makes no progress worth planning.
HOPELESS_SLOWDOWN = 100.0


@dataclass(frozen=True)
class Interrupted:
    """A run with interruptions.

    Attributes:
        mean_between_s: mean seconds between interruptions of the whole job.
        interval_s: best seconds of work between checkpoints.
        young_interval_s: Young's first-order interval, for comparison.
        slowdown: expected wall-clock time by undisturbed time.
        expected_interruptions: over the whole run.
    """

    mean_between_s: float
    interval_s: float
    young_interval_s: float
    slowdown: float
    expected_interruptions: float


def expected_slowdown(interval: float, checkpoint: float, restart: float, mean: float) -> float:
    """Return expected time by undisturbed time (Daly 2006, eq. 13)."""
    exponent = (interval + checkpoint) / mean
    if exponent + restart / mean > 50:
        return math.inf
    return mean * math.exp(restart / mean) * math.expm1(exponent) / interval


def best_interval(checkpoint: float, restart: float, mean: float) -> float:
    """Return the seconds of work between checkpoints that make a run shortest (golden-section search)."""
    if math.isinf(mean):
        return math.inf
    low, high = math.log(1e-3), math.log(20 * mean)
    ratio = (math.sqrt(5) - 1) / 2

    def cost(logarithm: float) -> float:
        return expected_slowdown(math.exp(logarithm), checkpoint, restart, mean)

    for _ in range(120):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if cost(left) <= cost(right):
            high = right
        else:
            low = left
    return math.exp((low + high) / 2)


def with_interruptions(
    work_s: float, nodes: int, interruptions_per_hour: float, checkpoint_s: float, restart_s: float
) -> Interrupted:
    """Return the expected run of `work_s` seconds on nodes that are each interrupted so often an hour.

    Args:
        nodes: any interrupted node stops the whole job.
    """
    rate = nodes * interruptions_per_hour / 3600.0
    if rate == 0:
        return Interrupted(math.inf, math.inf, math.inf, 1.0, 0.0)
    mean = 1.0 / rate
    checkpoint = max(checkpoint_s, 1e-3)
    interval = best_interval(checkpoint, restart_s, mean)
    slowdown = expected_slowdown(interval, checkpoint, restart_s, mean)
    return Interrupted(mean, interval, math.sqrt(2 * checkpoint * mean), slowdown, work_s * slowdown / mean)


@dataclass(frozen=True)
class Cost:
    """Cost of a whole run.

    Attributes:
        tokens: trained on.
        days: without interruptions.
        device_hours: without interruptions.
        on_demand, spot: expected days, dollars and checkpoint interval, each as a mapping.
        energy_mwh: megawatt-hours, the building's share included.
        co2_tonnes: tonnes of CO₂.
    """

    tokens: float
    days: float
    device_hours: float
    on_demand: dict[str, float | None]
    spot: dict[str, float | None]
    energy_mwh: float
    co2_tonnes: float


@dataclass(frozen=True)
class Rates:
    """What hours, interruptions and energy cost.

    Attributes:
        price, spot_price: dollars of a device-hour.
        failures_per_hour, interruptions_per_hour: share of nodes that fail, or are taken away on spot, in an hour.
        restart_s: seconds until training goes on.
        checkpoint_bytes_per_s: one node's rate to storage.
        power_w: of one device with its share of the host.
        pue: building by machines.
        carbon: kilograms of CO₂ a kilowatt-hour.
    """

    price: float
    spot_price: float
    failures_per_hour: float
    interruptions_per_hour: float
    restart_s: float
    checkpoint_bytes_per_s: float
    power_w: float
    pue: float
    carbon: float


def cost_of(
    tokens: float, tokens_per_s: float, devices: int, nodes: int, checkpoint_bytes: float, rates: Rates
) -> Cost:
    """Return what training on `tokens` costs.

    Args:
        checkpoint_bytes: of the whole checkpoint; the nodes write it together.
    """
    work = tokens / tokens_per_s
    hours = work / 3600.0 * devices
    checkpoint_s = checkpoint_bytes / (rates.checkpoint_bytes_per_s * nodes)
    plain = with_interruptions(work, nodes, rates.failures_per_hour, checkpoint_s, rates.restart_s)
    both = rates.failures_per_hour + rates.interruptions_per_hour
    spot = with_interruptions(work, nodes, both, checkpoint_s, rates.restart_s)
    energy = hours * plain.slowdown * rates.power_w * rates.pue / 1e6
    return Cost(
        tokens=tokens,
        days=work / 86400.0,
        device_hours=hours,
        on_demand=_priced(plain, hours, work, rates.price, checkpoint_s),
        spot=_priced(spot, hours, work, rates.spot_price, checkpoint_s),
        energy_mwh=energy,
        co2_tonnes=energy * rates.carbon,
    )


def _priced(run: Interrupted, hours: float, work: float, price: float, checkpoint_s: float) -> dict[str, float | None]:
    if run.slowdown > HOPELESS_SLOWDOWN:
        hopeless: dict[str, float | None] = {"dollars": None, "days": None}
    else:
        hopeless = {"dollars": hours * run.slowdown * price, "days": work * run.slowdown / 86400.0}
    return {
        **hopeless,
        "slowdown": run.slowdown,
        "interruptions": run.expected_interruptions,
        "hours_between_interruptions": run.mean_between_s / 3600.0,
        "checkpoint_interval_s": run.interval_s,
        "checkpoint_interval_young_s": run.young_interval_s,
        "checkpoint_s": checkpoint_s,
    }

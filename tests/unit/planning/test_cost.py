"""Interruptions, checkpoint intervals and money."""

from __future__ import annotations

import math
import random

import pytest

from llmctl.planning.cost import Rates, best_interval, cost_of, expected_slowdown, with_interruptions


def simulated_slowdown(work: float, interval: float, checkpoint: float, restart: float, mean: float) -> float:
    """Play a run with interruptions many times."""
    source = random.Random(0)
    total, repetitions = 0.0, 300
    for _ in range(repetitions):
        clock = done = 0.0
        fault = source.expovariate(1 / mean)
        while done < work:
            need = min(interval, work - done) + checkpoint
            if clock + need <= fault:
                clock += need
                done += min(interval, work - done)
                continue
            clock = fault
            fault = clock + source.expovariate(1 / mean)
            while fault < clock + restart:  # interrupted while restarting
                clock = fault
                fault = clock + source.expovariate(1 / mean)
            clock += restart
        total += clock
    return total / repetitions / work


@pytest.mark.parametrize(("checkpoint", "restart", "mean"), [(60.0, 600.0, 20_000.0), (30.0, 300.0, 3_000.0)])
def test_expected_time_is_what_a_simulation_gives(checkpoint: float, restart: float, mean: float) -> None:
    interval = best_interval(checkpoint, restart, mean)
    expected = expected_slowdown(interval, checkpoint, restart, mean)
    found = simulated_slowdown(60 * interval, interval, checkpoint, restart, mean)
    assert found == pytest.approx(expected, rel=0.04)


def test_best_interval_is_the_best_and_near_youngs_for_rare_interruptions() -> None:
    checkpoint, restart, mean = 60.0, 600.0, 1e6
    interval = best_interval(checkpoint, restart, mean)
    assert interval == pytest.approx(math.sqrt(2 * checkpoint * mean), rel=0.02)
    least = expected_slowdown(interval, checkpoint, restart, mean)
    for factor in (0.5, 0.8, 1.25, 2.0):
        assert expected_slowdown(factor * interval, checkpoint, restart, mean) > least


def test_more_nodes_are_interrupted_more_often() -> None:
    few = with_interruptions(1e6, 4, 0.001, 60, 600)
    many = with_interruptions(1e6, 64, 0.001, 60, 600)
    assert many.slowdown > few.slowdown > 1
    assert many.mean_between_s == few.mean_between_s / 16
    assert with_interruptions(1e6, 64, 0.0, 60, 600).slowdown == 1.0


RATES = Rates(4.0, 1.5, 0.0, 0.01, 600.0, 2e9, 1000.0, 1.2, 0.4)


def test_money_energy_and_carbon() -> None:
    cost = cost_of(1e12, 1e6, devices=64, nodes=8, checkpoint_bytes=1e11, rates=RATES)
    hours = 1e12 / 1e6 / 3600 * 64
    assert cost.device_hours == pytest.approx(hours)
    assert cost.on_demand["dollars"] == pytest.approx(hours * 4.0)
    assert cost.spot["dollars"] == pytest.approx(hours * 1.5 * cost.spot["slowdown"])
    assert cost.spot["slowdown"] > 1
    assert cost.energy_mwh == pytest.approx(hours * 1000 * 1.2 / 1e6)
    assert cost.co2_tonnes == pytest.approx(cost.energy_mwh * 0.4)


def test_a_run_that_never_ends_has_no_price() -> None:
    hopeless = Rates(4.0, 1.5, 0.0, 10.0, 6000.0, 2e7, 1000.0, 1.2, 0.4)
    cost = cost_of(1e12, 1e6, devices=8192, nodes=1024, checkpoint_bytes=1e13, rates=hopeless)
    assert cost.spot["dollars"] is None
    assert cost.on_demand["dollars"] is not None

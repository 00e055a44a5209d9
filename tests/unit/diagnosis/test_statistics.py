"""Robust statistics against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from llmctl.diagnosis.statistics import (
    best_shift,
    mean_and_error,
    noise_of,
    rolling_median,
    sigma_of,
    trailing_medians,
    trend_of,
)


def test_deviation_and_noise_ignore_outliers_and_trends() -> None:
    random = np.random.default_rng(0)
    values = 0.3 * random.standard_normal(20000)
    assert sigma_of(values) == pytest.approx(0.3, rel=0.03)
    values[::50] = 1e6
    assert sigma_of(values) == pytest.approx(0.3, rel=0.05)
    line = np.linspace(0, 100, 20000) + 0.3 * random.standard_normal(20000)
    assert noise_of(line) == pytest.approx(0.3, rel=0.05)


def test_a_line_is_found_among_outliers() -> None:
    steps = np.arange(1, 1001)
    values = 5.0 - 0.002 * steps
    values[::7] = 50.0
    trend = trend_of(steps, values)
    assert trend.slope == pytest.approx(-0.002, rel=0.1)
    assert trend.z < -10


def test_no_trend_in_noise() -> None:
    for seed in range(20):
        values = np.random.default_rng(seed).standard_normal(300)
        assert abs(trend_of(np.arange(300), values).z) < 4


def test_a_shift_is_placed() -> None:
    values = np.where(np.arange(500) < 321, 1.0, 2.0) + 0.1 * np.random.default_rng(0).standard_normal(500)
    shift = best_shift(values, 10)
    assert shift is not None and abs(shift.position - 321) <= 1
    assert (shift.before, shift.after) == (pytest.approx(1, abs=0.05), pytest.approx(2, abs=0.05))
    assert best_shift(np.ones(50), 5) is None and best_shift(values[:8], 5) is None


def test_medians_of_windows_equal_numpys() -> None:
    values = np.random.default_rng(0).standard_normal(50)
    assert rolling_median(values, 5)[10] == np.median(values[8:13])
    assert rolling_median(values, 5)[0] == np.median(values[:3])
    medians, deviations = trailing_medians(values, 7)
    assert np.isnan(medians[6]) and medians[7] == np.median(values[:7])
    assert deviations[20] == pytest.approx(1.4826 * np.median(np.abs(values[13:20] - np.median(values[13:20]))))


def test_correlated_values_have_a_larger_error() -> None:
    random = np.random.default_rng(0)
    white = random.standard_normal(1000)
    walk = np.cumsum(white) / 30
    assert mean_and_error(walk)[1] > 3 * mean_and_error(white)[1]

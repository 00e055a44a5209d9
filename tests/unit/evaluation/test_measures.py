"""Measures against their definitions."""

from __future__ import annotations

import itertools

import pytest

from llmctl.evaluation.measures import is_right, last_number, pass_at_k, win_rate
from llmctl.training.diversity import distinct, repeated_share


@pytest.mark.parametrize(("samples", "correct", "k"), [(5, 2, 1), (5, 2, 3), (6, 0, 2), (4, 4, 2), (7, 3, 5)])
def test_pass_at_k_is_the_share_of_draws_that_hold_a_right_answer(samples: int, correct: int, k: int) -> None:
    draws = list(itertools.combinations(range(samples), k))
    expected = sum(any(number < correct for number in draw) for draw in draws) / len(draws)
    assert pass_at_k(samples, correct, k) == pytest.approx(expected)


def test_distinct_counts_over_all_rows() -> None:
    assert distinct([[1, 2, 1], [2, 1]], 1) == 2 / 5
    assert distinct([[1, 2, 1], [2, 1]], 2) == 2 / 3
    assert distinct([[1]], 2) is None


def test_numbers_as_people_write_them() -> None:
    assert last_number("5 and 7.\n#### 1,234.50") == last_number("so 1234.5")
    assert last_number("none") is None
    assert is_right("The answer is 72.", "48+24 = 72\n#### 72", "number")
    assert not is_right("72 or 73", "#### 72", "number")
    assert not is_right("no idea", "none", "number"), "no number on either side is not right"
    assert is_right(" yes\n", "yes", "exact") and not is_right("yes!", "yes", "exact")


def test_a_judge_that_prefers_the_first_place_gives_no_one_an_advantage() -> None:
    assert win_rate([1, 1, 1], [1, 1, 1]) == {"win_rate": 0.5, "orders_agree": 0.0, "first_place_wins": 1.0}
    assert win_rate([1, 2, 0], [2, 1, 0])["win_rate"] == 0.5
    assert win_rate([1, 1, 0], [2, 2, 0]) == {"win_rate": 5 / 6, "orders_agree": 1.0, "first_place_wins": 0.5}


def test_text_that_goes_round_in_circles():
    assert repeated_share([[1, 2, 3, 4, 5, 6, 7, 8]]) == 0
    assert repeated_share([[1, 2] * 8]) == 1 - 2 / 13
    assert repeated_share([[1, 2, 3, 4], [1, 2, 3, 4]]) == 0  # each in its own row
    assert repeated_share([[1]]) == 0

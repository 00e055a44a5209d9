"""The adaptive KL coefficient, the order of items and the watch over the reward."""

from __future__ import annotations

import pytest

from llmctl.rlhf.kl_control import adapted_kl_coef
from llmctl.rlhf.order import Order
from llmctl.rlhf.watch import RewardWatch


def test_coefficient_follows_the_error_and_is_bounded() -> None:
    step = {"target": 6.0, "answers": 100, "horizon": 10_000}
    assert adapted_kl_coef(0.1, 6.0, **step) == pytest.approx(0.1)
    assert adapted_kl_coef(0.1, 6.6, **step) == pytest.approx(0.1 * (1 + 0.1 * 0.01))
    assert adapted_kl_coef(0.1, 600.0, **step) == pytest.approx(0.1 * (1 + 0.2 * 0.01))
    assert adapted_kl_coef(0.1, 0.0, **step) == pytest.approx(0.1 * (1 - 0.2 * 0.01))


@pytest.mark.parametrize("wrap", [False, True])
def test_every_epoch_holds_every_item_once(wrap: bool) -> None:
    order = Order(10, 4, seed=2, wrap=wrap)
    steps = [order.step(step) for step in range(1, 7)]
    assert all(len(step) == 4 for step in steps) == wrap
    flat = [item for step in steps for item in step]
    assert sorted(flat[:10]) == list(range(10)) and sorted(flat[10:20]) == list(range(10))
    assert flat[:10] != flat[10:20]


def test_few_prompts_fill_a_large_batch() -> None:
    assert sorted(Order(3, 7, seed=0, wrap=True).step(1)) == sorted(
        [0, 1, 2] * 2 + [Order(3, 7, seed=0, wrap=True).step(1)[6]]
    )


def history(scores, lengths, kls, endless):
    return [[scores[i // 10], lengths[i // 10], kls[i // 10], endless[i // 10]] for i in range(20)]


def test_watch_tells_each_problem_once() -> None:
    quiet = history((0, 1), (50, 60), (0, 5), (0.1, 0.1))
    assert RewardWatch().look(quiet) is None
    watch = RewardWatch()
    grown = history((0, 1), (50, 90), (0, 5), (0.1, 0.1))
    problem, hint = watch.look(grown)
    assert "answers grow" in problem and "mixed" in hint
    assert watch.look(grown) is None
    assert RewardWatch().look(history((1, 0), (50, 90), (0, 5), (0.1, 0.1))) is None, "the score does not rise"
    assert "nats" in RewardWatch().look(history((0, 1), (50, 50), (0, 50), (0.1, 0.1)))[0]
    assert "negative" in RewardWatch().look(history((0, 0), (50, 50), (0, -2), (0.1, 0.1)))[0]
    assert "do not end" in RewardWatch().look(history((0, 0), (50, 50), (0, 2), (0.1, 0.9)))[0]

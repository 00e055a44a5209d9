"""Rules about reward, KL and diversity."""

from __future__ import annotations

import numpy as np

from llmctl.diagnosis.findings import Severity


class TestRewardHacking:
    def test_a_held_out_reward_that_falls(self, make_reinforcement, judge) -> None:
        run = make_reinforcement(80)
        run["validation_reward_mean"] = 1 - ((np.arange(80) - 30) / 40) ** 2
        (finding,) = judge("reward_hacking", run)
        assert finding.severity is Severity.CRITICAL and 25 <= finding.step <= 35

    def test_two_witnesses(self, make_reinforcement, judge) -> None:
        run = make_reinforcement(80)
        run["response_length"] = np.linspace(60, 250, 80)
        run["distinct_2"] = np.linspace(0.8, 0.2, 80)
        run.config["kl_coef"] = 0.05
        (finding,) = judge("reward_hacking", run)
        assert "responses go from" in finding.evidence and "--kl-coef 0.1" in finding.fix

    def test_one_witness_is_no_proof(self, make_reinforcement, judge) -> None:
        run = make_reinforcement(80)
        run["response_length"] = np.linspace(60, 200, 80)
        assert judge("reward_hacking", run) == []

    def test_witnesses_without_a_rising_reward(self, make_reinforcement, judge) -> None:
        run = make_reinforcement(80)
        run["reward_mean"] = np.random.default_rng(0).standard_normal(80)
        run["response_length"] = np.linspace(60, 250, 80)
        run["distinct_2"] = np.linspace(0.8, 0.2, 80)
        assert judge("reward_hacking", run) == []


class TestNegativeKl:
    def test_a_mean_below_zero(self, make_reinforcement, judge) -> None:
        run = make_reinforcement(80)
        run["kl"] = -0.9 + 0.2 * np.random.default_rng(0).standard_normal(80)
        (finding,) = judge("negative_kl", run)
        assert finding.severity is Severity.CRITICAL and "top-k" in finding.cause

    def test_noise_around_zero(self, make_reinforcement, judge) -> None:
        for seed in range(6):
            run = make_reinforcement(80)
            run["kl"] = 0.3 * np.random.default_rng(seed).standard_normal(80)
            assert judge("negative_kl", run) == []


class TestEntropyCollapse:
    def test_entropy_that_is_spent(self, make_reinforcement, judge) -> None:
        run = make_reinforcement(80)
        run["entropy"] = 2.4 * np.exp(-np.arange(80) / 15)
        (finding,) = judge("entropy_collapse", run)
        assert 5 <= finding.step <= 20

    def test_the_same_phrases(self, make_reinforcement, judge) -> None:
        run = make_reinforcement(80)
        run["distinct_2"] = np.linspace(0.8, 0.1, 80)
        assert judge("entropy_collapse", run)

    def test_half_of_it_is_learning(self, make_reinforcement, judge) -> None:
        run = make_reinforcement(80)
        run["entropy"] = np.linspace(2.4, 1.2, 80)
        assert judge("entropy_collapse", run) == []

    def test_sharp_from_the_start(self, make_reinforcement, judge) -> None:
        run = make_reinforcement(80)
        run["entropy"] = np.full(80, 0.2)
        assert judge("entropy_collapse", run) == []

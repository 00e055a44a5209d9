"""Rules about time and memory: throughput, waiting, pauses, ranks and links."""

from __future__ import annotations

import numpy as np
import pytest


def slow_down(run, part: str, added: np.ndarray):
    """Add seconds to a part of the step, and to the step with it."""
    run[part] = run[part] + added
    run["step_time_s"] = run["step_time_s"] + added
    run["tokens_per_s"] = 65536 / run["step_time_s"]
    return run


class TestThroughputFalling:
    def test_slower_and_slower_reading(self, make_pretraining, judge) -> None:
        run = slow_down(make_pretraining(400), "data_time_s", np.linspace(0, 0.6, 400))
        (finding,) = judge("throughput_falling", run)
        assert "storage" in finding.cause and finding.values["relative_change"] < -0.3

    def test_slower_and_slower_links(self, make_pretraining, judge) -> None:
        run = slow_down(make_pretraining(400), "communication_s", np.linspace(0, 0.4, 400))
        assert "communication" in judge("throughput_falling", run)[0].cause

    def test_growing_memory_is_told(self, make_pretraining, judge) -> None:
        run = slow_down(make_pretraining(400), "forward_s", np.linspace(0, 0.4, 400))
        run["memory_bytes"] = np.linspace(8e9, 16e9, 400)
        assert "memory" in judge("throughput_falling", run)[0].cause

    def test_step_times_alone_will_do(self, make_pretraining, judge) -> None:
        run = slow_down(make_pretraining(400), "data_time_s", np.linspace(0, 0.6, 400))
        for name in ("tokens_per_s", "data_time_s", "forward_s", "backward_s", "communication_s", "update_s", "tokens"):
            del run.columns[name]
        assert "did not log" in judge("throughput_falling", run)[0].cause

    def test_a_fall_of_a_twentieth_is_none(self, make_pretraining, judge) -> None:
        run = slow_down(make_pretraining(400), "data_time_s", np.linspace(0, 0.05, 400))
        assert judge("throughput_falling", run) == []

    def test_pauses_are_no_fall(self, make_pretraining, judge) -> None:
        run = make_pretraining(400)
        added = np.zeros(400)
        added[200::20] = 5.0
        assert judge("throughput_falling", slow_down(run, "update_s", added)) == []

    def test_longer_responses_are_no_fall(self, make_reinforcement, judge) -> None:
        run = make_reinforcement(80)
        run["response_length"] = np.linspace(40, 160, 80)
        run["step_time_s"] = np.linspace(2, 6, 80)
        assert judge("throughput_falling", run) == []

    def test_a_batch_ramp_is_no_fall(self, make_pretraining, judge) -> None:
        run = make_pretraining(400)
        del run.columns["tokens_per_s"]
        per_step = np.linspace(16384, 65536, 400)
        run["tokens"] = np.cumsum(per_step)
        run["step_time_s"] = per_step / 65536
        assert judge("throughput_falling", run) == []


class TestThroughputDropped:
    def dropped(self, run, part: str, at: int = 240, seconds: float = 1.0):
        return slow_down(run, part, seconds * (np.arange(run.num_steps) >= at))

    def test_a_link_that_falls_to_a_lower_speed(self, make_pretraining, judge) -> None:
        run = self.dropped(make_pretraining(400), "communication_s")
        (finding,) = judge("throughput_dropped", run)
        assert abs(finding.step - 241) <= 2 and "link" in finding.cause
        assert judge("throughput_falling", run) == []

    def test_a_steady_fall_is_another_fault(self, make_pretraining, judge) -> None:
        run = slow_down(make_pretraining(400), "data_time_s", np.linspace(0, 1.0, 400))
        assert judge("throughput_dropped", run) == []

    def test_a_pause_after_which_it_comes_back(self, make_pretraining, judge) -> None:
        added = np.where((np.arange(400) >= 200) & (np.arange(400) < 260), 1.0, 0.0)
        assert judge("throughput_dropped", slow_down(make_pretraining(400), "forward_s", added)) == []

    def test_a_restart_is_blamed(self, make_pretraining, judge) -> None:
        run = make_pretraining(400)
        slow = np.where(np.arange(400) >= 240, 2.0, 1.0)
        run["tokens_per_s"] = run["tokens_per_s"] / slow
        run["step_time_s"] = run["step_time_s"] * slow
        run.restarts = [241]
        assert "taken up again" in judge("throughput_dropped", run)[0].cause


class TestDataWait:
    def test_every_step_waits(self, make_pretraining, judge) -> None:
        run = slow_down(make_pretraining(200), "data_time_s", np.full(200, 0.4))
        (finding,) = judge("data_wait", run)
        assert 0.2 < finding.values["share"] < 0.4

    def test_long_waits_now_and_then(self, make_pretraining, judge) -> None:
        added = np.where(np.arange(200) % 10 == 5, 4.0, 0.0)
        assert "new shard" in judge("data_wait", slow_down(make_pretraining(200), "data_time_s", added))[0].cause

    def test_a_cold_start_is_no_wait(self, make_pretraining, judge) -> None:
        added = np.where(np.arange(200) < 5, 30.0, 0.0)
        assert judge("data_wait", slow_down(make_pretraining(200), "data_time_s", added)) == []

    def test_a_wait_of_a_twentieth(self, make_pretraining, judge) -> None:
        assert judge("data_wait", slow_down(make_pretraining(200), "data_time_s", np.full(200, 0.04))) == []


class TestMemoryGrowth:
    def test_a_leak(self, make_pretraining, judge) -> None:
        run = make_pretraining(300)
        run["memory_bytes"] = 8e9 + 5e6 * np.arange(300) + 1e7 * np.random.default_rng(0).standard_normal(300)
        (finding,) = judge("memory_growth", run)
        assert finding.values["bytes_per_step"] == pytest.approx(5e6, rel=0.1)

    def test_a_peak_that_settles(self, make_pretraining, judge) -> None:
        run = make_pretraining(300)
        run["memory_bytes"] = 8e9 * (1 + 0.5 * (1 - np.exp(-np.arange(300) / 40)))
        assert judge("memory_growth", run) == []

    def test_a_peak_that_climbs_more_and_more_slowly(self, make_pretraining, judge) -> None:
        run = make_pretraining(120)  # as measured on a reward model's batches of varying length
        run["memory_bytes"] = 0.7e9 + 0.42e9 * np.log1p(np.arange(120) / 1.5)
        assert judge("memory_growth", run) == []

    def test_lengths_that_vary(self, make_pretraining, judge) -> None:
        run = make_pretraining(300)
        run["memory_bytes"] = 8e9 * (1 + 0.3 * np.random.default_rng(0).random(300))
        assert judge("memory_growth", run) == []

    def test_one_rank_that_leaks(self, make_pretraining, give_ranks, judge) -> None:
        run = give_ranks(make_pretraining(300), 4)
        for rank, columns in run.ranks.items():
            columns["memory_bytes"] = np.full(300, 8e9) + (4e6 * np.arange(300) if rank == 3 else 0)
        (finding,) = judge("memory_growth", run)
        assert finding.rank == 3


class TestStepTimeJitter:
    def test_checkpoints_that_cost_a_tenth(self, make_pretraining, judge) -> None:
        run = make_pretraining(400)
        run.config["checkpoint_every"] = 20
        run = slow_down(run, "update_s", np.where((np.arange(400) + 1) % 20 == 0, 4.0, 0.0))
        (finding,) = judge("step_time_jitter", run)
        assert finding.values["period_steps"] == 20 and finding.cause.startswith("checkpoints at")

    def test_pauses_at_no_fixed_distance(self, make_pretraining, judge) -> None:
        at = np.random.default_rng(1).choice(400, 30, replace=False)
        added = np.zeros(400)
        added[at] = 3.0
        (finding,) = judge("step_time_jitter", slow_down(make_pretraining(400), "backward_s", added))
        assert "garbage" in finding.cause

    def test_waits_for_data_are_told_as_that(self, make_pretraining, judge) -> None:
        added = np.where(np.arange(400) % 25 == 3, 5.0, 0.0)
        assert "data" in judge("step_time_jitter", slow_down(make_pretraining(400), "data_time_s", added))[0].cause

    def test_rare_checkpoints_are_healthy(self, make_pretraining, judge) -> None:
        run = slow_down(make_pretraining(400), "update_s", np.where((np.arange(400) + 1) % 100 == 0, 3.0, 0.0))
        assert judge("step_time_jitter", run) == []

    def test_longer_sequences_are_not_slow(self, make_pretraining, judge) -> None:
        run = make_pretraining(400)
        long = np.where(np.arange(400) % 10 == 3, 4.0, 1.0)
        run["step_time_s"] = run["step_time_s"] * long  # the token rate stays
        assert judge("step_time_jitter", run) == []


class TestSlowRank:
    def test_a_rank_whose_waiting_hides_in_the_backward_pass(self, make_pretraining, exchange, judge) -> None:
        run = make_pretraining(200)
        random = np.random.default_rng(0)
        forward = {rank: 0.3 * np.exp(0.02 * random.standard_normal(200)) for rank in range(4)}
        forward[2] = forward[2] * 1.5
        exchange(run, forward, random)
        (finding,) = judge("slow_rank", run)
        assert finding.rank == 2 and "processor" in finding.cause
        assert judge("communication_bound", run) == []

    def test_from_a_step_in_the_middle(self, make_pretraining, exchange, judge) -> None:
        run = make_pretraining(200)
        random = np.random.default_rng(0)
        forward = {rank: 0.3 * np.exp(0.02 * random.standard_normal(200)) for rank in range(2)}
        forward[1] = forward[1] * np.where(np.arange(200) >= 120, 1.6, 1.0)
        exchange(run, forward, random)
        (finding,) = judge("slow_rank", run)
        assert finding.rank == 1 and abs(finding.step - 121) <= 8

    def test_a_rank_with_a_slow_disk(self, make_pretraining, give_ranks, judge) -> None:
        run = give_ranks(make_pretraining(200), 4)
        for rank, columns in run.ranks.items():
            extra = 0.5
            if rank == 1:
                columns["data_time_s"] = columns["data_time_s"] + extra
            else:
                columns["communication_s"] = columns["communication_s"] + extra
            columns["step_time_s"] = columns["step_time_s"] + extra
        (finding,) = judge("slow_rank", run)
        assert finding.rank == 1 and "disk" in finding.cause

    def test_a_slow_link_is_no_slow_rank(self, make_pretraining, exchange, judge) -> None:
        run = make_pretraining(200)
        random = np.random.default_rng(0)
        forward = {rank: 0.3 * np.exp(0.02 * random.standard_normal(200)) for rank in range(4)}
        exchange(run, forward, random, talk=3.0)
        assert judge("slow_rank", run) == []
        (finding,) = judge("communication_bound", run)
        assert finding.values["share"] > 0.7

    def test_stages_of_a_pipeline_differ_by_design(self, make_pretraining, exchange, judge) -> None:
        run = make_pretraining(200)
        random = np.random.default_rng(0)
        forward = {rank: (0.3 if rank < 2 else 0.5) * np.exp(0.02 * random.standard_normal(200)) for rank in range(4)}
        exchange(run, forward, random)
        for rank, columns in run.ranks.items():
            columns["pp_rank"] = np.full(200, float(rank // 2))
        assert judge("slow_rank", run) == []


class TestCommunicationBound:
    def test_since_when(self, make_pretraining, judge) -> None:
        run = slow_down(make_pretraining(300), "communication_s", np.where(np.arange(300) >= 150, 3.6, 0.0))
        run["communication_bytes"] = np.full(300, 45e6)
        (finding,) = judge("communication_bound", run)
        assert abs(finding.step - 151) <= 2 and finding.values["share"] > 0.7
        assert finding.values["bytes_per_s"] == pytest.approx(45e6 / 3.65, rel=0.05)

    def test_a_third_of_the_step_is_normal(self, make_pretraining, judge) -> None:
        run = slow_down(make_pretraining(300), "communication_s", np.full(300, 0.4))
        assert judge("communication_bound", run) == []


def give_traffic(run, seconds: dict[int, np.ndarray], num_bytes: float = 4e6) -> None:
    """Let each rank exchange gradients for some time a step, within the backward pass."""
    count = run.num_steps
    for rank, waited in seconds.items():
        steps = np.arange(1, count + 1)
        run.ranks[rank] = {"step": steps, "dp_bytes": np.full(count, num_bytes), "dp_wait_s": waited}


class TestSlowLink:
    @staticmethod
    def make(make_pretraining, factor: np.ndarray, late_rank: int | None = None):
        run, random = make_pretraining(len(factor)), np.random.default_rng(1)
        noise = np.exp(0.05 * random.standard_normal(len(factor)))
        talk = 0.2 * factor * noise
        wait = np.full(len(factor), 0.8) if late_rank is not None else np.zeros(len(factor))
        give_traffic(run, {rank: talk + (0 if rank == late_rank else wait) for rank in range(4)})
        run["step_time_s"] = run["step_time_s"] + talk + wait
        return run

    @pytest.mark.parametrize("slower", [3.0, 8.0])
    def test_at_once(self, make_pretraining, judge, slower: float) -> None:
        run = self.make(make_pretraining, np.where(np.arange(300) >= 150, slower, 1.0))
        (finding,) = judge("slow_link", run)
        assert abs(finding.step - 151) <= 4
        assert finding.values["bytes_per_s"] == pytest.approx(4e6 / (0.2 * slower), rel=0.1)
        assert finding.values["expected_bytes_per_s"] == pytest.approx(4e6 / 0.2, rel=0.1)

    def test_in_stages(self, make_pretraining, judge) -> None:
        factor = np.repeat([1.0, 2.5, 5.0, 10.0], 75)
        (finding,) = judge("slow_link", self.make(make_pretraining, factor))
        assert abs(finding.step - 76) <= 4 and "in stages" in finding.evidence

    def test_no_change_and_a_short_disturbance(self, make_pretraining, judge) -> None:
        assert judge("slow_link", self.make(make_pretraining, np.ones(300))) == []
        disturbed = np.where((np.arange(300) >= 100) & (np.arange(300) < 140), 6.0, 1.0)
        assert judge("slow_link", self.make(make_pretraining, disturbed)) == []

    def test_a_late_rank_is_no_slow_link(self, make_pretraining, judge) -> None:
        assert judge("slow_link", self.make(make_pretraining, np.ones(300), late_rank=2)) == []

    def test_a_link_slow_from_the_beginning_has_no_better_past(self, make_pretraining, judge) -> None:
        assert judge("slow_link", self.make(make_pretraining, np.full(300, 10.0))) == []

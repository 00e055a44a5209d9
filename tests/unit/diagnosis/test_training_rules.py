"""Rules about the loss, its gradients and the learning rate: the fault, its look-alikes, and silence."""

from __future__ import annotations

import numpy as np
import pytest

from llmctl.diagnosis.findings import Severity


class TestLossNan:
    def test_lasting_nan_after_a_calm_run_is_critical(self, make_pretraining, judge) -> None:
        run = make_pretraining(200)
        run["loss"][150:] = np.nan
        (finding,) = judge("loss_nan", run)
        assert (finding.step, finding.severity) == (151, Severity.CRITICAL)
        assert "calm" in finding.cause

    def test_growing_gradients_are_named_as_the_cause(self, make_pretraining, judge) -> None:
        run = make_pretraining(200)
        run["grad_norm"][140:150] *= np.geomspace(2, 500, 10)
        run["loss"][150:] = np.nan
        run.config["max_grad_norm"] = 0.0
        (finding,) = judge("loss_nan", run)
        assert "exploding" in finding.cause and "--max-grad-norm 1.0" in finding.fix

    def test_a_clipped_run_is_not_told_to_clip(self, make_pretraining, judge) -> None:
        run = make_pretraining(200)
        run["grad_norm"][140:150] *= np.geomspace(2, 500, 10)
        run["loss"][150:] = np.inf
        (finding,) = judge("loss_nan", run)
        assert "--max-grad-norm" not in finding.fix and "--lr 0.0001" in finding.fix
        assert "infinite" in finding.evidence

    def test_a_rising_loss_is_named_as_the_cause(self, make_pretraining, judge) -> None:
        run = make_pretraining(200)
        run["loss"][130:150] += np.linspace(0, 6, 20)
        run["loss"][150:] = np.nan
        assert "diverged" in judge("loss_nan", run)[0].cause

    def test_a_collapsed_scale_is_named_as_the_cause(self, make_pretraining, judge) -> None:
        run = make_pretraining(200)
        run["loss_scale"] = np.concatenate([np.full(140, 65536.0), 65536.0 * 0.5 ** np.arange(60)])
        run["loss"][150:] = np.nan
        assert "fp16" in judge("loss_nan", run)[0].cause

    def test_the_first_step_points_to_data_and_weights(self, make_pretraining, judge) -> None:
        run = make_pretraining(30)
        run["loss"][:] = np.nan
        assert "first step" in judge("loss_nan", run)[0].cause

    def test_one_rank_alone_is_named(self, make_pretraining, give_ranks, judge) -> None:
        run = give_ranks(make_pretraining(100), 4)
        for rank, columns in run.ranks.items():
            columns["loss"] = run["loss"].copy()
            columns["loss"][80 + (0 if rank == 2 else 1) :] = np.nan
        run["loss"][81:] = np.nan
        assert judge("loss_nan", run)[0].rank == 2

    def test_a_single_lost_step_is_a_warning(self, make_pretraining, judge) -> None:
        run = make_pretraining(200)
        run["loss"][150] = np.nan
        assert judge("loss_nan", run)[0].severity is Severity.WARNING

    def test_infinite_norms_alone_are_no_lost_loss(self, make_pretraining, judge) -> None:
        run = make_pretraining(200)
        run["grad_norm"][[20, 90]] = np.inf
        assert judge("loss_nan", run) == []


class TestLossSpike:
    def spiked(self, run, height: float, width: int, at: int = 250, norm: float = 10.0):
        run["loss"][at : at + width] *= 1 + height * np.exp(-np.arange(width) / max(width / 3, 1))
        run["grad_norm"][at : at + 2] *= norm
        return run

    def test_a_spike_that_recovers_is_a_warning(self, make_pretraining, judge) -> None:
        (finding,) = judge("loss_spike", self.spiked(make_pretraining(400), 0.8, 20))
        assert finding.severity is Severity.WARNING
        assert abs(finding.step - 251) <= 1

    def test_a_jump_that_stays_is_critical(self, make_pretraining, judge) -> None:
        run = make_pretraining(400)
        run["loss"][250:] *= 1.8
        run["grad_norm"][250:] *= 8
        (finding,) = judge("loss_spike", run)
        assert finding.severity is Severity.CRITICAL and finding.step == 251

    def test_several_spikes_are_counted_and_blame_the_learning_rate(self, make_pretraining, judge) -> None:
        run = make_pretraining(600)
        for at in (150, 250, 350, 450):
            self.spiked(run, 0.7, 8, at)
        (finding,) = judge("loss_spike", run)
        assert finding.values["num_spikes"] == 4 and "learning rate" in finding.cause

    def test_a_change_of_data_keeps_the_gradient_calm(self, make_pretraining, judge) -> None:
        run = make_pretraining(400)
        run["loss"][250:] *= 1.5
        assert "data changed" in judge("loss_spike", run)[0].cause

    def test_a_restart_is_blamed_for_a_jump_right_after_it(self, make_pretraining, judge) -> None:
        run = self.spiked(make_pretraining(400), 1.0, 20)
        run.restarts = [250]
        assert "taken up again" in judge("loss_spike", run)[0].cause

    @pytest.mark.parametrize("seed", range(5))
    def test_one_hard_batch_is_no_spike(self, make_pretraining, judge, seed: int) -> None:
        assert judge("loss_spike", self.spiked(make_pretraining(400, seed), 0.9, 1, norm=1.5)) == []

    @pytest.mark.parametrize("seed", range(5))
    def test_the_noise_of_small_batches_is_no_spike(self, make_pretraining, judge, seed: int) -> None:
        assert judge("loss_spike", make_pretraining(800, seed, noise=0.2, tail=2.0)) == []


class TestGradientExplosion:
    def test_growth_up_to_the_end(self, make_pretraining, judge) -> None:
        run = make_pretraining(300)
        run["grad_norm"][200:] *= np.geomspace(1, 300, 100)
        (finding,) = judge("gradient_explosion", run)
        assert finding.severity is Severity.CRITICAL
        assert 200 <= finding.step <= 260

    def test_unclipped_runs_are_told_to_clip(self, make_pretraining, judge) -> None:
        run = make_pretraining(300)
        run["grad_norm"][200:] *= np.geomspace(1, 300, 100)
        run.config["max_grad_norm"] = 0
        assert "--max-grad-norm" in judge("gradient_explosion", run)[0].fix

    def test_leaps(self, make_pretraining, judge) -> None:
        run = make_pretraining(300)
        run["grad_norm"][[120, 180]] *= 900
        (finding,) = judge("gradient_explosion", run)
        assert finding.step == 121 and finding.values["num_leaps"] == 2

    def test_norms_that_stay_infinite(self, make_pretraining, judge) -> None:
        run = make_pretraining(100)
        run["grad_norm"][60:] = np.inf
        (finding,) = judge("gradient_explosion", run)
        assert finding.step == 61

    def test_large_first_norms_and_slow_growth_are_healthy(self, make_pretraining, judge) -> None:
        run = make_pretraining(400)
        run["grad_norm"] *= 1 + 40 * np.exp(-np.arange(400) / 5)
        run["grad_norm"] *= np.linspace(1, 3, 400)
        assert judge("gradient_explosion", run) == []

    def test_memorised_batches_do_not_make_leaps(self, make_pretraining, judge) -> None:
        run = make_pretraining(300)
        run["grad_norm"][150:200] = 1e-7
        assert judge("gradient_explosion", run) == []


class TestLearningRateTooHigh:
    def diverging(self, run, at: int = 100):
        run["loss"][at:] += np.minimum(3.0, 0.05 * np.arange(run.num_steps - at))
        return run

    def test_a_rise_at_the_peak_that_stays(self, make_pretraining, judge) -> None:
        (finding,) = judge("learning_rate_too_high", self.diverging(make_pretraining(400)))
        assert finding.severity is Severity.CRITICAL
        assert 80 <= finding.step <= 115 and "--lr 0.0001" in finding.fix

    def test_a_loss_that_rises_as_it_warms_up(self, make_pretraining, judge) -> None:
        run = make_pretraining(300, warmup=100)
        run["loss"] = 6 + np.abs(np.arange(300) - 40) * 0.02 * (np.arange(300) > 40) + 3 * np.exp(-np.arange(300) / 10)
        assert judge("learning_rate_too_high", run)

    def test_a_rise_at_a_decayed_rate_is_the_datas(self, make_pretraining, judge) -> None:
        assert judge("learning_rate_too_high", self.diverging(make_pretraining(400), at=340)) == []

    def test_a_short_spike_is_not_the_rates(self, make_pretraining, judge) -> None:
        run = make_pretraining(400)
        run["loss"][200:212] *= 1.7
        assert judge("learning_rate_too_high", run) == []

    def test_no_warmup_has_its_own_rule(self, make_pretraining, judge) -> None:
        run = make_pretraining(400, warmup=0)
        run["loss"][5:60] += 4 * np.sin(np.linspace(0, np.pi, 55))
        assert judge("learning_rate_too_high", run) == []
        (finding,) = judge("warmup_missing", run)
        assert "--warmup-fraction" in finding.fix


class TestWarmupMissing:
    def test_harmless_without_warmup(self, make_pretraining, judge) -> None:
        assert judge("warmup_missing", make_pretraining(300, warmup=0)) == []

    def test_a_rise_with_warmup_is_another_fault(self, make_pretraining, judge) -> None:
        run = make_pretraining(400)
        run["loss"][5:60] += 4 * np.sin(np.linspace(0, np.pi, 55))
        assert judge("warmup_missing", run) == []

    def test_a_run_that_was_taken_up_later_has_no_start(self, make_pretraining, judge) -> None:
        run = make_pretraining(400, warmup=0)
        run["loss"][5:60] += 4 * np.sin(np.linspace(0, np.pi, 55))
        run["step"] = run["step"] + 5000
        assert judge("warmup_missing", run) == []


class TestOscillation:
    def test_swings(self, make_pretraining, judge) -> None:
        run = make_pretraining(400)
        run["loss"] += 0.9 * np.sin(np.arange(400) / 12) * (np.arange(400) > 60)
        (finding,) = judge("oscillation", run)
        assert finding.values["num_turns"] >= 4

    def test_alternating_steps(self, make_pretraining, judge) -> None:
        run = make_pretraining(400)
        run["loss"] *= 1 + 0.1 * (-1.0) ** np.arange(400)
        (finding,) = judge("oscillation", run)
        assert "alternate" in finding.evidence

    def test_swings_at_a_low_rate_come_from_the_data(self, make_pretraining, judge) -> None:
        run = make_pretraining(400)
        run["lr"] = np.where(np.arange(400) < 150, 3e-4, 1e-6)
        run["loss"] += 0.9 * np.sin(np.arange(400) / 12) * (np.arange(400) > 200)
        assert "order of the data" in judge("oscillation", run)[0].cause

    @pytest.mark.parametrize("seed", range(5))
    def test_noise_does_not_swing(self, make_pretraining, judge, seed: int) -> None:
        assert judge("oscillation", make_pretraining(500, seed, noise=0.2)) == []

    def test_one_change_of_data_is_no_swing(self, make_pretraining, judge) -> None:
        run = make_pretraining(400)
        run["loss"][150:250] += 1.0
        assert judge("oscillation", run) == []


class TestNotLearning:
    def flat(self, run, noise: float = 0.01):
        random = np.random.default_rng(3)
        run["loss"] = 9.2 * (1 + noise * random.standard_normal(run.num_steps))
        return run

    def test_a_rate_of_nothing(self, make_pretraining, judge) -> None:
        run = self.flat(make_pretraining(200, peak=1e-9))
        (finding,) = judge("not_learning", run)
        assert "moves nothing" in finding.cause

    def test_gradients_of_zero(self, make_pretraining, judge) -> None:
        run = self.flat(make_pretraining(200))
        run["grad_norm"][:] = 0.0
        assert "frozen" in judge("not_learning", run)[0].cause

    def test_gradients_that_change_nothing(self, make_pretraining, judge) -> None:
        assert "structure" in judge("not_learning", self.flat(make_pretraining(200)))[0].cause

    def test_still_warming_up(self, make_pretraining, judge) -> None:
        assert judge("not_learning", self.flat(make_pretraining(100, warmup=2000))) == []

    def test_too_noisy_to_tell(self, make_pretraining, judge) -> None:
        assert judge("not_learning", self.flat(make_pretraining(60), noise=0.3)) == []

    def test_a_small_gain_is_a_gain(self, make_pretraining, judge) -> None:
        run = make_pretraining(300, start=2.0, end=1.85, noise=0.02)
        assert judge("not_learning", run) == []

    def test_nothing_left_to_learn(self, make_pretraining, judge) -> None:
        run = make_pretraining(200)
        run["loss"] = np.full(200, 0.02)
        assert judge("not_learning", run) == []


class TestPlateau:
    def stuck(self, run):
        random = np.random.default_rng(5)
        run["loss"] = 4.0 + 5 * np.exp(-np.arange(run.num_steps) / 15) + 0.02 * random.standard_normal(run.num_steps)
        return run

    def test_stuck_at_a_high_rate(self, make_pretraining, judge) -> None:
        run = self.stuck(make_pretraining(900))
        run["lr"] = np.full(900, 3e-4)
        (finding,) = judge("plateau", run)
        assert 280 <= finding.step <= 320

    def test_flat_because_the_rate_decayed(self, make_pretraining, judge) -> None:
        assert judge("plateau", self.stuck(make_pretraining(900))) == []

    def test_a_slow_power_law_is_no_plateau(self, make_pretraining, judge) -> None:
        run = make_pretraining(900, noise=0.01)
        run["lr"] = np.full(900, 3e-4)
        assert judge("plateau", run) == []


class TestLossScaleCollapse:
    def test_a_scale_that_sinks_to_its_end(self, make_pretraining, judge) -> None:
        run = make_pretraining(200)
        run["loss_scale"] = np.concatenate([np.full(150, 65536.0), np.maximum(1.0, 65536 * 0.5 ** np.arange(50))])
        (finding,) = judge("loss_scale_collapse", run)
        assert finding.step in (151, 152) and "bf16" in finding.fix

    def test_a_scale_that_finds_its_level(self, make_pretraining, judge) -> None:
        run = make_pretraining(200)
        run["loss_scale"] = np.maximum(2.0**13, 2.0**32 * 0.5 ** np.arange(200))
        assert judge("loss_scale_collapse", run) == []

    def test_a_static_scale(self, make_pretraining, judge) -> None:
        run = make_pretraining(200)
        run["loss_scale"] = np.full(200, 1.0)
        assert judge("loss_scale_collapse", run) == []


class TestGradientVanished:
    def test_a_model_that_dies(self, make_pretraining, judge) -> None:
        run = make_pretraining(200)
        run["grad_norm"][150:] = 0.0
        (finding,) = judge("gradient_vanished", run)
        assert finding.step == 151 and "died" in finding.cause

    def test_frozen_from_the_start(self, make_pretraining, judge) -> None:
        run = make_pretraining(50)
        run["grad_norm"][:] = 0.0
        assert "frozen" in judge("gradient_vanished", run)[0].cause

    def test_a_memorised_corpus(self, make_pretraining, judge) -> None:
        run = make_pretraining(200)
        run["grad_norm"][150:] = 1e-9
        run["loss"][150:] = 1e-4
        assert judge("gradient_vanished", run) == []

    def test_single_steps_without_a_label(self, make_pretraining, judge) -> None:
        run = make_pretraining(200)
        run["grad_norm"][::50] = 0.0
        assert judge("gradient_vanished", run) == []


class TestLearningRateJump:
    def test_a_jump_at_a_restart(self, make_pretraining, judge) -> None:
        run = make_pretraining(400)
        run["lr"][250:] = 3e-4
        run.restarts = [251]
        (finding,) = judge("learning_rate_jump", run)
        assert finding.step == 251

    def test_a_restart_that_keeps_the_schedule(self, make_pretraining, judge) -> None:
        run = make_pretraining(400)
        run.restarts = [5, 150, 390]
        assert judge("learning_rate_jump", run) == []

    def test_a_schedule_in_steps_is_no_restart(self, make_pretraining, judge) -> None:
        run = make_pretraining(400)
        run["lr"] = np.where(np.arange(400) < 200, 1e-3, 1e-4)
        assert judge("learning_rate_jump", run) == []

    def test_a_negative_rate(self, make_pretraining, judge) -> None:
        run = make_pretraining(400)
        run["lr"][380:] = -1e-6
        assert judge("learning_rate_jump", run)[0].severity is Severity.CRITICAL


class TestInitialLossHigh:
    def test_weights_that_are_too_wide(self, make_pretraining, judge) -> None:
        run = make_pretraining(100, start=40.0)
        (finding,) = judge("initial_loss_high", run)
        assert "9.68" in finding.evidence and "0.02" in finding.fix

    def test_without_a_known_vocabulary_only_the_impossible_counts(self, make_pretraining, judge) -> None:
        run = make_pretraining(100, start=12.0, noise=0.0)
        run.config = {}
        assert judge("initial_loss_high", run) == []
        run = make_pretraining(100, start=60.0)
        run.config = {}
        assert judge("initial_loss_high", run)

    def test_a_sum_is_told_as_one(self, make_pretraining, judge) -> None:
        run = make_pretraining(100)
        run["loss"] = run["loss"] * 4096
        assert "sum over tokens" in judge("initial_loss_high", run)[0].cause

    def test_a_run_that_was_taken_up_later(self, make_pretraining, judge) -> None:
        run = make_pretraining(100, start=40.0)
        run["step"] = run["step"] + 1000
        assert judge("initial_loss_high", run) == []


class TestStepsSkipped:
    def test_a_row_of_skipped_steps(self, make_pretraining, judge) -> None:
        run = make_pretraining(200)
        run["grad_norm"][100:104] = np.nan
        (finding,) = judge("steps_skipped", run)
        assert finding.step == 101 and finding.values["longest_row"] == 4

    def test_often(self, make_pretraining, judge) -> None:
        run = make_pretraining(200)
        run["grad_norm"][::20] = np.inf
        assert judge("steps_skipped", run)

    def test_once_in_a_long_run(self, make_pretraining, judge) -> None:
        run = make_pretraining(400)
        run["grad_norm"][200] = np.inf
        assert judge("steps_skipped", run) == []

    def test_a_lost_loss_is_another_fault(self, make_pretraining, judge) -> None:
        run = make_pretraining(200)
        run["grad_norm"][100:] = np.nan
        run["loss"][100:] = np.nan
        assert judge("steps_skipped", run) == []

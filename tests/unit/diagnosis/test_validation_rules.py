"""Rules that compare the validation loss with the training loss."""

from __future__ import annotations

import numpy as np


def overfitting(run, turn: int = 5):
    """Let the validation loss rise from its `turn`-th evaluation on, while the training loss falls."""
    values = run.validation["loss"]
    run.validation["loss"] = values + 0.12 * np.maximum(0, np.arange(len(values)) - turn)
    return run


class TestTurningUp:
    def test_overfitting(self, make_pretraining, judge) -> None:
        (finding,) = judge("validation_turning_up", overfitting(make_pretraining(400)))
        assert finding.step in (165, 198, 231) and "overfitting" in finding.cause
        assert f"step {finding.step}" in finding.fix

    def test_dropout_is_not_advised_twice(self, make_pretraining, judge) -> None:
        run = overfitting(make_pretraining(400))
        run.config["model.dropout"] = 0.1
        assert "weight decay" in judge("validation_turning_up", run)[0].fix

    def test_one_bad_evaluation(self, make_pretraining, judge) -> None:
        run = make_pretraining(400)
        run.validation["loss"][-3] += 0.5
        assert judge("validation_turning_up", run) == []
        run.validation["loss"][-1] += 0.5
        assert judge("validation_turning_up", run) == []

    def test_both_rise_together(self, make_pretraining, judge) -> None:
        run = overfitting(make_pretraining(400))
        run["loss"] = run["loss"] + np.maximum(0, np.arange(400) - 180) * 0.01
        assert judge("validation_turning_up", run) == []

    def test_a_rise_within_the_noise(self, make_pretraining, judge) -> None:
        run = make_pretraining(400)
        random = np.random.default_rng(2)
        run.validation["loss"] = 3.4 + 0.05 * random.standard_normal(len(run.validation["loss"]))
        assert judge("validation_turning_up", run) == []

    def test_perplexity_alone_will_do(self, make_pretraining, judge) -> None:
        run = overfitting(make_pretraining(400))
        run.validation["perplexity"] = np.exp(run.validation.pop("loss"))
        assert judge("validation_turning_up", run)

    def test_a_flat_training_loss_blames_the_data(self, make_pretraining, judge) -> None:
        run = overfitting(make_pretraining(400))
        run["loss"] = np.where(np.arange(400) < 100, run["loss"], 4.0)
        assert "moved away" in judge("validation_turning_up", run)[0].cause


class TestStalled:
    def stalled(self, run):
        values = run.validation["loss"]
        run.validation["loss"] = np.maximum(values, values[len(values) // 3])
        return run

    def test_training_falls_alone(self, make_pretraining, judge) -> None:
        run = self.stalled(make_pretraining(400, end=1.0))
        run["loss"] = run["loss"] * np.linspace(1.0, 0.7, 400)
        (finding,) = judge("validation_stalled", run)
        assert "dropout" in finding.fix

    def test_both_flatten(self, make_pretraining, judge) -> None:
        run = self.stalled(make_pretraining(400))
        run["loss"] = np.maximum(run["loss"], run.validation["loss"][-1])
        assert judge("validation_stalled", run) == []

    def test_validation_falls_more_slowly(self, make_pretraining, judge) -> None:
        run = make_pretraining(400, end=1.0)
        run.validation["loss"] = 3 + run.validation["loss"] / 4
        assert judge("validation_stalled", run) == []

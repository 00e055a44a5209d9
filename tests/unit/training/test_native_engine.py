"""The native engine alone: accumulation, normalisation, gradients that are not finite, loss scaling."""

from __future__ import annotations

import pytest
import torch

from llmctl.config.load import build
from llmctl.errors import UserError
from llmctl.model.config import ModelConfig
from llmctl.model.transformer import Transformer
from llmctl.training.config import TrainingConfig
from llmctl.training.distributed import World
from llmctl.training.engines.choose import choose_engine
from llmctl.training.engines.native import NativeEngine
from llmctl.training.layout import Layout
from llmctl.training.losses.next_token import NextTokenLoss

SHAPE = ModelConfig(31, 2, 16, 2, 1, 0, 24)


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def make(**values) -> NativeEngine:
    config = build(TrainingConfig, {"precision": "fp32", "engine": "native", **values})
    return NativeEngine(Transformer(SHAPE, seed=0), config, World())


def batch(rows: int = 4) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 31, (rows, 9), generator=torch.Generator().manual_seed(1))
    labels = ids[:, 1:].clone()
    for row in range(rows):
        labels[row, 1 + 2 * row % 8 :] = -100
    return {"input_ids": ids[:, :-1], "labels": labels}


def cut(whole: dict[str, torch.Tensor], sizes: list[int]) -> list[dict[str, torch.Tensor]]:
    pieces = {name: tensor.split(sizes) for name, tensor in whole.items()}
    return [{name: pieces[name][number] for name in pieces} for number in range(len(sizes))]


@pytest.mark.parametrize("sizes", [[1, 1, 1, 1], [3, 1], [2, 2]])
def test_accumulation_equals_the_whole_batch(sizes):
    whole, pieces = make(precision="fp64"), make(precision="fp64")
    for _ in range(3):
        expected = whole.step([batch()], NextTokenLoss(), 1e-2)
        got = pieces.step(cut(batch(), sizes), NextTokenLoss(), 1e-2)
        assert got.loss == pytest.approx(expected.loss, rel=1e-12)
        assert got.grad_norm == pytest.approx(expected.grad_norm, rel=1e-12)
        assert got.weight == expected.weight == (batch()["labels"] != -100).sum()


def test_loss_is_the_mean_over_valid_tokens():
    engine = make()
    whole = batch()
    logits = engine.model.logits(engine.model(whole["input_ids"]))
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), whole["labels"].flatten()).item()
    assert engine.evaluate(cut(whole, [1, 3]), NextTokenLoss()).loss == pytest.approx(expected, rel=1e-6)
    assert engine.step([whole], NextTokenLoss(), 0.0).loss == pytest.approx(expected, rel=1e-6)


def test_clipping_bounds_the_update_and_reports_the_norm_before():
    clipped, free = (
        make(optimizer="sgd", max_grad_norm=0.01, weight_decay=0.0),
        make(optimizer="sgd", max_grad_norm=0.0),
    )
    before = torch.cat([parameter.detach().flatten().clone() for parameter in clipped.model.parameters()])
    norms = [engine.step([batch()], NextTokenLoss(), 1.0).grad_norm for engine in (clipped, free)]
    after = torch.cat([parameter.detach().flatten() for parameter in clipped.model.parameters()])
    assert norms[0] == norms[1] > 0.01
    assert (after - before).norm().item() == pytest.approx(0.01, rel=1e-3)


def test_a_gradient_that_is_not_finite_changes_nothing():
    class Broken(NextTokenLoss):
        def __call__(self, model, batch):
            output = super().__call__(model, batch)
            output.total = output.total * float("nan")
            return output

    engine = make()
    engine.step([batch()], NextTokenLoss(), 1e-2)
    before = [parameter.detach().clone() for parameter in engine.model.parameters()]
    report = engine.step([batch()], Broken(), 1e-2)
    assert report.skipped
    assert all(torch.equal(old, new) for old, new in zip(before, engine.model.parameters(), strict=True))
    assert not engine.step([batch()], NextTokenLoss(), 1e-2).skipped


def test_half_precision_scales_the_loss():
    engine, exact = make(precision="fp16"), make()
    assert engine._loss_scale == 2.0**16
    reports = [engine.step([batch()], NextTokenLoss(), 1e-3) for _ in range(20)]
    reference = exact.step([batch()], NextTokenLoss(), 1e-3)
    finite = [report for report in reports if not report.skipped]
    assert finite[0].loss == pytest.approx(reference.loss, rel=1e-2)
    assert finite[0].grad_norm == pytest.approx(reference.grad_norm, rel=2e-2)
    assert finite[-1].loss < finite[0].loss


def test_bf16_is_close_to_fp32():
    half, exact = make(precision="bf16"), make()
    for _ in range(3):
        got, expected = (engine.step([batch()], NextTokenLoss(), 1e-2) for engine in (half, exact))
        assert got.loss == pytest.approx(expected.loss, rel=1e-2)
    assert next(half.model.parameters()).dtype == torch.float32  # master weights


def test_engines_are_chosen_with_a_reason():
    def choose(layout, device="cpu", **values):
        return choose_engine(build(TrainingConfig, values), layout, device)

    assert choose(Layout())[0] == "native"
    assert choose(Layout(dp=2), zero_stage=3)[0] == "deepspeed"
    assert choose(Layout(tp=2))[0] == "native"
    assert choose(Layout(dp=2), precision="fp64")[0] == "native"
    assert all(choose(layout)[1] for layout in (Layout(), Layout(dp=2), Layout(tp=2)))
    with pytest.raises(UserError) as refused:
        choose(Layout(dp=2), engine="deepspeed", precision="fp16")
    assert "bf16" in refused.value.hint
    with pytest.raises(UserError):
        choose(Layout(tp=2, dp=2), zero_stage=2)

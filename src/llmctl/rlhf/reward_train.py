"""The training function of `llmctl rlhf reward`, run in every process."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from llmctl import console
from llmctl.artifacts.inputs import open_input
from llmctl.model.huggingface import SCORE_HEAD, find_model_folder, load_model, read_model_config
from llmctl.model.scalar_head import BIAS_KEY, ScalarModel, scalar_config_keys, score_last
from llmctl.rlhf import comparisons
from llmctl.rlhf.comparisons import ComparisonData, Item
from llmctl.rlhf.config import RewardConfig
from llmctl.rlhf.order import Order
from llmctl.rlhf.padding import pad_rows
from llmctl.training.conversations.template import ChatTemplate, load_chat_template
from llmctl.training.engines.base import Engine
from llmctl.training.engines.choose import make_engine
from llmctl.training.engines.common import autocast
from llmctl.training.export import export_model
from llmctl.training.layout import micro_batch_size
from llmctl.training.losses.reward import RewardLoss
from llmctl.training.once import prepare_once
from llmctl.training.respond import check_vocabulary
from llmctl.training.run import Job, TrainingRun, fit
from llmctl.training.sharing import replica_parts

TOKENIZER_FOLDER = "tokenizer"
# Answers that the mean and spread of scores are taken from.
NORMALISING_ANSWERS = 1024


def train(job: Job) -> dict[str, Any]:
    """Prepare the comparisons, train, normalise the scores and export the model."""
    folder = find_model_folder(job.sources["model"])
    shape = read_model_config(folder)
    seq_len = min(job.config.seq_len, shape.max_seq_len or job.config.seq_len)
    config: RewardConfig = dataclasses.replace(job.config, seq_len=seq_len)
    template = load_chat_template(folder)
    check_vocabulary(template, shape.vocab_size, folder)
    data = prepare_comparisons(job, config, template)
    order = Order(len(data.training), config.global_batch_size, config.seed)
    config = dataclasses.replace(config, steps=config.steps or max(1, math.ceil(config.epochs * order.steps_per_epoch)))
    model = ScalarModel(load_model(folder))
    # N(0, 1/(width + 1)): scores begin with a spread of about one (Stiennon et al. 2020, appendix B).
    model.initialize_head((shape.hidden_size + 1) ** -0.5, config.seed)
    engine = make_engine(model, config, job.world)
    try:
        return _fit(dataclasses.replace(job, config=config), config, data, order, template, engine)
    finally:
        engine.close()


def prepare_comparisons(job: Job, config: RewardConfig, template: ChatTemplate) -> ComparisonData:
    """Let the first process read the comparisons; all of them read them back."""

    def build() -> None:
        validation = job.sources.get("validation")
        template.save(job.root / TOKENIZER_FOLDER)
        comparisons.build(
            open_input(job.sources["source"], role="source"),
            open_input(validation, role="validation") if validation is not None else None,
            template,
            seq_len=config.seq_len,
            validation_fraction=config.validation_fraction,
            min_comparisons=config.min_comparisons,
            seed=config.seed,
            root=job.root,
        )

    prepare_once(job.world, lambda: comparisons.is_written(job.root), build)
    return comparisons.read(job.root)


def collate(items: Sequence[Item], pad_id: int) -> dict[str, torch.Tensor]:
    """Make a batch of items; see `RewardLoss`."""
    rows = [row for item in items for row in item.rows]
    input_ids = pad_rows(rows, pad_id)
    pairs, weights, first = [], [], 0
    for item in items:
        of_item = item.pairs()
        pairs += [(first + better, first + worse) for better, worse in of_item]
        weights += [1.0 / len(of_item)] * len(of_item)
        first += len(item.rows)
    return {
        "input_ids": input_ids,
        "lengths": torch.tensor([len(row) for row in rows]),
        "pairs": torch.tensor(pairs, dtype=torch.int64).view(-1, 2),
        "pair_weights": torch.tensor(weights),
    }


def item_batches(items: Sequence[Item], size: int, pad_id: int, engine: Engine) -> list[dict[str, torch.Tensor]]:
    """Return this replica's micro-batches of at most `size` prompts; like lengths come together."""
    ordered = sorted(items, key=lambda item: -max(len(row) for row in item.rows))
    batches = []
    for part, counted in replica_parts(ordered, size, engine.data_parallel_rank, engine.data_parallel_size):
        batch = collate(part, pad_id)
        if not counted:
            batch["pairs"], batch["pair_weights"] = batch["pairs"][:0], batch["pair_weights"][:0]
        batches.append(batch)
    return batches


def _fit(
    job: Job, config: RewardConfig, data: ComparisonData, order: Order, template: ChatTemplate, engine: Engine
) -> dict[str, Any]:
    loss = RewardLoss()
    size = micro_batch_size(config, engine.data_parallel_size)
    validation = item_batches(data.validation, size, template.pad_id, engine)

    def batches(step: int) -> list[dict[str, torch.Tensor]]:
        return item_batches([data.training[index] for index in order.step(step)], size, template.pad_id, engine)

    with TrainingRun(job, {"reward": engine}, label="reward") as run:

        def validate(step: int) -> None:
            if data.validation:
                report = engine.evaluate(validation, loss)
                run.validated(step, report.loss, tokens=report.weight, **report.metrics)
                run.state["before" if step == 0 else "after"] = {"loss": report.loss, **report.metrics}

        if run.step == 0:
            validate(0)
        if run.step < run.total_steps:
            every = config.eval_every or order.steps_per_epoch
            fit(run, engine, loss, batches, validate=validate, validate_every=every)
        steps, before, after = run.step, run.state.get("before"), run.state.get("after")
    return _finish(job, config, data, template, engine, steps, before, after)


def _finish(
    job: Job,
    config: RewardConfig,
    data: ComparisonData,
    template: ChatTemplate,
    engine: Engine,
    steps: int,
    before: dict[str, float] | None,
    after: dict[str, float] | None,
) -> dict[str, Any]:
    world = job.world
    mean, spread = _score_moments(engine, data.training, config, template.pad_id)
    # Scores are handed on with mean 0 and spread 1 over the training answers, so that coefficients mean the same
    # for every reward model: the gain goes into the head's weight, the shift into a bias.
    gain = 1.0 / spread if spread > 1e-6 else 1.0

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in engine.full_weights():
            if name == "score":
                yield SCORE_HEAD, tensor * gain
            else:
                yield name.removeprefix("backbone."), tensor

    shape = engine.model.config
    export_model(
        engine,
        job.root / "model",
        config,
        world,
        shape=shape,  # type: ignore[arg-type]
        tokenizer_folder=job.root / TOKENIZER_FOLDER,
        extra_config={**scalar_config_keys(shape), BIAS_KEY: -mean * gain, "pad_token_id": template.pad_id},  # type: ignore[arg-type]
        weights=weights(),
    )
    baseline = data.statistics["longer_wins"]["validation"]
    if world.is_main and after is not None and baseline is not None and after["accuracy"] < max(baseline, 1 - baseline):
        console.warning(
            f"the reward model ranks {after['accuracy']:.1%} of the held-out pairs rightly; "
            f"preferring {'the longer' if baseline >= 0.5 else 'the shorter'} answer gets "
            f"{max(baseline, 1 - baseline):.1%}",
            "more comparisons, or a better model to start from",
        )
    return {
        **data.statistics,
        "steps": steps,
        "validation": {"before": _rounded(before), "after": _rounded(after)},
        "score_normalisation": {"mean": round(mean, 4), "spread": round(spread, 4)},
    }


def _rounded(values: dict[str, float] | None) -> dict[str, float] | None:
    return None if values is None else {name: round(value, 4) for name, value in values.items()}


@torch.no_grad()
def _score_moments(engine: Engine, items: Sequence[Item], config: RewardConfig, pad_id: int) -> tuple[float, float]:
    """Return mean and standard deviation of the scores of the first training answers (the same in every process)."""
    rows = [row for item in items for row in item.rows][:NORMALISING_ANSWERS]
    engine.model.eval()
    scores: list[float] = []
    with autocast(config.precision, engine.device):
        for start in range(0, len(rows), 16):
            part = rows[start : start + 16]
            ids = pad_rows(part, pad_id).to(engine.device)
            lengths = torch.tensor([len(row) for row in part], device=engine.device)
            scores += score_last(engine.model, ids, lengths).double().tolist()  # type: ignore[arg-type]
    values = torch.tensor(scores, dtype=torch.float64)
    return float(values.mean()), float(values.std(unbiased=False))

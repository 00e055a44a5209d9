"""The training function of `llmctl rlhf dpo`, run in every process."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch

from llmctl import console
from llmctl.model.huggingface import find_model_folder, load_model, read_model_config
from llmctl.rlhf.comparisons import Item
from llmctl.rlhf.config import DpoConfig
from llmctl.rlhf.order import Order
from llmctl.rlhf.padding import pad_rows, response_mask
from llmctl.rlhf.reward_train import TOKENIZER_FOLDER, prepare_comparisons
from llmctl.training.conversations.template import load_chat_template
from llmctl.training.engines.choose import make_engine
from llmctl.training.engines.common import autocast
from llmctl.training.export import export_model
from llmctl.training.layout import micro_batch_size
from llmctl.training.losses.dpo import DpoLoss
from llmctl.training.respond import check_vocabulary
from llmctl.training.response import response_logprobs
from llmctl.training.run import Job, TrainingRun, fit
from llmctl.training.sharing import replica_parts

# Rewards this far apart have saturated the loss: nothing is learned any more, and the policy runs away.
SATURATED_MARGIN = 10.0

# One comparison: chosen and rejected row, and where their answers begin.
Pair = tuple[list[int], list[int], int, int]


def train(job: Job) -> dict[str, Any]:
    """Prepare the comparisons, train the policy on their pairs, and export it."""
    folder = find_model_folder(job.sources["model"])
    shape = read_model_config(folder)
    seq_len = min(job.config.seq_len, shape.max_seq_len or job.config.seq_len)
    config: DpoConfig = dataclasses.replace(job.config, seq_len=seq_len)
    template = load_chat_template(folder)
    check_vocabulary(template, shape.vocab_size, folder)
    data = prepare_comparisons(job, config, template)
    training, validation = pairs_of(data.training), pairs_of(data.validation)
    order = Order(len(training), config.global_batch_size, config.seed)
    config = dataclasses.replace(config, steps=config.steps or max(1, math.ceil(config.epochs * order.steps_per_epoch)))
    engine = make_engine(load_model(folder), config, job.world)
    reference = load_model(folder, device=job.world.device).eval().requires_grad_(False)
    loss = DpoLoss(config.beta, config.label_smoothing, config.variant)
    size = micro_batch_size(config, engine.data_parallel_size)

    def batches(pairs: Sequence[Pair]) -> list[dict[str, torch.Tensor]]:
        ordered = sorted(pairs, key=lambda pair: -max(len(pair[0]), len(pair[1])))
        found = []
        for part, counted in replica_parts(ordered, size, engine.data_parallel_rank, engine.data_parallel_size):
            batch = collate(part, template.pad_id)
            batch["mask"] &= counted
            found.append(_with_reference(batch, reference, config, job.world.device))
        return found

    try:
        with TrainingRun(dataclasses.replace(job, config=config), {"policy": engine}, label="dpo") as run:
            held_out = batches(validation)

            def validate(step: int) -> None:
                if validation:
                    report = engine.evaluate(held_out, loss)
                    run.validated(step, report.loss, tokens=report.weight, **report.metrics)
                    run.state["before" if step == 0 else "after"] = {"loss": report.loss, **report.metrics}

            if run.step == 0:
                validate(0)
            if run.step < run.total_steps:
                fit(
                    run,
                    engine,
                    loss,
                    lambda step: batches([training[index] for index in order.step(step)]),
                    validate=validate,
                    validate_every=config.eval_every or order.steps_per_epoch,
                )
            before, after, steps = run.state.get("before"), run.state.get("after"), run.step
        if job.world.is_main and after is not None and after["margin"] > SATURATED_MARGIN:
            console.warning(
                f"the mean margin is {after['margin']:.1f}: the loss is saturated, the policy far from its start",
                "lower --lr (1e-6 is usual for all weights), or use fewer steps",
            )
        extra = {"eos_token_id": list(template.stop_ids), "pad_token_id": template.pad_id}
        export_model(
            engine,
            job.root / "model",
            config,
            job.world,
            tokenizer_folder=job.root / TOKENIZER_FOLDER,
            extra_config=extra,
        )
    finally:
        engine.close()
    rounded = {
        name: None if values is None else {key: round(value, 4) for key, value in values.items()}
        for name, values in (("before", before), ("after", after))
    }
    return {**data.statistics, "steps": steps, "validation": rounded}


def pairs_of(items: Sequence[Item]) -> list[Pair]:
    """Return every pair of every prompt that is not a tie."""
    return [
        (item.rows[better], item.rows[worse], item.answer_starts[better], item.answer_starts[worse])
        for item in items
        for better, worse in item.pairs()
    ]


def collate(pairs: Sequence[Pair], pad_id: int) -> dict[str, torch.Tensor]:
    """Make a batch of pairs: all chosen rows, then all rejected rows; see `DpoLoss`."""
    rows = [pair[0] for pair in pairs] + [pair[1] for pair in pairs]
    starts = [pair[2] for pair in pairs] + [pair[3] for pair in pairs]
    ids = pad_rows(rows, pad_id)
    return {"input_ids": ids, "mask": response_mask(starts, [len(row) for row in rows], ids.shape[1])}


@torch.no_grad()
def _with_reference(
    batch: dict[str, torch.Tensor], reference: Any, config: DpoConfig, device: torch.device
) -> dict[str, torch.Tensor]:
    with autocast(config.precision, device):
        logprobs, _ = response_logprobs(reference, batch["input_ids"].to(device), batch["mask"].to(device))
    return {**batch, "reference_logprobs": logprobs.sum(1).cpu()}

"""The training function of `llmctl pretrain`, run in every process."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llmctl import console
from llmctl.artifacts.shards import TokenDocuments, open_shards
from llmctl.errors import UserError
from llmctl.model.config import ModelConfig
from llmctl.model.huggingface import find_model_folder, read_model_config, special_token_ids
from llmctl.model.vocabulary import GrownTokens, grown_shape, growth_of
from llmctl.pretraining.config import PretrainConfig
from llmctl.pretraining.data import PretrainingData
from llmctl.pretraining.mixture_report import say_mixture, write_plan, write_realized
from llmctl.pretraining.overfitting import OverfitWatch
from llmctl.pretraining.samples import SampleLog
from llmctl.training.engines.base import Engine
from llmctl.training.engines.choose import choose_engine, make_engine
from llmctl.training.export import export_model
from llmctl.training.launch import MODEL_FOLDER
from llmctl.training.layout import Layout, micro_batch_size
from llmctl.training.losses.next_token import NextTokenLoss
from llmctl.training.models import build_model
from llmctl.training.records import METRICS
from llmctl.training.run import Job, TrainingRun, fit

# Above this many sequences AdamW is commonly replaced by LAMB (You et al. 2020).
LARGE_BATCH = 1024
_BACKENDS = {"cpu": "gloo", "cuda": "NCCL"}
# Share of a run that may be spent waiting for data.
MAX_DATA_WAIT = 0.02


def train(job: Job) -> dict[str, Any]:
    """Pretrain a model on shards and export it."""
    documents = open_shards(job.sources["source"], verify=job.config.verify_shards)
    config = resolve(job.config, documents)
    world = job.world
    data = PretrainingData(documents, config, micro_batch_size(config, world.layout.dp), world.dp_rank, world.layout.dp)
    if world.tp_rank == 0 and world.pp_rank == 0:
        columns = data.loader.plan.columns
        data.log = SampleLog(job.root, world.dp_rank, columns, documents.sources, config.log_samples)
    if world.is_main:
        write_plan(job.root, data.loader)
    grown = grown_tokens(config, documents)
    engine = make_engine(build_model(config.model, config, world, config.init_from, grown), config, world)
    if world.is_main:
        _say_what(config, data, engine, job)
        if grown is not None:
            console.info(f"pretrain: {grown.describe()}")
    try:
        return _run(dataclasses.replace(job, config=config), config, data, documents, engine)
    finally:
        engine.close()


def resolve(config: PretrainConfig, documents: TokenDocuments) -> PretrainConfig:
    """Return the configuration with the vocabulary and lengths that come from the shards or the initial model.

    Raises:
        UserError: a vocabulary smaller than the tokenizer's.
    """
    model = config.model
    if config.init_from:
        model = grown_shape(read_model_config(config.init_from), grown_tokens(config, documents))
        model = dataclasses.replace(model, dropout=config.model.dropout)
    changes: dict[str, Any] = {}
    if not model.vocab_size:
        changes["vocab_size"] = documents.vocab_size
    elif model.vocab_size < documents.vocab_size:
        raise UserError(
            f"the model has {model.vocab_size:,} token ids and the shards use {documents.vocab_size:,}",
            "leave model.vocab_size at 0, or make shards with the model's tokenizer",
        )
    if not model.max_seq_len:
        changes["max_seq_len"] = config.seq_len
    return dataclasses.replace(config, model=dataclasses.replace(model, **changes))


def grown_tokens(config: PretrainConfig, documents: TokenDocuments) -> GrownTokens | None:
    """Return the tokens of the shards that the initial model does not know, if its tokenizer was grown for them."""
    if not config.init_from:
        return None
    folder = find_model_folder(config.init_from)
    return growth_of(folder, read_model_config(folder).vocab_size, Path(documents.tokenizer))


def _say_what(config: PretrainConfig, data: PretrainingData, engine: Engine, job: Job) -> None:
    layout = job.world.layout
    why = choose_engine(config, layout, job.world.device.type)[1]
    plural = "es" if layout.world_size > 1 else ""
    console.info(
        f"pretrain: {config.model.num_parameters() / 1e6:.1f}M parameters, {engine.name} engine ({why}), "
        f"{layout.world_size} process{plural} on {job.world.device.type} ({layout.describe()}), {config.precision}"
    )
    console.info(
        f"pretrain: {data.loader.num_tokens:,} training tokens in {data.loader.per_epoch:,} sequences, "
        f"{data.epochs:.2f} epochs in {config.steps:,} steps; {len(data.held_out):,} documents held out; "
        f"peak learning rate {config.peak_lr:g}"
    )
    say_mixture(data.loader)
    if layout.dp > 1:
        console.info(f"pretrain: {_communication(config, layout, job.world.device.type)}")
    if config.global_batch_size > LARGE_BATCH and config.optimizer == "adamw":
        console.warning(
            f"a batch of {config.global_batch_size:,} sequences is large for AdamW", "consider --optimizer lamb"
        )


def _communication(config: PretrainConfig, layout: Layout, device: str) -> str:
    """Say how gradients are summed over replicas: the algorithm, and the bytes that a process sends in a step."""
    how = "ring all-reduce by gloo" if device == "cpu" else "all-reduce by NCCL, which takes a ring or a tree"
    if config.zero_stage == 3:
        return f"gradients: reduce-scatter by {_BACKENDS[device]}; weights gathered in every forward and backward pass"
    if config.zero_stage:
        how = f"reduce-scatter, and all-gather of weights (ZeRO {config.zero_stage}), by {_BACKENDS[device]}"
    size = 4 * config.model.num_parameters() / (layout.tp * layout.pp)
    return f"gradients: {how}, {2 * (layout.dp - 1) / layout.dp * size / 1e6:.1f} MB sent by each process and step"


def _run(
    job: Job, config: PretrainConfig, data: PretrainingData, documents: TokenDocuments, engine: Engine
) -> dict[str, Any]:
    loss = NextTokenLoss()
    batches, tokens, num_bytes = data.validation()
    with TrainingRun(job, {"model": engine}, label="pretrain") as run:
        watch = OverfitWatch(data, engine, config, job.world) if config.overfit_watch and batches else None

        def validate(step: int) -> bool:
            report = engine.evaluate(batches, loss)
            run.validated(step, report.loss, tokens=tokens, num_bytes=num_bytes)
            run.state["validation_loss"] = report.loss
            return watch.check(run, step, loss) if watch is not None else False

        if run.step == 0 and batches:
            validate(0)
        with logged_samples(data, run):
            fit(
                run,
                engine,
                loss,
                data.micro_batches,
                validate=validate if batches else None,
                validate_every=config.validate_every,
            )
    if job.world.is_main:
        write_realized(job.root, data.loader)
        say_wait(job.root)
    special = special_token_ids(Path(documents.tokenizer))
    extra = {} if "eos_token_id" in special else {"eos_token_id": documents.eos_id}
    if "bos_token_id" not in special:
        extra["bos_token_id"] = documents.eos_id  # documents begin at the EOS of the one before
    export_model(
        engine,
        job.root / MODEL_FOLDER,
        config,
        job.world,
        tokenizer_folder=Path(documents.tokenizer),
        extra_config=extra,
    )
    facts = statistics(config.model, run, data, tokens, num_bytes)
    if "bits_per_byte" in facts and job.world.is_main:
        console.info(
            f"pretrain: validation {facts['bits_per_byte']:.3f} bits per byte; the unigram entropy of that text is "
            f"{facts['unigram_bits_per_byte']:.3f}"
        )
    return facts


def say_wait(root: Path) -> None:
    """Say which share of the run was spent waiting for data, and warn where it is too much."""
    steps = [json.loads(line) for line in (root / METRICS).read_bytes().splitlines()]
    steps = steps[1:] or steps  # nothing can be read ahead of the first step
    waited, whole = (sum(step[name] for step in steps) for name in ("data_time_s", "step_time_s"))
    share = waited / max(whole, 1e-9)
    console.info(f"pretrain: {100 * share:.2f} % of the training time was spent waiting for data")
    if share > MAX_DATA_WAIT:
        console.warning(
            f"the training waited for data {100 * share:.1f} % of the time",
            f"put the shards on a faster disk, or copy them to a local one; `llmctl diagnose {root}` says more",
        )


@contextmanager
def logged_samples(data: PretrainingData, run: TrainingRun) -> Iterator[None]:
    """Keep the log of samples to the steps that count: finished ones."""
    if data.log is None:
        yield
        return
    data.log.cut_after(run.step, others_from=data.replicas if run.world.is_main else None)
    try:
        yield
    finally:
        # The batch of the step that was to come is in the log already.
        data.log.cut_after(run.step)


def statistics(
    model: ModelConfig, run: TrainingRun, data: PretrainingData, tokens: int, num_bytes: int
) -> dict[str, Any]:
    """Return what the manifest tells about the run: only what equal runs share."""
    import math

    facts: dict[str, Any] = {
        "steps": run.step,
        "tokens": run.tokens,
        "parameters": model.num_parameters(),
        "epochs": round(data.epochs, 4),
        "training_documents": len(data.loader.members),
        "validation_documents": len(data.held_out),
        "mixture": data.loader.plan.to_mapping(),
        "vocab_size": model.vocab_size,
    }
    loss = run.state.get("validation_loss")
    if loss is not None and math.isfinite(loss):
        facts["validation_loss"] = round(loss, 6)
        bits = tokens / math.log(2) / max(num_bytes, 1)
        facts["bits_per_byte"] = round(loss * bits, 6)
        facts["unigram_bits_per_byte"] = round(data.unigram_entropy() * bits, 6)
    return facts

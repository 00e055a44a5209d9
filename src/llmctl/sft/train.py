"""The training function of `llmctl sft`, run in every process."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from typing import Any

import torch

from llmctl import console
from llmctl.artifacts.inputs import open_input
from llmctl.errors import RunFailed
from llmctl.model.huggingface import find_model_folder, load_model, read_model_config
from llmctl.model.lora import adapter_tensors, add_lora, merge, save_adapter
from llmctl.model.vocabulary import GrownTokens, grown_shape, growth_of
from llmctl.sft.config import SftConfig
from llmctl.sft.data import SftData, build_data, is_written, limit_seq_len, read_data, write_data
from llmctl.sft.forgetting import Forgetting
from llmctl.sft.packing import Line, micro_batches
from llmctl.sft.pretraining import ROLE, PretrainingText
from llmctl.training.conversations.template import ChatTemplate, load_chat_template
from llmctl.training.engines.base import Engine
from llmctl.training.engines.choose import make_engine
from llmctl.training.engines.common import autocast
from llmctl.training.export import export_model, read_exported
from llmctl.training.layout import micro_batch_size
from llmctl.training.losses.next_token import NextTokenLoss
from llmctl.training.once import prepare_once
from llmctl.training.respond import check_vocabulary
from llmctl.training.run import Job, TrainingRun, fit

BEST_FOLDER = "best"
ADAPTER_FOLDER = "adapter"
TOKENIZER_FOLDER = "tokenizer"


def train(job: Job) -> dict[str, Any]:
    """Prepare the data, train, and export the weights of the best or last validation."""
    folder = find_model_folder(job.sources["model"])
    shape = read_model_config(folder)
    config: SftConfig = dataclasses.replace(job.config, seq_len=limit_seq_len(job.config.seq_len, shape))
    if config.seq_len < job.config.seq_len and job.world.is_main:
        console.info(f"seq_len is {config.seq_len:,}: the model reads no more")
    tokenizer = job.sources.get("tokenizer", folder)
    grown = growth_of(folder, shape.vocab_size, tokenizer)
    if grown is not None and job.world.is_main:
        console.info(f"sft: {grown.describe()}")
    template = load_chat_template(tokenizer)
    check_vocabulary(template, grown_shape(shape, grown).vocab_size, tokenizer)
    data = _data(job, config, template)
    config = dataclasses.replace(config, steps=data.total_steps(config))
    text = None
    if ROLE in job.sources:
        vocab_size = grown_shape(shape, grown).vocab_size
        text = PretrainingText(job.sources[ROLE], config, template, vocab_size, data.training, data.plan)
    model = load_model(folder, grown=grown)
    if config.lora_rank:
        add_lora(
            model,
            config.lora_rank,
            lora_alpha(config),
            dora=config.dora,
            seed=config.seed,
            train_vocabulary=grown is not None,
        )
    engine = make_engine(model, config, job.world)
    try:
        return _Training(dataclasses.replace(job, config=config), config, data, template, engine, grown, text).run()
    finally:
        engine.close()


def lora_alpha(config: SftConfig) -> float:
    """Return what adapters are scaled by, over their rank."""
    return config.lora_alpha or 2.0 * config.lora_rank


def _data(job: Job, config: SftConfig, template: ChatTemplate) -> SftData:
    """Let the first process build the data; all of them read it back."""

    def build() -> None:
        validation = job.sources.get("validation")
        data = build_data(
            open_input(job.sources["source"], role="source"),
            open_input(validation, role="validation") if validation is not None else None,
            template,
            config,
        )
        template.save(job.root / TOKENIZER_FOLDER)
        write_data(data, job.root)

    prepare_once(job.world, lambda: is_written(job.root), build)
    return read_data(job.root, config)


class _Training:
    """One run: steps, validations, and what is decided from them."""

    def __init__(
        self,
        job: Job,
        config: SftConfig,
        data: SftData,
        template: ChatTemplate,
        engine: Engine,
        grown: GrownTokens | None,
        text: PretrainingText | None,
    ) -> None:
        self.grown, self.text = grown, text
        self.job, self.config, self.data, self.template, self.engine = job, config, data, template, engine
        self.loss = NextTokenLoss()
        self.size = micro_batch_size(config, engine.data_parallel_size)
        self.validation = self._batches([[row] for row in range(len(data.validation))], validation=True)
        self.forgetting: Forgetting | None = None
        if text is not None:
            lines, num_bytes = text.held_out_lines()
            self.forgetting = Forgetting(self._batches(lines), num_bytes, config.max_forgetting)

    def _step_batches(self, step: int) -> list[dict[str, Any]]:
        mixed = self.text.lines(step) if self.text is not None else []
        return self._batches([*self.data.plan.step(step), *mixed])

    def _batches(self, packs: Sequence[Sequence[int] | Line], *, validation: bool = False) -> list[dict[str, Any]]:
        rows = self.data.validation if validation else self.data.training
        return micro_batches(
            rows, packs, self.size, self.template.pad_id, self.engine.data_parallel_rank, self.engine.data_parallel_size
        )

    def run(self) -> dict[str, Any]:
        """Train to the end, or until validation turns up."""
        self.steps = TrainingRun(self.job, {"model": self.engine}, label="sft")
        with self.steps as run:
            if run.step == 0:
                self._validate(0)
            if "stopped_at" not in run.state and run.step < run.total_steps:
                fit(
                    run,
                    self.engine,
                    self.loss,
                    self._step_batches,
                    validate=self._validate,
                    validate_every=self.config.eval_every or self.data.plan.steps_per_epoch,
                )
        self._export()
        if self.forgetting is not None and self.job.world.is_main:
            self.forgetting.say(self.state, self.exported_step, mixed=self.config.mix_pretrain > 0)
        return self._statistics()

    @property
    def state(self) -> dict[str, Any]:
        """Return what every checkpoint of the run carries: validation losses so far, the best, how long above it."""
        return self.steps.state

    def _validate(self, step: int) -> bool:
        """Record the validation loss; return True when training should stop."""
        if self.forgetting is not None:
            self.forgetting.measure(self.steps, self.engine, self.loss, step)
        if not len(self.data.validation):
            return False
        report = self.engine.evaluate(self.validation, self.loss)
        self.steps.validated(step, report.loss, tokens=report.weight)
        if step == 0:
            self.state["before"] = report.loss
            return False
        self.state["after"] = report.loss
        best = self.state.get("best")
        if best is None or report.loss < best["loss"]:
            self.state["best"] = {"step": step, "loss": report.loss}
            self.state["above"] = 0
            if self.config.stop_on_rise:
                self._keep_best()
            return False
        risen = self.config.stop_on_rise > 0 and report.loss > best["loss"] * (1.0 + self.config.stop_on_rise)
        self.state["above"] = self.state["above"] + 1 if risen else 0
        if self.state["above"] < self.config.stop_patience or step >= self.config.steps:
            return False
        self.state["stopped_at"] = step
        if self.job.world.is_main:
            console.warning(
                f"validation loss turned up: {report.loss:.4f} at step {step}, {best['loss']:.4f} at step "
                f"{best['step']}; stopped, and the best weights are kept",
                "more conversations, fewer epochs, or a lower --lr"
                + ("" if self.config.lora_rank else "; --lora-rank 16 --lr 2e-4 learns less by heart")
                + "; --stop-on-rise 0 trains on",
            )
        return True

    def _keep_best(self) -> None:
        export_model(self.engine, self.job.root / BEST_FOLDER, self.config, self.job.world, **self._plain_weights())

    def _plain_weights(self) -> dict[str, Any]:
        """Return `weights` and `shape` for `export_model`: with adapters, the merged weights; else nothing."""
        if not self.config.lora_rank:
            return {}
        adapter = adapter_tensors(self.engine.full_weights(), train_vocabulary=self.grown is not None)
        if not self.job.world.is_main:
            return {"weights": iter(())}
        alpha = lora_alpha(self.config)
        if self.grown is None:  # peft's format has no place for rows that the base model lacks
            save_adapter(self.job.root / ADAPTER_FOLDER, adapter, self.config.lora_rank, alpha)
        start = load_model(find_model_folder(self.job.sources["model"]), grown=self.grown)
        weights = ((name, parameter.detach()) for name, parameter in start.logical_parameters())
        return {"weights": merge(weights, adapter, alpha / self.config.lora_rank)}

    @property
    def exported_step(self) -> int:
        """Return the step whose weights are exported: the last, unless validation was clearly better before."""
        best = self.state.get("best")
        if best is None or not self.state.get("above"):
            return self.steps.step
        return int(best["step"])

    def _export(self) -> None:
        root = self.job.root
        extra = {"eos_token_id": list(self.template.stop_ids), "pad_token_id": self.template.pad_id}
        given_best = self.exported_step != self.steps.step
        given: dict[str, Any]
        if given_best:
            given = {"weights": read_exported(root / BEST_FOLDER) if self.job.world.is_main else iter(())}
        else:
            given = self._plain_weights()
        export_model(
            self.engine,
            root / "model",
            self.config,
            self.job.world,
            tokenizer_folder=root / TOKENIZER_FOLDER,
            extra_config=extra,
            **given,
        )
        if self.config.lora_rank and not given_best and self.config.zero_stage < 3:
            self._compare_merged()
        if self.job.world.is_main:
            shutil.rmtree(root / BEST_FOLDER, ignore_errors=True)

    @torch.no_grad()
    def _compare_merged(self) -> None:
        """Compare the logits of the merged model with those of the model with its adapters."""
        if not self.job.world.is_main:
            return
        ids = torch.tensor([self.data.training.row(0)[0].tolist()], device=self.engine.device)
        adapted: Any = self.engine.model.eval()
        merged = load_model(self.job.root / "model", device=self.engine.device)
        with autocast(self.config.precision, self.engine.device):
            wanted, found = (model.logits(model(ids)).float() for model in (adapted, merged))
        difference = float((wanted - found).abs().max()) / max(float(wanted.abs().max()), 1e-6)
        limit = 1e-3 if self.config.precision in ("fp32", "fp64") and self.config.export_precision == "fp32" else 0.1
        if difference > limit:
            raise RunFailed(
                f"the merged model's logits are off by {difference:.2g} of the largest",
                f"the adapter is in {self.job.root / ADAPTER_FOLDER}; please report this",
            )
        console.info(f"adapters merged into model/: logits differ by {difference:.1g} of the largest")

    def _statistics(self) -> dict[str, Any]:
        losses = {name: _rounded(self.state.get(name)) for name in ("before", "after")}
        best = self.state.get("best")
        more: dict[str, Any] = {}
        if self.text is not None and self.forgetting is not None:
            found = self.forgetting.statistics(self.state, self.exported_step)
            more["pretraining"] = {**self.text.facts(), **found}
        return {
            **self.data.statistics,
            **more,
            "steps": self.steps.step,
            "epochs": round(self.steps.step / self.data.plan.steps_per_epoch, 3),
            "sequences": len(self.data.plan.packs),
            "validation_loss": {**losses, "best": _rounded(best["loss"]) if best else None},
            "exported_step": self.exported_step,
            "stopped_early": "stopped_at" in self.state,
        }


def _rounded(value: float | None) -> float | None:
    # Sums over processes differ in the last digits with their number; equal runs have equal manifests.
    return None if value is None else round(value, 4)

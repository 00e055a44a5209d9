"""What every training stage shares: records, progress, validation, checkpoints, signals, export."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from llmctl import console
from llmctl.config.schema import to_mapping
from llmctl.errors import Interrupted, RunFailed
from llmctl.training.checkpoint import CheckpointStore, find_checkpoint, read_checkpoint
from llmctl.training.config import TrainingConfig
from llmctl.training.distributed import World
from llmctl.training.engines.base import Engine, Loss, StepReport
from llmctl.training.heartbeat import PROGRESS
from llmctl.training.monitor import GradientMonitor
from llmctl.training.records import (
    EVENTS,
    METRICS,
    TENSORBOARD,
    VALIDATION,
    JsonLines,
    TensorBoard,
    memory_bytes,
    write_host,
)
from llmctl.training.schedule import learning_rate
from llmctl.training.signals import StopRequest, stop_requests

Batch = dict[str, torch.Tensor]
# Ending of the columns that hold the part of an exchange which lies under the backward pass.
HIDDEN = "_hidden_wait_s"
# Steps in a row with a gradient that is not finite, after which a run is given up. fp16 needs some to find its scale.
MAX_BAD_STEPS = {"fp16": 40}
DEFAULT_MAX_BAD_STEPS = 5


@dataclass
class Job:
    """What a training function gets in each process.

    Attributes:
        root: the run's folder.
        sources: input folders by role.
        world: the processes of the run.
    """

    root: Path
    stage: str
    config: Any
    sources: dict[str, Path]
    world: World = field(default_factory=World)


class TrainingRun:
    """One run in one process: keeps records, makes checkpoints, goes on from them.

        with TrainingRun(job, {"model": engine}, label="pretrain") as run:
            fit(run, engine, loss, micro_batches)

    Attributes:
        step: the last finished step.
        total_steps: the last step of the run.
        tokens: tokens that the finished steps were trained on.
        state: the stage's own plain JSON values; saved in every checkpoint, there again after a resume.
    """

    def __init__(self, job: Job, engines: Mapping[str, Engine], *, label: str, total_steps: int | None = None) -> None:
        self.job, self.world, self.engines, self.label = job, job.world, dict(engines), label
        self.config: TrainingConfig = job.config
        self.total_steps = total_steps if total_steps is not None else self.config.steps
        self.step, self.tokens = 0, 0
        self.state: dict[str, Any] = {}
        self.monitors = {name: GradientMonitor(engine.config) for name, engine in engines.items()}
        self.store = CheckpointStore(job.root, self.config.keep_checkpoints, self.world)
        self._metrics, self._validation = JsonLines(job.root / METRICS), JsonLines(job.root / VALIDATION)
        self._events = JsonLines(job.root / EVENTS / f"rank-{self.world.rank}.jsonl")
        self._saved_step = -1
        self._checkpoint_s = 0.0
        self._bad_steps = 0
        self._board: TensorBoard | None = None
        self._progress: Any = None
        self._stop = StopRequest()
        self._signals: Any = None

    # -- begin and end ---------------------------------------------------------------------------------------

    def __enter__(self) -> TrainingRun:
        self._signals = stop_requests()
        self._stop = self._signals.__enter__()
        try:
            # Without a checkpoint nothing of an earlier attempt counts, a validation before the first step included.
            last_kept = self.step if self._restore() else -1
            if self.world.is_main:
                for lines in (self._metrics, self._validation):
                    lines.cut_after(last_kept)
                self._board = TensorBoard(self.job.root / TENSORBOARD, self.config.tensorboard, self.step + 1)
                self._progress = console.progress(self.label, self.total_steps, "steps", self.step).__enter__()
            self._events.cut_after(last_kept)
            write_host(self.job.root / EVENTS, self.world.rank, self.world.device)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        PROGRESS.busy = "end"
        self.store.join()
        for lines in (self._metrics, self._validation, self._events):
            lines.close()
        if self._board is not None:
            self._board.close()
        if self._progress is not None:
            self._progress.close()
        self._signals.__exit__(None, None, None)

    def _restore(self) -> bool:
        """Take up the newest checkpoint, if there is one."""
        checkpoint = self.store.newest()
        if checkpoint is None and self.config.resume_from:
            checkpoint = read_checkpoint(find_checkpoint(Path(self.config.resume_from)))
            self._say(f"{self.label}: starts from {checkpoint.folder}, after step {checkpoint.step}")
        elif checkpoint is not None:
            self._say(f"{self.label}: goes on after step {checkpoint.step}")
        if checkpoint is None:
            return False
        for name, engine in self.engines.items():
            engine.load(checkpoint.folder / name)
        self.step = self._saved_step = checkpoint.step
        self.tokens = int(checkpoint.state.get("tokens", 0))
        self.state = dict(checkpoint.state.get("stage", {}))
        for name, state in checkpoint.state.get("monitors", {}).items():
            if name in self.monitors:
                self.monitors[name].restore(state)
        if checkpoint.folder.parent != self.store.folder:
            self._saved_step = -1
        return True

    def _say(self, message: str) -> None:
        if self.world.is_main:
            console.info(message)

    # -- steps -----------------------------------------------------------------------------------------------

    def update(self, name: str, micro_batches: Sequence[Batch], loss: Loss, lr: float, step: int) -> StepReport:
        """Make one optimizer step with one of the engines, under its gradient monitor.

        Args:
            lr: the schedule's learning rate; what the step was made with is in the report.
        """
        engine, monitor = self.engines[name], self.monitors[name]
        engine.max_grad_norm = monitor.max_grad_norm
        report = engine.step(micro_batches, loss, lr * monitor.lr_factor)
        report.lr = lr * monitor.lr_factor
        done = monitor.observe(step, report.grad_norm)
        if done is not None and self.world.is_main:
            console.warning(f"{self.label}: {done}")
        if monitor.num_events:
            report.metrics = {
                **report.metrics,
                "gradient_events": float(monitor.num_events),
                "lr_factor": monitor.lr_factor,
            }
        return report

    # -- records ---------------------------------------------------------------------------------------------

    def record(
        self,
        step: int,
        report: StepReport,
        lr: float,
        tokens: int,
        step_time_s: float,
        data_time_s: float = 0.0,
        **extra: Any,
    ) -> None:
        """Write the metrics of a finished step.

        Args:
            tokens: tokens of the step, over all processes.
            step_time_s: wall-clock time of the whole step.
            data_time_s: time that this process waited for data.
            extra: further numbers of the stage.

        Raises:
            RunFailed: the gradient was not finite for too many steps in a row.
        """
        self.step, self.tokens = step, self.tokens + tokens
        PROGRESS.finished_step(step)
        seconds = {f"{phase}_s": value for phase, value in report.seconds.items()}
        # `checkpoint_s` is the wait for a checkpoint after the step before.
        times = {
            "step_time_s": step_time_s,
            "data_time_s": data_time_s,
            "checkpoint_s": self._checkpoint_s,
            **seconds,
        }
        self._checkpoint_s = 0.0
        traffic = {f"{group}_bytes": size for group, size in report.sent_bytes.items()}
        traffic |= {f"{group}_wait_s": value for group, value in report.waited_s.items()}
        traffic["communication_bytes"] = sum(report.sent_bytes.values())
        self._events.write(
            {"step": step, "time": time.time(), "pp_rank": self.world.pp_rank, "tp_rank": self.world.tp_rank}
            | {"dp_rank": self.world.dp_rank, **times, **traffic}
        )
        if self.world.is_main:
            line = {
                "step": step,
                "loss": report.loss,
                "grad_norm": report.grad_norm,
                "lr": lr,
                "tokens": self.tokens,
                "tokens_per_s": tokens / max(step_time_s, 1e-9),
                "data_wait": data_time_s / max(step_time_s, 1e-9),
                **times,
                **{name: value for name, value in traffic.items() if name.endswith(HIDDEN)},
                "memory_bytes": memory_bytes(self.world.device),
                **report.metrics,
                **extra,
            }
            if report.skipped:
                line["skipped"] = True
            self._metrics.write(line)
            if self._board is not None:
                self._board.scalars("train", line, step)
            if self._progress is not None:
                told = step % self.config.log_every == 0
                self._progress.advance(
                    1, f"loss {report.loss:.4f}, {line['tokens_per_s']:,.0f} tokens/s" if told else ""
                )
        self._count_bad(step, report)

    def _count_bad(self, step: int, report: StepReport) -> None:
        self._bad_steps = self._bad_steps + 1 if report.skipped else 0
        if self._bad_steps >= MAX_BAD_STEPS.get(self.config.precision, DEFAULT_MAX_BAD_STEPS):
            raise RunFailed(
                f"the gradient was not finite in steps {step - self._bad_steps + 1} to {step}; those updates were "
                f"left out (loss {report.loss:g})",
                f"lower --lr, or look at the data of these steps; `llmctl diagnose {self.job.root}` says more",
            )

    def validated(self, step: int, loss: float, *, tokens: float, num_bytes: float = 0.0, **extra: Any) -> None:
        """Write a validation result.

        Args:
            loss: mean negative log-likelihood in nats per token.
            tokens: tokens that it is the mean of.
            num_bytes: UTF-8 bytes of their text, for bits per byte; 0 if unknown.
            extra: further values; `set` names the validation set where it is not the stage's own.
        """
        if not self.world.is_main:
            return
        line = {"step": step, "loss": loss, "perplexity": math.exp(min(loss, 700.0)), "tokens": tokens, **extra}
        if num_bytes:
            line["bits_per_byte"] = loss * tokens / math.log(2) / num_bytes
        self._validation.write(line)
        if self._board is not None:
            self._board.scalars(f"validation/{extra['set']}" if "set" in extra else "validation", line, step)

    def note_validation(self, step: int, name: str, values: dict[str, float]) -> None:
        """Write further numbers of a validation, which are no loss, as a line of their own."""
        if not self.world.is_main:
            return
        self._validation.write({"step": step, "set": name, **values})
        if self._board is not None:
            self._board.scalars(f"validation/{name}", values, step)

    # -- checkpoints -----------------------------------------------------------------------------------------

    def end_of_step(self) -> None:
        """Make a checkpoint where one is due; stop if a signal has asked any process to.

        Raises:
            Interrupted: stopped by a signal, with the state saved.
        """
        (asked,) = self.world.maximum([float(bool(self._stop))])
        due = self.config.checkpoint_every and self.step % self.config.checkpoint_every == 0
        if due or asked or self.step == self.total_steps:
            self.checkpoint(wait=bool(asked) or self.step == self.total_steps)
        if asked and self.step < self.total_steps:
            saved = self._saved_step == self.step
            raise Interrupted(
                f"stopped by a signal after step {self.step}"
                + ("" if saved else f"; the last checkpoint is of step {self.store.newest_step()}"),
                "the same command goes on from the last checkpoint",
            )

    def checkpoint(self, *, wait: bool = True) -> None:
        """Save every engine and the state of the run, unless this step is saved already.

        Args:
            wait: return only when it is on the disk; else it may be written while the training goes on.
        """
        with PROGRESS.long_work("checkpoint"):
            self._checkpoint(wait)

    def _checkpoint(self, wait: bool) -> None:
        started = time.perf_counter()
        if self._saved_step != self.step:
            state = {
                "step": self.step,
                "tokens": self.tokens,
                "stage": self.state,
                "monitors": {name: monitor.state() for name, monitor in self.monitors.items()},
            }
            background = self.config.async_checkpoints and not wait
            config = to_mapping(self.config, identity_only=True)
            if self.store.save(self.step, self.engines, state, config, background=background):
                self._saved_step = self.step
        if wait and not self.store.settle():
            self._saved_step = -1
        self._checkpoint_s += time.perf_counter() - started

    def stop_asked(self) -> bool:
        """Tell whether a signal has asked this process to stop (others may not know yet)."""
        return bool(self._stop)


def seed_step(seed: int, step: int, rank: int) -> None:
    """Make torch's generators a function of (seed, step, rank), so that there is no generator state to save."""
    torch.manual_seed((seed * 1_000_003 + step) * 65_537 + rank)


def fit(
    run: TrainingRun,
    engine: Engine,
    loss: Loss,
    micro_batches: Callable[[int], Sequence[Batch]],
    *,
    validate: Callable[[int], bool | None] | None = None,
    validate_every: int = 0,
) -> None:
    """Train to the last step.

    Args:
        micro_batches: this replica's micro-batches of a step, a pure function of the step; called one step ahead
            in another thread.
        validate: called every `validate_every` steps and after the last; True ends the run early.

    Raises:
        Interrupted: stopped by a signal, with the state saved.
    """
    config = run.config
    name = next(name for name, known in run.engines.items() if known is engine)
    if run.state.get("stopped_early"):
        run.total_steps = run.step
    if run.step >= run.total_steps:
        return
    with ThreadPoolExecutor(1, thread_name_prefix="data") as pool:
        upcoming = pool.submit(micro_batches, run.step + 1)
        for step in range(run.step + 1, run.total_steps + 1):
            started = time.perf_counter()
            batches = upcoming.result()
            waited = time.perf_counter() - started
            if step < run.total_steps:
                upcoming = pool.submit(micro_batches, step + 1)
            seed_step(config.seed, step, run.world.rank)
            report = run.update(name, batches, loss, learning_rate(config, step), step)
            tokens = sum(batch["input_ids"].numel() for batch in batches) * engine.data_parallel_size
            run.record(step, report, report.lr, tokens, time.perf_counter() - started, waited)
            last = step == run.total_steps
            stop = False
            if validate is not None and (last or (validate_every and step % validate_every == 0)):
                with PROGRESS.long_work("validation"):
                    stop = bool(validate(step))
            if stop:
                run.total_steps, run.state["stopped_early"] = step, True
            run.end_of_step()
            if stop:
                return

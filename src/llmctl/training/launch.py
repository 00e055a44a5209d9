"""Run a training stage: in this process, in processes started here, or as one of those that torchrun or srun started.

`run_stage` does what is the same for pretraining, fine-tuning and alignment: refuse layouts that cannot work, claim
the output folder, start processes, and write the manifest when the training function has come back.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmctl import console
from llmctl.artifacts.files import FileRecord, adopt_file, write_json
from llmctl.artifacts.inputs import Input
from llmctl.artifacts.manifest import Manifest
from llmctl.artifacts.output import Output, open_output
from llmctl.config.common import RunOptions, available_cores
from llmctl.config.load import build
from llmctl.config.schema import to_mapping
from llmctl.errors import LlmctlError, RunFailed, UserError
from llmctl.training.config import TrainingConfig

if TYPE_CHECKING:
    from llmctl.model.config import ModelConfig

JOB_NAME = "job.json"
STATISTICS_NAME = "statistics.json"
FAILURES = "failures"
MODEL_FOLDER = "model"


def run_stage(
    entry: str,
    output: Path,
    config: TrainingConfig,
    *,
    stage: str,
    inputs: Sequence[Input],
    options: RunOptions,
    plan: Callable[[], dict[str, Any]] | None = None,
) -> Manifest | None:
    """Run a training function in as many processes as the configuration says.

    Args:
        entry: ``package.module:function``; it takes a `Job`, writes `model/` into `job.root`, and returns the
            statistics of the manifest (equal for equal runs).
        inputs: what it reads; `job.sources` has their paths by role.
        plan: what ``--dry-run`` prints beyond the layout.

    Returns:
        The manifest; None in a process that torchrun or srun started and that is not the first, and on later hosts.

    Raises:
        UserError, RunFailed, Interrupted: as the training function, on whichever process it happened.
    """
    from llmctl.training.distributed import inside_launcher

    processes = check_processes(config)
    check_plan(config, processes)
    if options.dry_run:
        _dry_run(output, config, stage, inputs, options, processes, plan)
        return None
    if inside_launcher():
        return _run_as_worker(entry, output, config, stage, inputs, options)
    if config.elastic and config.nodes > 1:
        from llmctl.training.elastic import join_hosts

        join_hosts(config, processes)
    if config.node_rank > 0:
        _start_processes(entry, output, config, stage, inputs, processes, None)
        return None
    with open_output(output, kind="model", stage=stage, config=config, inputs=inputs, options=options) as out:
        if out.finished is not None:
            return out.finished
        if processes * config.nodes == 1:
            statistics = _run_here(entry, out, config, stage, inputs)
        else:
            _start_processes(entry, output, config, stage, inputs, processes, out)
            statistics = json.loads((out.state / STATISTICS_NAME).read_bytes())
        return out.finish(model_files(out.root), statistics)


def check_processes(config: TrainingConfig) -> int:
    """Return the number of processes to start on this host.

    Raises:
        UserError: the layout needs more than there are; the hint says how to start them, here or on several hosts.
    """
    from llmctl.training.distributed import inside_launcher, resolve_device
    from llmctl.training.layout import layout_for

    if inside_launcher():
        layout_for(config, int(os.environ["WORLD_SIZE"]))
        return 1
    device = resolve_device(config)
    gpus = _gpu_count() if device == "cuda" else 0
    processes = config.processes or max(1, gpus)
    needed, total = config.tp * config.pp, processes * config.nodes
    if total < needed and not config.processes:
        raise UserError(
            f"tp {config.tp} × pp {config.pp} needs {needed} processes, one per device, and this machine has "
            f"{_devices_in_words(gpus)}" + (f" (× {config.nodes} hosts)" if config.nodes > 1 else ""),
            _how_to_start(config, needed, gpus),
        )
    if device == "cuda" and processes > gpus:
        raise UserError(
            f"{processes} processes need as many GPUs, and this machine has {_devices_in_words(gpus)}",
            f"use --processes {gpus}, or more hosts with --nodes",
        )
    layout_for(config, total)
    return processes


def world_size(config: TrainingConfig, processes: int) -> int:
    """Return the number of processes of the whole run, `processes` of them started here."""
    from llmctl.training.distributed import inside_launcher

    return int(os.environ["WORLD_SIZE"]) if inside_launcher() else processes * config.nodes


def check_plan(config: TrainingConfig, processes: int, shape: ModelConfig | None = None) -> None:
    """Refuse what cannot work before any process is started.

    Args:
        shape: of the model, where it is split over tp and pp.

    Raises:
        UserError: batch, engine, or model do not go with the layout.
    """
    from llmctl.training.distributed import resolve_device
    from llmctl.training.engines.choose import choose_engine
    from llmctl.training.layout import check_schedule, layout_for, micro_batch_size

    layout = layout_for(config, world_size(config, processes))
    choose_engine(config, layout, resolve_device(config))
    micro_batch_size(config, layout.dp)
    check_schedule(config, layout)
    if shape is not None:
        from llmctl.training.models import check_model_layout

        check_model_layout(shape, layout, config.virtual_stages)


def _gpu_count() -> int:
    import torch

    return int(torch.cuda.device_count())


def _devices_in_words(gpus: int) -> str:
    cores = available_cores()
    if gpus:
        return f"{gpus} GPU{'s' if gpus > 1 else ''}"
    return f"no GPU and {cores} CPU core{'s' if cores > 1 else ''}"


def _how_to_start(config: TrainingConfig, needed: int, gpus: int) -> str:
    per_host = gpus or min(8, needed)
    hosts = -(-needed // per_host)
    layout = f"--tp {config.tp} --pp {config.pp}"
    several = (
        f"on {hosts} hosts with {per_host} GPUs each give on every host R: {layout} --nodes {hosts} --node-rank R "
        "--rendezvous HOST0:29500 (or start the same command by torchrun or srun)"
    )
    if hosts == 1:
        several = f"run it on a host with {needed} GPUs"
    return f"{several}; to try the layout on this CPU: {layout} --device cpu --processes {needed}"


def _dry_run(
    output: Path,
    config: TrainingConfig,
    stage: str,
    inputs: Sequence[Input],
    options: RunOptions,
    processes: int,
    plan: Callable[[], dict[str, Any]] | None,
) -> None:
    from llmctl.training.distributed import resolve_device
    from llmctl.training.engines.choose import choose_engine
    from llmctl.training.layout import layout_for, micro_batch_size

    with open_output(output, kind="model", stage=stage, config=config, inputs=inputs, options=options):
        pass  # refuses what a run would refuse; writes nothing
    device = resolve_device(config)
    layout = layout_for(config, world_size(config, processes))
    engine, why = choose_engine(config, layout, device)
    micro = micro_batch_size(config, layout.dp)
    facts = {
        "reads": {source.role: str(source_path(source)) for source in inputs},
        "writes": str(output),
        "processes": layout.world_size,
        "device": device,
        "layout": {"tp": layout.tp, "dp": layout.dp, "pp": layout.pp},
        "engine": engine,
        "engine_reason": why,
        "micro_batch_size": micro,
        "grad_accumulation_steps": config.global_batch_size // (micro * layout.dp),
        "tokens_per_step": config.global_batch_size * config.seq_len,
        "peak_lr": config.peak_lr,
        **(plan() if plan is not None else {}),
    }
    # Tables are shown by those who made them, and are whole in the JSON.
    lines = [f"{name}: {value}" for name, value in facts.items() if name != "mixture"]
    console.result("\n".join(["dry run: nothing was written", *lines]), dry_run=True, **facts)


def source_path(source: Input) -> Path:
    """Return the path that `open_input` opened: the file itself where one raw file was given."""
    alone = source.manifest is None and len(source.files) == 1 and source.name == source.files[0].path
    return source.root / source.name if alone else source.root


def load_entry(entry: str) -> Callable[[Any], dict[str, Any]]:
    """Return the training function that ``package.module:function`` names."""
    module, _, name = entry.partition(":")
    function: Callable[[Any], dict[str, Any]] = getattr(importlib.import_module(module), name)
    return function


def _run_here(entry: str, out: Output, config: TrainingConfig, stage: str, inputs: Sequence[Input]) -> dict[str, Any]:
    from llmctl.training.distributed import connect, disconnect
    from llmctl.training.run import Job

    world = connect(config)
    try:
        sources = {source.role: source_path(source) for source in inputs}
        return load_entry(entry)(Job(out.root, stage, config, sources, world))
    finally:
        disconnect()


def _run_as_worker(
    entry: str, output: Path, config: TrainingConfig, stage: str, inputs: Sequence[Input], options: RunOptions
) -> Manifest | None:
    """Run as one of the processes that torchrun or srun started: the first claims the folder, the others follow."""
    from llmctl.training.distributed import connect, disconnect
    from llmctl.training.hang import SelfWatch
    from llmctl.training.heartbeat import prepare_flight_recorder
    from llmctl.training.run import Job

    prepare_flight_recorder()
    SelfWatch(Path(output), int(os.environ["RANK"]), config.hang_after_s, config.timeout_s).start()
    world = connect(config)
    try:
        out, verdict = None, None
        if world.is_main:
            try:
                out = open_output(output, kind="model", stage=stage, config=config, inputs=inputs, options=options)
                verdict = {"finished": out.finished is not None}
            except LlmctlError as failure:
                world.broadcast({"status": int(failure.status)})
                raise
        verdict = world.broadcast(verdict)
        if "status" in verdict:
            raise SystemExit(verdict["status"])  # process 0 has said why
        if verdict["finished"]:
            return out.finished if out is not None else None
        try:
            sources = {source.role: source_path(source) for source in inputs}
            statistics = load_entry(entry)(Job(Path(output), stage, config, sources, world))
            return out.finish(model_files(out.root), statistics) if out is not None else None
        finally:
            if out is not None:
                out.release()
    finally:
        disconnect()


def _start_processes(
    entry: str,
    output: Path,
    config: TrainingConfig,
    stage: str,
    inputs: Sequence[Input],
    processes: int,
    out: Output | None,
) -> None:
    sources = {source.role: str(source_path(source)) for source in inputs}
    statistics = (out.state / STATISTICS_NAME).resolve() if out is not None else None
    start_job(entry, Path(output), config, stage, sources, processes, statistics)


def start_job(
    entry: str,
    root: Path,
    config: TrainingConfig,
    stage: str,
    sources: dict[str, str],
    processes: int,
    result: Path | None,
) -> None:
    """Run a function in `processes` workers on this host, with those of other hosts, and wait for them.

    Args:
        entry: ``package.module:function``; it takes a `Job` and returns plain JSON.
        root: the job's folder; the evidence of a hang is kept there.
        result: where process 0 writes what the function returned; None on hosts that it is not on.

    Raises:
        UserError, RunFailed, Interrupted: what a worker raised.
    """
    import tempfile

    from llmctl.training.elastic import run_until_done
    from llmctl.training.processes import start_and_wait

    job = {
        "entry": entry,
        "root": str(root.resolve()),
        "stage": stage,
        "config_class": f"{type(config).__module__}:{type(config).__qualname__}",
        "config": to_mapping(config),
        "sources": sources,
        "statistics": str(result) if result is not None else None,
        "quiet": console.is_quiet(),
    }

    def start(count: int) -> None:
        with tempfile.TemporaryDirectory(prefix="llmctl-") as folder:
            write_json(Path(folder), JOB_NAME, job)
            start_and_wait(Path(folder), config, count, root)

    run_until_done(config, processes, start)
    if result is not None and not result.is_file():
        raise RunFailed("the processes ended without a result", "see the messages above")


def read_job(folder: Path) -> tuple[dict[str, Any], TrainingConfig]:
    """Read the job that the launcher wrote for its workers."""
    job = json.loads((folder / JOB_NAME).read_bytes())
    module, _, name = job["config_class"].partition(":")
    return job, build(getattr(importlib.import_module(module), name), job["config"])


def model_files(root: Path) -> list[FileRecord]:
    """Record every file of the exported model for the manifest."""
    paths = sorted(path for path in (root / MODEL_FOLDER).rglob("*") if path.is_file())
    return [adopt_file(root, path.relative_to(root).as_posix()) for path in paths]

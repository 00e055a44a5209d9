"""``llmctl plan``: memory, time, communication and cost of a run, before it is paid for."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from llmctl import console
from llmctl.cli.options import stage_command
from llmctl.errors import UserError
from llmctl.planning.config import PlanConfig


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan")(command)


@stage_command(PlanConfig, stage="plan", options_class=None)
def command(
    model: Annotated[
        Path | None,
        typer.Argument(
            help="The model's shape: a YAML file, a training configuration, a config.json, or a shipped name."
        ),
    ] = None,
    *,
    against: Annotated[
        bool, typer.Option("--against", help="Show pure data parallelism and ZeRO-3 on the same devices beside it.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write one page with the schedule and memory by stage.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", help="Write the plan as JSON, for `llmctl diagnose --against`.")
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Measure this machine (a few seconds), write it to --hw-file (machine.toml), and plan MODEL on it.",
        ),
    ] = False,
    list_hardware: Annotated[
        bool, typer.Option("--list-hardware", help="Show the hardware table with the sources of its figures.")
    ] = False,
    config: PlanConfig,
) -> None:
    """Say what a run needs: memory, step time, communication, days, money and energy.

    With --tp and --pp one layout is planned; without them the best legal layouts are searched for and ranked. Nothing
    is started and no accelerator is needed: llmctl plan llama-7b --gpus 64 --hw h100
    """
    own = Path(config.hw_file) if config.hw_file else None
    if list_hardware:
        return _list_hardware(own)
    if calibrate:
        own = own or Path("machine.toml")
        name = _calibrate(own, final=model is None)
        if model is None:
            return None
        config = dataclasses.replace(config, hw=name, hw_file=str(own))
    if model is None:
        raise UserError(
            "a model is missing", "give its shape: `llmctl plan MODEL.yaml`, or a shipped name like llama-7b"
        )
    return _plan(model, config, own, against, html, save)


def _plan(
    model: Path, config: PlanConfig, own: Path | None, against: bool, html: Path | None, save: Path | None
) -> None:
    from llmctl.planning import report
    from llmctl.planning.hardware import find
    from llmctl.planning.inputs import apply_training_keys, read_model
    from llmctl.planning.plan import make_plan
    from llmctl.planning.search import against as compare

    shape, beside = read_model(model)
    config = apply_training_keys(config, beside)
    plan = make_plan(shape, config, find(config.hw, own))
    rows = compare(plan.job, plan.step.layout.gpus, plan.step.layout.global_batch_size, plan.step) if against else []
    data: dict[str, Any] = {"model": str(model), **report.to_json(plan, rows)}
    if plan.found is not None:
        title = f"{plan.found.fitting} of {plan.found.legal} legal layouts fit; the fastest"
        console.table(title, report.ROW_COLUMNS, report.search_rows(plan), to_stdout=True)
    if rows:
        console.table("Against", report.ROW_COLUMNS, report.against_rows(plan, rows), to_stdout=True)
    for note in plan.notes:
        console.info(f"note: {note}")
    if save is not None:
        from llmctl.artifacts.files import write_json

        write_json(save.parent, save.name, report.finite(data))
        console.info(f"{save}: the plan, for `llmctl diagnose --against {save}`")
    if html is not None:
        from llmctl.artifacts.files import write_file
        from llmctl.planning.timeline import page

        write_file(html.parent, html.name, page(plan, model.stem).encode("utf-8"))
        console.info(f"{html}: the schedule and memory by stage")
    console.result("\n".join(f"{what:<12} {value}" for what, value in report.summary(plan)), **data)


def _list_hardware(own: Path | None) -> None:
    from llmctl.planning.hardware import load_table

    table = load_table(own)
    columns = ("name", "TFLOP/s", "matmul", "GB", "GB/s", "link GB/s", "network GB/s", "$/h", "spot $/h")
    rows = [
        [
            item.name,
            item.peak_tflops,
            item.matmul_tflops,
            item.memory_gb,
            item.memory_gbps,
            item.link_gbps,
            item.network_gbps,
            item.price,
            item.spot_price,
        ]
        for item in table.values()
    ]
    console.table("Hardware", columns, rows, to_stdout=True)
    console.result(
        "Sources of the figures: --json, or hardware.toml in llmctl's planning folder.",
        hardware={name: vars(item) for name, item in table.items()},
    )


def _calibrate(target: Path, final: bool) -> str:
    """Measure this machine into a hardware file and return the name of its entry."""
    from llmctl.artifacts.files import write_file
    from llmctl.planning.calibrate import MARK, measure, to_toml

    if target.exists() and not (target.is_file() and target.read_bytes().startswith(MARK.encode())):
        raise UserError(
            f"{target} exists and was not written by --calibrate", "name another file: --hw-file measured.toml"
        )
    measured = measure()
    write_file(target.parent, target.name, to_toml(measured).encode("utf-8"))
    text = (
        f"{target}: {measured.matmul_tflops:.3g} TFLOP/s in matrix products, {measured.memory_gbps:.3g} GB/s memory, "
        f"{measured.link_gbps:.3g} GB/s between processes; use --hw {measured.name} --hw-file {target}"
    )
    if final:
        console.result(text, **vars(measured))
    else:
        console.info(text)
    return measured.name

"""Show what the demonstration came to: a table, samples before and after alignment, and one HTML page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from llmctl import console
from llmctl.artifacts.files import write_file
from llmctl.artifacts.inputs import open_input
from llmctl.artifacts.output import open_output
from llmctl.config.common import RunOptions
from llmctl.config.schema import Opt
from llmctl.demo.chain import STEPS
from llmctl.errors import UserError
from llmctl.report.chain import read_chain
from llmctl.report.pages import chain_page
from llmctl.report.summary import CHAIN_COLUMNS, chain_rows

PAGE = "index.html"
STAGES = tuple(step.name for step in STEPS if step.config)


@dataclass
class ReportConfig:
    """What the demonstration's report shows."""

    samples: Annotated[int, Opt("Answers that are shown on the terminal.", min=0)] = 3


def run_report(folder: Path) -> None:
    """Write ``report/index.html`` about the chain in `folder`, and print its table and samples.

    Raises:
        UserError: a stage of the chain is not finished.
    """
    folders = [folder / name for name in STAGES]
    config = ReportConfig()
    inputs = [_stage_input(stage) for stage in folders]
    options = RunOptions(if_changed="overwrite")
    with open_output(
        folder / "report", kind="report", stage="demo", config=config, inputs=inputs, options=options
    ) as out:
        if out.finished is None:
            page = chain_page("llmctl demo: from raw text to an aligned model", folders)
            out.finish([write_file(out.root, PAGE, page.encode())], {"stages": list(STAGES)})
    _print(folder, folders, config)


def _stage_input(stage: Path) -> Any:
    try:
        return open_input(stage, role=stage.name, raw=False)
    except UserError as failure:
        raise UserError(failure.problem, "run `llmctl demo` (or `make demo`): it goes on from there") from None


def _print(folder: Path, folders: list[Path], config: ReportConfig) -> None:
    rows = chain_rows(folders)
    console.table("What each stage did", CHAIN_COLUMNS, rows, to_stdout=True)
    samples = [sample for stage in read_chain(folders) for sample in stage.samples]
    page = folder / "report" / PAGE
    lines = []
    for sample in samples[: config.samples]:
        lines += [
            f"> {_one_line(sample['prompt'])}",
            f"  before alignment: {_one_line(sample['before'])}",
            f"  after alignment:  {_one_line(sample['after'])}",
            "",
        ]
    lines.append(f"Curves, reasons and samples: {page} (opens without a network)")
    console.result(
        "\n".join(lines),
        output=str(folder),
        page=str(page),
        stages=[dict(zip(CHAIN_COLUMNS, row, strict=True)) for row in rows],
        samples=samples,
    )


def _one_line(text: str) -> str:
    # Control characters of a generated text must not reach the terminal.
    return "".join(char if char.isprintable() else " " for char in text)

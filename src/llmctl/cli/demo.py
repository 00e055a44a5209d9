"""``llmctl demo``: the whole chain on the corpus that ships."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmctl import console


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(command)


def command(
    folder: Annotated[
        Path, typer.Argument(help="Folder for the demo; what is done there already is not done again.")
    ] = Path("demo"),
    *,
    only_inputs: Annotated[bool, typer.Option("--only-inputs", help="Write the raw input and stop.")] = False,
    only_report: Annotated[bool, typer.Option("--only-report", help="Show the results of a finished chain.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result on stdout as one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but warnings and errors.")] = False,
) -> None:
    """Run raw text to an aligned model on a small corpus that ships with llmctl (a few minutes).

    Writes messy raw text, then runs filter, dedup, tokenize, shard, pretrain, sft, rlhf and diagnose on it, each as
    the command you would type, and ends with a table, samples before and after alignment, and one HTML page.
    """
    console.configure(json_output=json_output, quiet=quiet)
    from llmctl.demo.run import run_demo, write_inputs

    if only_inputs:
        write_inputs(folder)
        console.result(f"{folder}/raw: written", output=str(folder))
        return
    if not only_report:
        run_demo(folder)
    from llmctl.demo.report import run_report

    run_report(folder)

"""`llmctl merge`: a model and an adapter made one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmctl.cli.options import report_manifest, stage_command
from llmctl.config.common import RunOptions
from llmctl.sft.config import MergeConfig


def register(app: typer.Typer) -> None:
    """Add `llmctl merge`."""
    app.command("merge")(command)


@stage_command(MergeConfig, stage="merge")
def command(
    model: Annotated[Path, typer.Argument(help="The model that the adapter was trained on: a run or its folder.")],
    adapter: Annotated[Path, typer.Argument(help="An adapter in peft's format, or a run of `sft --lora-rank`.")],
    output: Annotated[Path, typer.Argument(help="Folder of the result; model/ in it is a Hugging Face folder.")],
    *,
    config: MergeConfig,
    options: RunOptions,
) -> None:
    """Merge an adapter into its model, in float32, as a plain Hugging Face folder."""
    from llmctl.sft.merging import run

    report_manifest(run(model, adapter, output, config, options), output)

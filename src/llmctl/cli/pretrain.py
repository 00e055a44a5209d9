"""``llmctl pretrain``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmctl.cli.options import report_manifest, stage_command
from llmctl.config.common import RunOptions
from llmctl.pretraining.config import PretrainConfig


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("pretrain")(command)


@stage_command(PretrainConfig, stage="pretrain")
def command(
    source: Annotated[Path, typer.Argument(metavar="[SHARDS]", help="The output of `llmctl shard`.")] = Path("shards"),
    output: Annotated[Path, typer.Argument(metavar="[OUTPUT]", help="The run's folder.")] = Path("runs/pretrain"),
    *,
    config: PretrainConfig,
    options: RunOptions,
) -> None:
    """Pretrain a decoder on shards, in one process or many, and export it for transformers."""
    from llmctl.pretraining.stage import run

    manifest = run(source, output, config, options)
    if manifest is not None:
        report_manifest(manifest, output)

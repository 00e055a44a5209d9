"""`llmctl sft`: supervised fine-tuning on conversations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmctl.cli.options import report_manifest, stage_command
from llmctl.config.common import RunOptions
from llmctl.sft.config import SftConfig


def register(app: typer.Typer) -> None:
    """Add `llmctl sft`."""
    app.command("sft")(command)


@stage_command(SftConfig, stage="sft")
def command(
    source: Annotated[
        Path, typer.Argument(help="Conversations: messages, ShareGPT, alpaca, prompt and answer; JSON, JSONL, Parquet.")
    ],
    output: Annotated[Path, typer.Argument(help="Folder of the run; model/ in it is a Hugging Face folder.")] = Path(
        "runs/sft"
    ),
    *,
    model: Annotated[Path, typer.Option("--model", help="The model to start from: a run or a Hugging Face folder.")],
    validation: Annotated[
        Path | None, typer.Option("--validation", help="Conversations to validate on; a share of SOURCE by default.")
    ] = None,
    config: SftConfig,
    options: RunOptions,
) -> None:
    """Fine-tune a model on conversations; only the assistant's words and the end of its turns are learned."""
    from llmctl.artifacts.accounting import enforce_invalid_share
    from llmctl.sft.stage import run

    manifest = run(source, output, config, options, model=model, validation=validation)
    if manifest is None:
        return
    report_manifest(manifest, output)
    enforce_invalid_share(manifest.statistics["records"], config.max_invalid_share)

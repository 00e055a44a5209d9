"""`llmctl tokenize`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmctl.cli.options import report_manifest, stage_command
from llmctl.config.common import RunOptions
from llmctl.tokenization.config import TokenizeConfig


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tokenize")(command)


@stage_command(TokenizeConfig, stage="tokenize")
def command(
    source: Annotated[Path, typer.Argument(help="A folder of documents, or raw files.", show_default=False)],
    output: Annotated[Path, typer.Argument(help="The folder to write token ids to.", show_default=False)],
    *,
    config: TokenizeConfig,
    options: RunOptions,
) -> None:
    """Turn texts into token ids, with a byte-level BPE trained on them or with an existing tokenizer.

    Each document ends with the end-of-text token; special tokens inside texts are plain text.
    The tokenizer lies in OUTPUT/tokenizer, where AutoTokenizer loads it.
    """
    from llmctl.artifacts.accounting import enforce_invalid_share
    from llmctl.tokenization.stage import run

    manifest = run(source, output, config, options)
    if manifest is None:
        return
    report_manifest(manifest, output)
    enforce_invalid_share(manifest.statistics["records"], config.max_invalid_share)

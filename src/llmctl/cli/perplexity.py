"""`llmctl perplexity train`: an n-gram model of reference text, for `llmctl filter --perplexity-model`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmctl import console
from llmctl.artifacts.accounting import enforce_invalid_share
from llmctl.cli.options import stage_command
from llmctl.config.common import RunOptions
from llmctl.filtering.perplexity.config import PerplexityConfig


def register(app: typer.Typer) -> None:
    """Add the command."""
    group = typer.Typer(no_args_is_help=True, help="Train models that give documents a perplexity.")
    group.callback()(_group)
    group.command("train")(train)
    app.add_typer(group, name="perplexity")


def _group() -> None:
    """Train models that give documents a perplexity."""


@stage_command(PerplexityConfig, stage="perplexity")
def train(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="Text as it should be: raw files, or a folder of documents.")
    ],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Folder for the model and its report.")],
    *,
    config: PerplexityConfig,
    options: RunOptions,
) -> None:
    """Train an n-gram model on reference text.

    Use it with `llmctl filter --perplexity-model OUTPUT`: each document gets its perplexity and how much that goes up
    and down, and the rules `perplexity`, `perplexity_rank` and `machine_text` have something to go by.
    """
    from llmctl.filtering.perplexity.stage import run

    manifest = run(source, output, config, options)
    if options.dry_run and "plan" in manifest.statistics:
        plan = manifest.statistics["plan"]
        text = f"would read {plan['files']:,} files, {plan['bytes'] / 1e6:,.1f} MB, and write {output}"
        console.result(text, dry_run=True, output=str(output), **plan)
        return
    report = manifest.statistics["report"]
    console.result(
        f"{output}: {sum(report['ngrams']):,} n-grams from {report['tokens']:,} tokens",
        output=str(output),
        kind=manifest.kind,
        stage=manifest.stage,
        fingerprint=manifest.fingerprint,
        statistics=manifest.statistics,
    )
    enforce_invalid_share(manifest.statistics["documents_read"], config.max_invalid_share)

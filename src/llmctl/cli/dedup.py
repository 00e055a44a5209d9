"""llmctl dedup: find duplicates and keep one of each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmctl.cli.options import report_manifest, stage_command
from llmctl.config.common import RunOptions
from llmctl.dedup.config import DedupConfig
from llmctl.runtime.workers import prepare_workers


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("dedup")(command)


@stage_command(DedupConfig, stage="dedup")
def command(
    source: Annotated[Path, typer.Argument(help="Documents of another stage, or raw files.", show_default=False)],
    output: Annotated[Path, typer.Argument(help="Folder to write.", show_default=False)],
    *,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            "--against",
            help="An earlier output of this command, whose documents stay: what resembles one of them is removed. "
            "Repeatable.",
            show_default=False,
        ),
    ] = None,
    config: DedupConfig,
    options: RunOptions,
) -> None:
    """Find duplicates and keep one of each.

    Equal texts, texts that share most of their shingles, and texts whose paragraphs were re-ordered. A document is
    removed only for one that stays and that it was compared with; pairs.parquet says which, and how alike they are.
    """
    prepare_workers(options, "llmctl.dedup.warm", source, config.read.block_bytes)
    from llmctl.artifacts.accounting import enforce_invalid_share
    from llmctl.dedup.stage import run

    manifest = run(source, output, config, options, against or ())
    if manifest is None:
        return
    report_manifest(manifest, output)
    enforce_invalid_share(manifest.statistics["records"], config.max_invalid_share)

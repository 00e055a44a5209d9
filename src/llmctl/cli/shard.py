"""`llmctl shard`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmctl.cli.options import report_manifest, stage_command
from llmctl.config.common import RunOptions
from llmctl.errors import UserError
from llmctl.sharding.config import ShardConfig


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("shard")(command)


@stage_command(ShardConfig, stage="shard")
def command(
    source: Annotated[
        Path,
        typer.Argument(
            help="The output of `llmctl tokenize` or `llmctl shard`, or Megatron, MDS or Parquet files of token ids.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None, typer.Argument(help="The folder to write shards to; none with --verify.", show_default=False)
    ] = None,
    *,
    config: ShardConfig,
    options: RunOptions,
) -> None:
    """Lay token ids out as TFRecord shards of about 200 MB, by source, with an index for random access.

    `--format megatron`, `mds` or `parquet` writes the files of other tools; SOURCE may be such files too (--tokenizer
    says what made them), so that each format becomes each other with equal tokens.

    `llmctl shard --verify DIR` reads all records of a shards folder again and names every damage by file, record
    and byte offset (status 1).
    """
    if output is None:
        if not options.verify:
            raise UserError("OUTPUT is missing", "llmctl shard TOKENS OUTPUT, or llmctl shard --verify SHARDS")
        from llmctl.sharding.verify import verify

        verify(source)
        return
    from llmctl.sharding.stage import run

    manifest = run(source, output, config, options)
    if manifest is not None:
        report_manifest(manifest, output)

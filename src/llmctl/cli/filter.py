"""`llmctl filter`: keep what the rules of a source's policy let pass."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmctl import console
from llmctl.artifacts.accounting import enforce_invalid_share
from llmctl.cli.options import report_manifest, stage_command
from llmctl.errors import UserError
from llmctl.filtering.config import FilterConfig, FilterOptions
from llmctl.runtime.workers import prepare_workers


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("filter")(command)


@stage_command(FilterConfig, stage="filter", options_class=FilterOptions)
def command(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="Raw files (a file or a folder tree), or a folder of documents.")
    ],
    output: Annotated[
        Path | None,
        typer.Argument(metavar="OUTPUT", help="Folder for the documents that stay, and the reasons of the others."),
    ] = None,
    *,
    classifier: Annotated[
        list[str] | None,
        typer.Option(
            "--classifier",
            metavar="NAME=FOLDER",
            help="A classifier from `llmctl classifier train`; repeatable. Its limits are rules.classifier.NAME.",
        ),
    ] = None,
    perplexity_model: Annotated[
        Path | None,
        typer.Option(
            "--perplexity-model",
            metavar="FOLDER",
            help="A model from `llmctl perplexity train`, or (slow) a finished run or Hugging Face folder, for the "
            "rules perplexity, perplexity_rank and machine_text.",
        ),
    ] = None,
    bad_words: Annotated[
        Path | None,
        typer.Option(
            "--bad-words",
            metavar="FILE",
            help="Remove documents with any word of this list (the rule bad_words); one word or phrase a line.",
        ),
    ] = None,
    blocked_urls: Annotated[
        Path | None,
        typer.Option(
            "--blocked-urls",
            metavar="FILE",
            help="Remove documents whose `url` is on this list (the rule blocked_urls); one domain or address a line.",
        ),
    ] = None,
    config: FilterConfig,
    options: FilterOptions,
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain", metavar="ID", help="Show a document of the finished output given, and why it stayed or went."
        ),
    ] = None,
) -> None:
    """Remove documents that a policy of rules fails, and say why for each.

    Writes data/ (kept), removed/ (reason, value, threshold), invalid/, and attributes/ (every statistic).
    Without --preset, the preset `general` applies.
    """
    if explain is not None:
        from llmctl.filtering.explain import explain as explain_document

        explain_document(output or source, explain)
        return
    if output is None:
        raise UserError("missing argument 'OUTPUT'", "llmctl filter SOURCE OUTPUT")
    if bad_words or blocked_urls:
        from llmctl.filtering.lists import with_lists

        config = with_lists(config, bad_words, blocked_urls)
    prepare_workers(options, "llmctl.filtering.warm", source, config.read.block_bytes)
    from llmctl.filtering.stage import run

    manifest = run(source, output, config, options, classifiers=classifier or (), perplexity_model=perplexity_model)
    if options.dry_run and "plan" in manifest.statistics:
        plan = manifest.statistics["plan"]
        text = (
            f"would read {plan['files']:,} files ({plan['input_bytes'] / 1e6:,.1f} MB) in {plan['blocks']:,} blocks "
            f"with {options.num_workers} workers, and write {output}\nrules: {', '.join(plan['policy']['*'])}"
        )
        console.result(text, dry_run=True, output=str(output), **plan)
        return
    report_manifest(manifest, output)
    enforce_invalid_share(manifest.statistics["records"], config.max_invalid_share)

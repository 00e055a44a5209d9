"""`llmctl classifier train`: a classifier of documents from examples, for `llmctl filter --classifier`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmctl import console
from llmctl.cli.options import stage_command
from llmctl.config.common import RunOptions
from llmctl.errors import LimitPassed
from llmctl.filtering.classifiers.config import ClassifierConfig


def register(app: typer.Typer) -> None:
    """Add the command."""
    group = typer.Typer(no_args_is_help=True, help="Train classifiers for `llmctl filter`.")
    group.callback()(_group)
    group.command("train")(train)
    app.add_typer(group, name="classifier")


def _group() -> None:
    """Train classifiers for `llmctl filter`: quality, spam, toxicity, or whatever your examples show."""


@stage_command(ClassifierConfig, stage="classifier")
def train(
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Folder for the classifier and its report.")],
    *,
    good: Annotated[
        Path | None, typer.Option("--good", help="Examples of what should stay: a file, a folder, or documents.")
    ] = None,
    bad: Annotated[Path | None, typer.Option("--bad", help="Examples of what should go.")] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Examples of both kinds with a label in each record, instead.")
    ] = None,
    text_field: Annotated[
        str | None, typer.Option("--text-field", help="Field that holds the text; the same as read.text_field.")
    ] = None,
    config: ClassifierConfig,
    options: RunOptions,
) -> None:
    """Train a classifier from examples of two kinds, and say what it is worth.

    A calibrated linear model over n-grams of characters and words, for any script. Reports AUC over splits, a
    reliability curve, and the threshold for the wanted precision. Use it with `llmctl filter --classifier NAME=OUTPUT`.
    """
    from llmctl.filtering.classifiers.stage import run

    if text_field is not None:
        config.read.text_field = text_field
    manifest = run(output, config, options, good=good, bad=bad, data=data)
    if options.dry_run and "plan" in manifest.statistics:
        plan = manifest.statistics["plan"]
        read = ", ".join(
            f"{role}: {part['files']:,} files, {part['bytes'] / 1e6:,.1f} MB" for role, part in plan.items()
        )
        console.result(f"would read {read}, and write {output}", dry_run=True, output=str(output), **plan)
        return
    report = manifest.statistics["report"]
    threshold = report["threshold"]["threshold"]
    shown = "no threshold" if threshold is None else f"threshold {threshold:.4f}"
    console.result(
        f"{output}: probability of `{report['label']}`, AUC {report['auc']['mean']:.4f}, {shown}",
        output=str(output),
        kind=manifest.kind,
        stage=manifest.stage,
        fingerprint=manifest.fingerprint,
        statistics=manifest.statistics,
    )
    records = manifest.statistics["examples_read"]
    if records["in"] and records["invalid"] > config.max_invalid_share * records["in"]:
        limit = f"{config.max_invalid_share:.3g}"
        raise LimitPassed(
            f"{records['invalid']:,} of {records['in']:,} records are invalid; the limit is {limit}",
            "--max-invalid-share sets the limit",
        )

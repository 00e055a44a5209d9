"""Run `llmctl classifier train`: examples in, a classifier and its report out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmctl import console
from llmctl.artifacts.inputs import Input, open_input
from llmctl.artifacts.manifest import Manifest
from llmctl.artifacts.output import open_output
from llmctl.errors import UserError
from llmctl.filtering.classifiers.model import KIND, write_classifier

if TYPE_CHECKING:
    from llmctl.config.common import RunOptions
    from llmctl.filtering.classifiers.config import ClassifierConfig


def run(
    output: Path,
    config: ClassifierConfig,
    options: RunOptions,
    *,
    good: Path | None = None,
    bad: Path | None = None,
    data: Path | None = None,
) -> Manifest:
    """Train a classifier into `output` and return its manifest.

    Args:
        good, bad: examples of each kind, or
        data: labelled rows.

    Raises:
        UserError: neither or both were given, or the examples do not make two kinds.
    """
    sources = _sources(good, bad, data)
    with open_output(output, kind=KIND, stage="classifier", config=config, inputs=sources, options=options) as out:
        if out.finished is not None:
            return out.finished
        if options.dry_run:
            plan = {source.role: {"files": len(source.files), "bytes": source.total_bytes} for source in sources}
            return Manifest(kind=KIND, stage="classifier", config={}, statistics={"plan": plan})
        from llmctl.filtering.classifiers.examples import read_folders, read_rows
        from llmctl.filtering.classifiers.training import train

        examples = read_rows(sources[0], config) if data else read_folders(sources[0], sources[1], config)
        trained = train(examples, config)
        files = write_classifier(out.root, trained.classifier, trained.report)
        records = {
            "in": examples.counts.get("read", 0),
            "invalid": examples.counts.get("invalid", 0),
        }
        manifest = out.finish(files, {"report": trained.report, "examples_read": records})
    report(trained.report)
    return manifest


def _sources(good: Path | None, bad: Path | None, data: Path | None) -> list[Input]:
    if data is not None and good is None and bad is None:
        return [open_input(data, role="data", kinds=("documents",))]
    if data is None and good is not None and bad is not None:
        return [
            open_input(good, role="good", kinds=("documents",)),
            open_input(bad, role="bad", kinds=("documents",)),
        ]
    raise UserError("examples of two kinds are needed", "give --good and --bad, or --data with a label in each record")


def report(values: dict[str, Any]) -> None:
    """Print what the classifier is worth."""
    examples, auc, chosen = values["examples"], values["auc"], values["threshold"]
    console.info(
        f"score: probability of `{values['label']}`, from {examples['positive']:,} such examples and "
        f"{examples['rest']:,} others"
    )
    if examples["texts_with_both_labels"]:
        console.warning(f"{examples['texts_with_both_labels']:,} texts stand under both labels")
    console.info(
        f"AUC {auc['mean']:.4f} over {len(auc['by_split'])} splits ({', '.join(f'{x:.4f}' for x in auc['by_split'])})"
    )
    rows = [
        (f"{row['from']:.1f}–{row['to']:.1f}", row["documents"], f"{row['predicted']:.3f}", f"{row['true']:.3f}")
        for row in values["reliability"]["bins"]
    ]
    console.table("reliability, on documents the model had not seen", ("score", "documents", "mean", "true"), rows)
    console.info(
        f"mean distance of predicted and true {values['reliability']['error']:.4f}, "
        f"Brier score {values['reliability']['brier']:.4f}"
    )
    if chosen["threshold"] is None:
        console.warning(
            f"no threshold reaches a precision of {chosen['wanted']:g} (the best is {chosen['precision']:.3f})",
            "more or cleaner examples, a lower --precision, or a limit of your own in the policy",
        )
    else:
        console.info(
            f"over {chosen['threshold']:.4f}: precision {chosen['precision']:.4f} (wanted {chosen['wanted']:g}), "
            f"recall {chosen['recall']:.4f}"
        )

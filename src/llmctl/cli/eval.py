"""`llmctl eval`: measure a model on texts and on prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from llmctl import console
from llmctl.cli.options import stage_command
from llmctl.errors import UserError
from llmctl.evaluation.config import EvalConfig


def register(app: typer.Typer) -> None:
    """Add `llmctl eval`."""
    app.command("eval")(command)


@stage_command(EvalConfig, stage="eval", options_class=None)
def command(
    model: Annotated[Path, typer.Argument(help="A run of pretrain, sft or rlhf, or a Hugging Face folder.")],
    *,
    text: Annotated[
        Path | None, typer.Option("--text", help="Texts to take the perplexity of: raw files or documents.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="Prompts to answer: JSON, JSONL or Parquet.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option("--against", help="Another model's answers to the same prompts, for --judge.")
    ] = None,
    config: EvalConfig,
) -> None:
    """Measure a model: perplexity of --text; diversity, pass@k and win-rate of its answers to --prompts."""
    if text is None and prompts is None:
        raise UserError("there is nothing to measure on", "give --text FOLDER, --prompts FILE, or both")
    if against is not None and prompts is None:
        raise UserError("--against without --prompts", "give the prompts that were answered")
    if config.pass_at > config.num_samples:
        raise UserError(
            f"pass@{config.pass_at} of {config.num_samples} samples", f"give --num-samples {config.pass_at} or more"
        )
    from llmctl.evaluation.answers import measure_answers
    from llmctl.evaluation.texts import perplexity
    from llmctl.training.respond import load_responder

    responder = load_responder(model, config)
    found: dict[str, Any] = {}
    if text is not None:
        found |= perplexity(responder, text, config)
    if prompts is not None:
        found |= measure_answers(responder, prompts, config, against)
    console.result("\n".join(f"{name}: {_shown(value)}" for name, value in found.items()), **found)


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)

"""Run `llmctl perplexity train`: reference text in, an n-gram model out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from llmctl import console
from llmctl.artifacts.inputs import Input, open_input
from llmctl.artifacts.manifest import Manifest
from llmctl.artifacts.output import open_output
from llmctl.artifacts.raw.plan import plan_blocks
from llmctl.artifacts.raw.read import read_block
from llmctl.errors import UserError
from llmctl.filtering.perplexity.model import KIND, perplexities, write_model
from llmctl.filtering.perplexity.training import Estimates, count_ngrams, estimate
from llmctl.text.buffers import text_buffers
from llmctl.text.surprise import build_table, surprise, token_stream

if TYPE_CHECKING:
    from llmctl.config.common import RunOptions
    from llmctl.filtering.perplexity.config import PerplexityConfig

MIN_TRAINING_TOKENS = 1000
MOST_HELD_OUT = 20_000  # documents
PERCENTILES = (1, 5, 25, 50, 75, 95, 99)


@dataclass
class _Reference:
    """The tokens of the reference, the documents that were held out, and what was read."""

    tokens: list[np.ndarray] = field(default_factory=list)
    ends: list[np.ndarray] = field(default_factory=list)
    held_out: list[pa.ChunkedArray] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def sequences(self) -> tuple[np.ndarray, np.ndarray]:
        starts = np.cumsum([0, *(len(part) for part in self.tokens)])
        return np.concatenate(self.tokens), np.concatenate(
            [part + start for part, start in zip(self.ends, starts, strict=False)]
        )


def run(source: Path, output: Path, config: PerplexityConfig, options: RunOptions) -> Manifest:
    """Train a model on `source` into `output` and return its manifest.

    Raises:
        UserError: too little text.
    """
    opened = open_input(source, kinds=("documents",))
    with open_output(output, kind=KIND, stage="perplexity", config=config, inputs=[opened], options=options) as out:
        if out.finished is not None:
            return out.finished
        if options.dry_run:
            plan = {"files": len(opened.files), "bytes": opened.total_bytes}
            return Manifest(kind=KIND, stage="perplexity", config={}, statistics={"plan": plan})
        reference = _read(opened, config)
        tokens, ends = reference.sequences if reference.tokens else (np.zeros(0, np.uint64), np.zeros(0, np.int64))
        if len(tokens) - len(ends) < MIN_TRAINING_TOKENS:
            raise UserError(
                f"{opened.name} has {len(tokens) - len(ends):,} tokens to learn from, too few for a model",
                "give some megabytes of text like that which you want to judge",
            )
        console.info(f"counting n-grams of {len(tokens):,} tokens")
        estimates = estimate(count_ngrams(tokens, ends, config.order))
        report = {
            "tokens": len(tokens) - len(ends),
            "documents": len(ends),
            "left_out": reference.counts["left_out"],
            "ngrams": estimates.by_order,
            "held_out": _judge(reference, estimates, config.order),
        }
        files = write_model(out.root, estimates, config.order, report)
        read = {"in": reference.counts["read"], "invalid": reference.counts["invalid"]}
        manifest = out.finish(files, {"report": report, "documents_read": read})
    _say(report)
    return manifest


def _read(source: Input, config: PerplexityConfig) -> _Reference:
    """Read the reference; of more text than wanted, and for the held-out part, documents are drawn by the seed."""
    draw = np.random.default_rng([config.seed, 11])
    reference = _Reference()
    share = min(1.0, config.max_bytes / max(source.total_bytes, 1))
    used = 0
    with console.progress("reading", source.total_bytes) as shown:
        for block in plan_blocks(source, config.read):
            batch = read_block(block, config.read)
            texts = batch.table.column("text")
            reference.counts["read"] += batch.table.num_rows + len(batch.invalid)
            reference.counts["invalid"] += len(batch.invalid)
            numbers = draw.random((2, len(texts)))
            sizes = np.diff(text_buffers(texts)[1])
            # Compressed files hold more than their size says: the bound holds for the text itself.
            taken = (numbers[0] < share) & (used + np.cumsum(sizes * (numbers[0] < share)) <= config.max_bytes)
            used += int(sizes[taken].sum())
            apart = taken & (numbers[1] < config.held_out)
            reference.held_out.append(texts.filter(pa.array(apart)))
            tokens, ends = token_stream(*text_buffers(texts.filter(pa.array(taken & ~apart))), 1 << 40)
            reference.tokens.append(tokens)
            reference.ends.append(ends)
            reference.counts["left_out"] += int((~taken).sum())
            shown.advance(block.input_bytes)
    if reference.counts["invalid"]:
        console.warning(f"{reference.counts['invalid']:,} records of {source.name} are invalid and left out")
    return reference


def _judge(reference: _Reference, estimates: Estimates, order: int) -> dict[str, Any] | None:
    """Return what the model thinks of documents that it was not trained on."""
    column = pa.chunked_array([chunk for part in reference.held_out for chunk in part.chunks], pa.large_string())
    if not len(column):
        return None
    column = column.slice(0, MOST_HELD_OUT)
    table = build_table(
        estimates.keys,
        estimates.log_probabilities.astype(np.float32),
        estimates.backoffs.astype(np.float32),
        order,
        estimates.unknown,
    )
    sums = surprise(*text_buffers(column), table)
    tokens = int(sums["tokens"].sum())
    by_document = perplexities(column, table)
    percentiles: dict[str, dict[str, float]] = {}
    for name, values in by_document.items():
        known = values[~np.isnan(values)]
        percentiles[name] = {
            str(percent): round(float(value), 4)
            for percent, value in zip(
                PERCENTILES, np.percentile(known, PERCENTILES) if len(known) else (), strict=False
            )
        }
    return {
        "documents": len(column),
        "tokens": tokens,
        "perplexity": round(float(np.exp(sums["total"].sum() / max(tokens, 1))), 4),
        "percentiles": percentiles,
    }


def _say(report: dict[str, Any]) -> None:
    sizes = ", ".join(f"{count:,}" for count in report["ngrams"])
    console.info(f"{report['tokens']:,} tokens of {report['documents']:,} documents; n-grams by length: {sizes}")
    judged = report["held_out"]
    if judged is None:
        console.warning("no document was held out, so the model's perplexity on unseen text is not known")
        return
    console.info(f"perplexity {judged['perplexity']:.1f} on {judged['documents']:,} documents it had not seen")
    rows = [
        (name, *(values.get(str(percent), float("nan")) for percent in PERCENTILES))
        for name, values in judged["percentiles"].items()
    ]
    console.table("held-out documents, percentiles", ("", *(str(percent) for percent in PERCENTILES)), rows)

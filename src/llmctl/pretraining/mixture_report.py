"""Tell the mixture of a run: the plan before it starts, and what it was really given when it is over.

``mixture.json`` in the run's folder is the plan; ``mixture.html`` shows planned and realised shares.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmctl import console
from llmctl.artifacts.files import write_file, write_json
from llmctl.loading.loader import Loader
from llmctl.loading.mixture import MANY_EPOCHS, MixturePlan
from llmctl.pretraining.samples import read_lines, realized
from llmctl.report.charts import Curve, line_chart, parts_chart
from llmctl.report.page import Page

PLAN_NAME, PAGE_NAME = "mixture.json", "mixture.html"
# Points of a curve of shares over the steps.
MAX_POINTS = 100


def say_mixture(loader: Loader) -> None:
    """Print the plan, what packing cuts, and a warning where data is repeated often."""
    plan = loader.plan
    if len(plan.columns) > 1:
        console.table(
            "mixture (samples)",
            ("steps", *plan.columns),
            [
                (f"{phase.first_step:,} to {phase.first_step + phase.steps - 1:,}", *phase.counts)
                for phase in plan.phases
                if phase.steps
            ]
            + [("epochs", *(round(epochs, 2) for epochs in plan.epochs))],
        )
    facts = loader.packing_facts()
    console.info(
        f"pretrain: packing {loader.settings.packing} cuts {facts.cut_cuttable:,} of {facts.cuttable:,} documents that "
        f"fit into a sequence ({100 * facts.truncated_share:.1f} %) and pads {100 * facts.padded_share:.2f} %"
    )
    limit = loader.settings.max_epochs
    often = [
        f"{name} {epochs:.1f} times"
        for name, epochs in zip(plan.columns, plan.epochs, strict=True)
        if epochs > (limit or MANY_EPOCHS)
    ]
    if often and len(plan.columns) > 1:
        console.warning(
            f"the run sees {', '.join(often)}",
            f"beyond {MANY_EPOCHS} epochs repeated data teaches little; --max-epochs sets a limit",
        )


def write_plan(root: Path, loader: Loader) -> None:
    """Write the plan before the training starts."""
    write_json(root, PLAN_NAME, {**loader.plan.to_mapping(), "packing": loader.settings.packing})
    write_file(root, PAGE_NAME, page(loader.plan, None, []).encode())


def write_realized(root: Path, loader: Loader) -> dict[str, Any]:
    """Add what the run was given to its picture, and return it."""
    given = realized(root, loader.plan)
    lines = list(read_lines(root)) if len(loader.plan.columns) > 1 else []
    write_file(root, PAGE_NAME, page(loader.plan, given, lines).encode())
    return given


def page(plan: MixturePlan, given: dict[str, Any] | None, lines: list[dict[str, Any]]) -> str:
    """Draw planned and, where known, realised shares.

    Args:
        given: of `realized`.
        lines: of `read_lines`.
    """
    shown = Page("Mixture", "Samples of each column by phase of the training, as planned and as delivered.")
    bars: list[tuple[str, list[tuple[str, float]]]] = []
    for index, phase in enumerate(plan.phases):
        where = f"steps {phase.first_step:,} to {phase.first_step + phase.steps - 1:,}"
        bars.append((f"{where}, plan", list(zip(plan.columns, map(float, phase.counts), strict=True))))
        if given is not None:
            counts = given["phases"][index]
            bars.append(("delivered", [(name, float(counts[name])) for name in plan.columns]))
    shown.add(parts_chart(bars, title="Shares of the samples", unit="samples"))
    if lines:
        shown.add(_curves(plan, lines))
    shown.heading("Sources")
    shown.table(
        ("column", "sources", "sequences an epoch", "samples", "epochs"),
        [
            (name, ", ".join(sources), size, total, round(epochs, 3))
            for name, sources, size, total, epochs in zip(
                plan.columns, plan.sources, plan.per_epoch, plan.totals, plan.epochs, strict=True
            )
        ],
    )
    if given is not None:
        shown.heading("Tokens delivered")
        total = sum(given["tokens_by_source"].values()) or 1
        shown.table(
            ("source", "tokens", "share"),
            [(name, count, f"{100 * count / total:.2f} %") for name, count in given["tokens_by_source"].items()],
        )
    return shown.render()


def _curves(plan: MixturePlan, lines: list[dict[str, Any]]) -> str:
    """Draw shares over the steps, each point the mean of some steps in a row."""
    steps = sum(phase.steps for phase in plan.phases)
    width = -(-steps // MAX_POINTS)
    sums: dict[int, dict[str, int]] = {}
    for line in lines:
        counted = sums.setdefault((line["step"] - 1) // width, {})
        for name, count in line["columns"].items():
            counted[name] = counted.get(name, 0) + count
    curves = []
    for name in plan.columns:
        points = [
            (min((place + 0.5) * width, steps), counts.get(name, 0) / sum(counts.values()))
            for place, counts in sorted(sums.items())
        ]
        curves.append(Curve(name, points))
    for index, name in enumerate(plan.columns):
        planned = []
        for phase in plan.phases:
            share = phase.counts[index] / max(1, sum(phase.counts))
            planned += [(float(phase.first_step), share), (float(phase.first_step + phase.steps - 1), share)]
        curves.append(Curve(f"{name}, plan", planned, dashed=True))
    return line_chart(curves, title="Delivered shares over the steps (dashed: the plan)", y_label="share")

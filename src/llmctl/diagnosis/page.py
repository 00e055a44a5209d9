"""The page of a diagnosis: findings, curves with the findings marked, and what a step is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmctl.diagnosis.breakdown import step_breakdown
from llmctl.diagnosis.columns import Series
from llmctl.diagnosis.evidence import Evidence
from llmctl.diagnosis.findings import Finding
from llmctl.diagnosis.traces import Trace
from llmctl.report.charts import Curve, Mark, line_chart, parts_chart
from llmctl.report.flame import flame_graph
from llmctl.report.page import Page

if TYPE_CHECKING:
    from llmctl.diagnosis.stage import Diagnosis

# Charts in the order of the page: (title, unit, logarithmic, [(column, name)]).
CHARTS: tuple[tuple[str, str, bool, tuple[tuple[str, str], ...]], ...] = (
    ("Gradient norm", "", True, (("grad_norm", "gradient norm"),)),
    ("Learning rate", "", False, (("lr", "learning rate"),)),
    ("Reward", "", False, (("reward_mean", "reward"),)),
    ("KL from the reference", "nats", False, (("kl", "KL"),)),
    ("Entropy of the policy", "nats", False, (("entropy", "entropy"),)),
    ("Length of responses", "tokens", False, (("response_length", "length"),)),
    ("Throughput", "tokens/s", False, (("tokens_per_s", "tokens per second"),)),
    (
        "Time per step",
        "s",
        False,
        (
            ("step_time_s", "whole step"),
            ("data_time_s", "waiting for data"),
            ("forward_s", "forward"),
            ("backward_s", "backward"),
            ("communication_s", "communication"),
            ("update_s", "update"),
        ),
    ),
    ("Memory", "bytes", False, (("memory_bytes", "memory"),)),
    ("Loss scale", "", True, (("loss_scale", "loss scale"),)),
)
MAX_RANK_CURVES = 8
MAX_OPERATORS = 20


def diagnosis_page(diagnosis: Diagnosis) -> str:
    """Return the HTML of a diagnosis."""
    evidence = diagnosis.evidence
    lead = f"{evidence.path}: {evidence.num_steps:,} logged steps, {evidence.origin}"
    page = Page(f"Diagnosis of {evidence.path.resolve().name}", lead)
    page.heading("Findings")
    for finding in diagnosis.findings:
        page.finding(finding.to_mapping())
    if not diagnosis.findings:
        page.healthy(diagnosis.verdict)
    for note in evidence.notes:
        page.paragraph(note, faint=True)
    page.heading("Curves")
    _loss_chart(page, evidence, diagnosis.findings)
    marks = _marks(diagnosis.findings)
    for title, unit, log, columns in CHARTS:
        curves = [Curve(name, _points(evidence.raw(column))) for column, name in columns]
        page.add(line_chart(curves, title=title, y_label=unit, log_y=log, marks=marks))
    _breakdown(page, evidence)
    _ranks(page, evidence)
    for trace in diagnosis.traces:
        _trace(page, trace)
    page.heading("What was looked at")
    page.table(
        ("rule", "judged", "not logged"),
        [(name, "yes", "") for name in diagnosis.judged]
        + [(name, "no", ", ".join(missing)) for name, missing in diagnosis.not_judged.items()],
    )
    return page.render()


def _points(series: Series) -> list[tuple[float, float]]:
    return list(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def _marks(findings: list[Finding]) -> list[Mark]:
    return [
        Mark(finding.step, f"{finding.rule}, step {finding.step}: {finding.evidence}")
        for finding in findings
        if finding.step is not None
    ]


def _loss_chart(page: Page, evidence: Evidence, findings: list[Finding]) -> None:
    curves = [Curve("training", _points(evidence.raw("loss")))]
    for name, series in sorted(evidence.validation_loss().items()):
        curves.append(Curve(name, _points(series), dashed=True))
    page.add(line_chart(curves, title="Loss", y_label="nats per token", marks=_marks(findings), height=320))


def _breakdown(page: Page, evidence: Evidence) -> None:
    parts = step_breakdown(evidence)
    if not parts:
        return
    page.heading("What a step is made of")
    page.add(
        parts_chart(
            [("median step", [(part.name, part.seconds) for part in parts])], title="Time of the median step", unit="s"
        )
    )
    page.table(("part", "seconds", "share of the step, %"), [(p.name, p.seconds, 100 * p.share) for p in parts])


def _trace(page: Page, trace: Trace) -> None:
    page.heading(f"Trace {trace.path.name}")
    steps = f", steps {trace.steps[0]} to {trace.steps[-1]}" if trace.steps else ""
    busy = (
        "" if trace.device_busy_s is None else f"; the device is busy {100 * trace.device_busy_s / trace.span_s:.0f} %"
    )
    page.paragraph(f"{trace.span_s:.4g} s{steps}{busy}")
    page.add(flame_graph(trace.root, title="Who called whom: width is time, summed over threads and streams"))
    page.table(
        ("work", "seconds in which it was going on", "share of the trace, %"),
        [(kind, seconds, 100 * seconds / trace.span_s) for kind, seconds in trace.seconds.items()],
    )
    page.table(("operator", "own time, s", "calls"), trace.operators[:MAX_OPERATORS])
    page.table(
        ("communication", "calls", "seconds", "MB", "MB/s"),
        [
            (name, calls, seconds, size / 1e6 or None, size / 1e6 / seconds if size and seconds else None)
            for name, calls, seconds, size in trace.collectives[:MAX_OPERATORS]
        ],
    )


def _ranks(page: Page, evidence: Evidence) -> None:
    if len(evidence.ranks) < 2:
        return
    page.heading("Ranks")
    rows = []
    for rank, columns in sorted(evidence.ranks.items()):
        medians = [columns.series(name).finite() for name in ("step_time_s", "data_time_s", "communication_s")]
        rows.append((rank, *(series.median() if len(series) else None for series in medians)))
    page.table(("rank", "step, s", "waiting for data, s", "communication, s"), rows)
    shown = sorted(evidence.ranks)[:MAX_RANK_CURVES]
    for column, title in (("step_time_s", "Step time of each rank"), ("communication_s", "Communication of each rank")):
        curves = [Curve(f"rank {rank}", _points(evidence.ranks[rank].series(column))) for rank in shown]
        page.add(line_chart(curves, title=title, y_label="s"))

"""The page of a whole chain: what each stage did, and how the model came out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from llmctl.report.chain import UNIGRAM_KEYS, StageSummary, read_chain
from llmctl.report.charts import Bar, Curve, Level, bar_chart, line_chart, parts_chart
from llmctl.report.page import Page
from llmctl.report.summary import CHAIN_COLUMNS, chain_row

MAX_REASONS = 20
# What is drawn of a run that maximises a reward: (title, unit, [(column, name)]).
REWARD_CHARTS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    ("reward", "", (("score_mean", "score of the reward model"), ("reward_mean", "reward that is maximised"))),
    ("KL from the reference", "nats per response", (("kl", "KL"),)),
    ("entropy", "nats per token", (("entropy", "entropy of the policy"),)),
    ("length of responses", "tokens", (("response_length", "length"),)),
)


def chain_page(title: str, stages: Sequence[Path | str], samples: Sequence[Mapping[str, str]] | None = None) -> str:
    """Return one self-contained HTML page about a chain of stages.

    Args:
        title: the page's heading.
        stages: the folders of the chain in order; a folder that is missing or unfinished gets a line saying so.
        samples: ``prompt``, ``before`` and ``after`` texts; if None, those that the stages have kept.
    """
    summaries = read_chain([Path(folder) for folder in stages])
    page = Page(title, "Every number on this page was measured in this run.")
    page.heading("What each stage did")
    page.table(CHAIN_COLUMNS, [chain_row(stage) for stage in summaries])
    _records(page, summaries)
    for stage in summaries:
        if stage.is_training:
            page.heading(stage.name)
            _curves(page, stage, summaries)
    _samples(page, samples if samples is not None else [row for stage in summaries for row in stage.samples])
    _findings(page, summaries)
    return page.render()


def _records(page: Page, stages: Sequence[StageSummary]) -> None:
    counted = [stage for stage in stages if stage.records.get("in")]
    if not counted:
        return
    page.heading("Records")
    page.add(
        parts_chart(
            [
                (stage.name, [(key, stage.records.get(key, 0)) for key in ("kept", "removed", "invalid")])
                for stage in counted
            ],
            title="Records of each stage",
            unit="records",
        )
    )
    for stage in counted:
        reasons = sorted(stage.reasons.items(), key=lambda item: -item[1])[:MAX_REASONS]
        page.add(
            bar_chart(
                [Bar(name, count, f"of {stage.records['in']:,} records") for name, count in reasons if count],
                title=f"{stage.name}: removed, by reason",
                unit="records",
            )
        )


def _curves(page: Page, stage: StageSummary, stages: Sequence[StageSummary]) -> None:
    if stage.is_reinforcement:
        for title, unit, columns in REWARD_CHARTS:
            curves = [Curve(name, stage.points(column)) for column, name in columns]
            page.add(line_chart(curves, title=f"{stage.name}: {title}", y_label=unit))
        return
    curves = [Curve("training", stage.points("loss"))]
    curves.append(Curve("validation", stage.validation_points("loss"), dashed=True))
    page.add(line_chart(curves, title=f"{stage.name}: loss", y_label="nats per token", height=300))
    bits = stage.validation_points("bits_per_byte")
    if bits:
        page.add(
            line_chart(
                [Curve("validation", bits)],
                title=f"{stage.name}: validation text, bits per byte",
                y_label="bits per byte",
                levels=_unigram(stage, stages),
            )
        )
    accuracy = stage.validation_points("accuracy")
    page.add(line_chart([Curve("validation", accuracy)], title=f"{stage.name}: accuracy", y_label="share"))


def _unigram(stage: StageSummary, stages: Sequence[StageSummary]) -> list[Level]:
    """Return the line that a model which only knows token frequencies would reach, where any stage states it."""
    for candidate in (stage, *stages):
        value = candidate.number(*UNIGRAM_KEYS)
        if value is not None:
            return [Level("entropy of single tokens", value)]
    return []


def _samples(page: Page, samples: Sequence[Mapping[str, str]]) -> None:
    if not samples:
        return
    page.heading("Samples before and after alignment")
    for sample in samples:
        page.paragraph(str(sample.get("prompt", "")))
        for when in ("before", "after"):
            page.paragraph(when, faint=True)
            page.preformatted(str(sample.get(when, "")))


def _findings(page: Page, stages: Sequence[StageSummary]) -> None:
    reports = [stage for stage in stages if stage.kind == "report"]
    if not reports:
        return
    page.heading("Findings")
    for report in reports:
        for finding in report.findings:
            page.finding(finding)
        if not report.findings:
            page.healthy(str(report.statistics.get("verdict") or "no findings"))

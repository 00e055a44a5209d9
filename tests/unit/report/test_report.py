"""Charts and pages: well-formed, alone, escaped, and showing the numbers they were given."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest

from llmctl.artifacts.files import write_file, write_json
from llmctl.artifacts.manifest import Manifest
from llmctl.report.charts import Bar, Curve, Level, Mark, bar_chart, line_chart, parts_chart
from llmctl.report.logs import curve, last_of_each_step, read_log
from llmctl.report.markup import duration, escape, number, size
from llmctl.report.page import Page
from llmctl.report.pages import chain_page
from llmctl.report.scales import Scale, extent, thin_out, tick_label, ticks
from llmctl.report.summary import CHAIN_COLUMNS, chain_rows

NASTY = "<script>alert('x')</script> & \"q\" \x00\x07\ud800 ]]> &lt;"


def tree(markup: str) -> ElementTree.Element:
    return ElementTree.fromstring(markup.removeprefix("<!DOCTYPE html>\n"))


class Strict(HTMLParser):
    """Fails on what must not be on a page, and on tags that do not match."""

    VOID = frozenset({"meta"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        assert tag not in ("script", "iframe", "object", "embed", "link", "img", "base", "form")
        for name, value in attrs:
            assert name not in ("src", "href", "onclick", "onload", "xlink:href", "srcset", "action")
            assert name != "style" and "url(" not in (value or "") and "//" not in (value or "")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        self.text.append(data)


def check_page(text: str) -> str:
    """Parse a page as XML and as HTML; return its text."""
    tree(text)
    parser = Strict()
    parser.feed(text)
    assert parser.open == []
    assert not re.search(r"https?:|@import|url\(", text)
    return " ".join(parser.text)


class TestScales:
    @pytest.mark.parametrize(
        ("low", "high", "expected"),
        [(0, 10, [0, 2, 4, 6, 8, 10]), (0.21, 0.29, [0.22, 0.24, 0.26, 0.28]), (-3, 3, [-3, -2, -1, 0, 1, 2, 3])],
    )
    def test_ticks_are_round(self, low, high, expected) -> None:
        assert [round(tick, 9) for tick in ticks(low, high)] == expected

    def test_ticks_of_powers(self) -> None:
        assert ticks(0.5, 2000, log=True) == [1, 10, 100, 1000]
        assert len(ticks(1e-12, 1e12, log=True)) <= 8
        assert ticks(2, 5, log=True) == [2, 2.5, 3, 3.5, 4, 4.5, 5]

    def test_positions(self) -> None:
        assert Scale(0, 10, 100, 200)(5) == 150
        assert Scale(1, 100, 0, 200, log=True)(10) == pytest.approx(100)
        assert Scale(0, 10, 0, 100)(99) == 100  # kept within the axis
        assert Scale(3, 3, 0, 100)(3) == 50

    def test_an_axis_holds_its_values(self) -> None:
        assert extent([]) == (0, 1) and extent([float("nan")], log=True) == (1, 10)
        low, high = extent([5.0, 5.0])
        assert low < 5 < high
        assert extent([2.0, 4.0], zero=True)[0] == 0
        low, high = extent([-1.0, 0.0, 10.0, 1000.0], log=True)
        assert 0 < low <= 10 and high >= 1000

    def test_labels_are_short(self) -> None:
        assert [tick_label(value) for value in (0, 300, 25000, 3e6, 0.05, 1e-5)] == [
            "0",
            "300",
            "25k",
            "3M",
            "0.05",
            "1.0e-05",
        ]

    def test_thinning_keeps_peaks_ends_and_gaps(self) -> None:
        points = [(float(x), 1.0) for x in range(10000)]
        points[5003] = (5003.0, 99.0)
        points[7001] = (7001.0, math.nan)
        kept = thin_out(points, 200)
        assert len(kept) <= 320
        assert (5003.0, 99.0) in kept and kept[0] == points[0] and kept[-1] == points[-1]
        assert any(math.isnan(y) for _, y in kept)
        assert [x for x, _ in kept] == sorted(x for x, _ in kept)


class TestCharts:
    def test_a_curve_with_axes_legend_and_hover_text(self) -> None:
        points = [(float(step), 3 + 6 / step) for step in range(1, 51)]
        chart = line_chart(
            [Curve("training", points), Curve("validation", points[::10], dashed=True)],
            title="Loss",
            y_label="nats",
            levels=[Level("unigram", 5.0)],
            marks=[Mark(20, "spike & co")],
        )
        root = tree(chart)
        texts = ["".join(node.itertext()) for node in root.iter()]
        assert "training, step 1: 9" in texts and "unigram: 5" in texts and "spike & co" in texts
        assert any(node.get("stroke-dasharray") == "5 3" for node in root.iter("path"))
        assert "".join(root.find("p").itertext()).startswith("training")  # type: ignore[union-attr]

    def test_a_line_breaks_where_there_is_no_number(self) -> None:
        points = [(1.0, 1.0), (2.0, 2.0), (3.0, math.nan), (4.0, math.inf), (5.0, 2.0), (6.0, 1.0)]
        root = tree(line_chart([Curve("loss", points)], title="Loss"))
        paths = [node.get("d") for node in root.iter("path") if node.get("d", "").count("M") == 2]
        assert paths and "nan" not in str(paths) and "inf" not in str(paths)
        titles = [node.text for node in root.iter("title")]
        assert "loss, step 3: NaN" in titles and "loss, step 4: infinite" in titles

    def test_nothing_to_draw_is_nothing(self) -> None:
        assert line_chart([Curve("loss", [(1.0, math.nan)])], title="Loss") == ""
        assert line_chart([Curve("norm", [(1.0, 0.0)])], title="Norm", log_y=True) == ""
        assert bar_chart([], title="x") == "" and parts_chart([("a", [("b", 0)])], title="x") == ""

    def test_one_point_is_drawn(self) -> None:
        assert "<circle" in line_chart([Curve("loss", [(1.0, 2.0)])], title="Loss")

    def test_bars_have_lengths_in_proportion(self) -> None:
        root = tree(bar_chart([Bar("a", 10), Bar("b", 40), Bar("c", 0)], title="Removed", unit="records"))
        widths = [float(node.get("width", 0)) for node in root.iter("rect")]
        assert widths[1] == pytest.approx(4 * widths[0], rel=0.01) and widths[2] <= 1

    def test_parts_fill_their_bar(self) -> None:
        root = tree(parts_chart([("filter", [("kept", 60), ("removed", 40)]), ("dedup", [("kept", 60)])], title="x"))
        widths = [float(node.get("width", 0)) for node in root.iter("rect")]
        assert widths[0] + widths[1] == pytest.approx(widths[2], abs=0.2)
        assert widths[0] / widths[1] == pytest.approx(1.5, rel=0.01)

    def test_labels_are_escaped(self) -> None:
        for chart in (
            line_chart([Curve(NASTY, [(1.0, 2.0), (2.0, 3.0)])], title=NASTY, levels=[Level(NASTY, 1)]),
            bar_chart([Bar(NASTY, 1, NASTY)], title=NASTY, unit=NASTY),
            parts_chart([(NASTY, [(NASTY, 1)])], title=NASTY),
        ):
            assert "<script" not in chart
            tree(chart)


class TestPage:
    def test_everything_is_escaped(self) -> None:
        page = Page(NASTY, NASTY)
        page.heading(NASTY)
        page.paragraph(NASTY)
        page.table((NASTY, "n"), [(NASTY, 1), (NASTY, None)])
        page.preformatted(NASTY)
        page.finding(
            {"severity": NASTY, "rule": NASTY, "evidence": NASTY, "cause": NASTY, "fix": NASTY, "module": NASTY}
        )
        page.healthy(NASTY)
        text = check_page(page.render())
        assert text.count("<script>alert('x')</script>") >= 8  # as text

    def test_the_page_forbids_scripts_and_loading(self) -> None:
        assert "default-src &#x27;none&#x27;" in Page("x").render()

    def test_numbers_for_people(self) -> None:
        assert [number(1234567), number(0.123456), number(None), number(True)] == ["1,234,567", "0.1235", "–", "yes"]
        assert [size(None), size(12), size(12_300_000)] == ["–", "12 B", "12.3 MB"]
        assert [duration(None), duration(3.21), duration(250), duration(7500)] == [
            "–",
            "3.2 s",
            "4 min 10 s",
            "2 h 5 min",
        ]

    def test_control_characters_and_lone_surrogates_are_replaced(self) -> None:
        assert escape("a\x00b\ud800c") == "a\ufffdb\ufffdc"
        escape("\ud800").encode("utf-8")


class TestLogs:
    def test_rows_are_flat_and_broken_lines_counted(self, tmp_path: Path) -> None:
        path = tmp_path / "log.jsonl"
        path.write_bytes(b'{"step": 1, "a": {"b": {"c": 2}}}\nx\n[1]\n\n{"step": 2}\n{"st')
        log = read_log(path)
        assert log.rows == [{"step": 1, "a.b.c": 2}, {"step": 2}]
        assert log.broken_lines == [2, 3] and log.cut
        assert read_log(tmp_path / "missing").rows == []

    def test_of_repeated_steps_the_last_counts(self) -> None:
        rows = [{"step": 2, "x": 1}, {"step": 1, "x": 2}, {"step": 2, "x": 3}, {"step": None}, {"step": float("nan")}]
        assert last_of_each_step(rows) == [{"step": 1, "x": 2}, {"step": 2, "x": 3}]
        assert [row["step"] for row in last_of_each_step([{"x": 1}, {"x": 2}])] == [1, 2]

    def test_a_curve_has_nan_for_null(self) -> None:
        points = curve([{"step": 1, "x": 2}, {"step": 2, "x": None}, {"step": 3}, {"step": 4, "x": "text"}], "x")
        assert points[0] == (1, 2) and math.isnan(points[1][1]) and len(points) == 2


def stage(root: Path, kind: str, name: str, statistics: dict, *, run: dict | None = None, **logs: list[dict]) -> Path:
    """Write a finished artifact as a stage leaves it."""
    root.mkdir(parents=True)
    files = [write_file(root, "data/part.bin", b"x" * 1000)]
    for log, rows in logs.items():
        (root / f"{log}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_json(root, "run.json", run if run is not None else {"duration_s": 12.5})
    Manifest(kind=kind, stage=name, config={}, files=files, statistics=statistics).write(root)
    return root


@pytest.fixture
def chain(tmp_path: Path) -> list[Path]:
    records = {"in": 100, "kept": 70, "removed": 28, "invalid": 2}
    reasons = {"too_short": 20, "<b>": 8}
    pretrain = [{"step": step, "loss": 3 + 6 / step} for step in range(1, 101)]
    validation = [{"step": step, "loss": 3 + 6 / step, "bits_per_byte": 1 + 1 / step} for step in (50, 100)]
    ppo = [
        {"step": step, "loss": 0.1, "reward_mean": step / 10, "score_mean": step / 9, "kl": step / 5, "entropy": 2.0}
        for step in range(1, 21)
    ]
    finding = {"rule": "loss_spike", "severity": "warning", "step": 3, "evidence": "e", "cause": "c", "fix": "f"}
    samples = [
        {"when": when, "prompt": "Hello <b>", "response": f"{when} text", "score": 1} for when in ("before", "after")
    ]
    return [
        stage(tmp_path / "clean", "documents", "filter", {"records": records, "by_reason": reasons}),
        stage(tmp_path / "tokens", "tokens", "tokenize", {"tokens": 12345, "unigram": {"unigram_bits_per_byte": 2.4}}),
        stage(tmp_path / "base", "model", "pretrain", {"tokens": 9}, metrics=pretrain, validation=validation),
        stage(tmp_path / "ppo", "model", "rlhf", {}, metrics=ppo, samples=samples),
        stage(tmp_path / "report", "report", "diagnose", {"findings": [finding], "verdict": "1 finding"}),
    ]


class TestChain:
    def test_a_row_for_each_stage(self, chain: list[Path]) -> None:
        rows = chain_rows(chain)
        assert all(len(row) == len(CHAIN_COLUMNS) for row in rows)
        assert rows[0] == ["filter", 100, 70, 28, 2, "12.5 s", "1.0 kB", "most removed by too_short (20)"]
        assert rows[1][-1] == "12,345 tokens"
        assert rows[2][-1] == "loss 5.74 → 3.06, 1.01 bits per byte on validation text"
        assert rows[3][-1] == "reward 0.111 → 2.22, KL 4"
        assert rows[4][-1] == "1 finding"

    def test_the_page_shows_every_part(self, chain: list[Path]) -> None:
        text = check_page(chain_page("Demo", chain))
        for part in (
            "filter: removed, by reason",
            "pretrain: loss",
            "entropy of single tokens (2.4)",
            "rlhf: reward",
            "rlhf: KL from the reference",
            "Hello <b>",
            "before text",
            "after text",
            "loss_spike",
        ):
            assert part in text, part

    def test_samples_may_be_given(self, chain: list[Path]) -> None:
        page = chain_page("Demo", chain, [{"prompt": "P", "before": "B", "after": "<script>"}])
        assert "<script>" in check_page(page) and "Hello" not in page

    def test_samples_json_is_read(self, chain: list[Path]) -> None:
        (chain[3] / "samples.json").write_text(json.dumps([{"prompt": "Q", "before": "old", "after": "new"}, 3]))
        assert "new" in check_page(chain_page("Demo", chain))

    def test_folders_that_cannot_be_read_are_told(self, chain: list[Path], tmp_path: Path) -> None:
        (chain[0] / "manifest.json").write_text("{")
        (tmp_path / "unfinished" / "_state").mkdir(parents=True)
        folders = [*chain, tmp_path / "missing", tmp_path / "unfinished"]
        rows = chain_rows(folders)
        assert "not a manifest" in rows[0][-1] and "no manifest.json" in rows[5][-1] and "not finished" in rows[6][-1]
        assert "not finished" in check_page(chain_page("Demo", folders))

    def test_odd_statistics_do_no_harm(self, tmp_path: Path) -> None:
        odd = stage(
            tmp_path / "odd",
            "model",
            "pretrain",
            {"records": ["x"], "by_reason": {"a": "b"}, "findings": 3, "tokens": True},
            run={"duration_s": "long"},
            metrics=[{"step": 1, "loss": None}, {"step": 2, "loss": "NaN"}],
        )
        check_page(chain_page("Demo", [odd]))
        assert chain_rows([odd])[0][0] == "pretrain"

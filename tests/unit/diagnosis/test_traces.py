"""Profiler traces: nesting, kinds of work, overlap, and files that are cut off or foreign."""

from __future__ import annotations

import gzip
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from llmctl.diagnosis.traces import merge_intervals, overlap, read_trace
from llmctl.errors import UserError
from llmctl.report.flame import Frame, flame_graph


def event(name: str, start: float, length: float, thread: int = 1, category: str = "cpu_op", **arguments) -> dict:
    row = {"ph": "X", "name": name, "cat": category, "pid": 1, "tid": thread, "ts": start, "dur": length}
    return {**row, "args": arguments}


def write(path: Path, events: list) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


# One step on the host, kernels on stream 7, an all-reduce on stream 9 of which half is hidden behind a kernel.
GPU = [
    event("ProfilerStep#3", 0, 1000, category="user_annotation"),
    event("aten::linear", 0, 400),
    event("aten::addmm", 50, 300),
    event("MmBackward0", 500, 200, thread=2),
    event("Optimizer.step#AdamW.step", 800, 100, category="user_annotation"),
    event("gemm_kernel", 100, 500, thread=7, category="kernel"),
    event(
        "ncclDevKernel_AllReduce_Sum_f32",
        400,
        400,
        thread=9,
        category="kernel",
        **{"In msg nelems": 1000, "dtype": "Float"},
    ),
    {"ph": "M", "name": "process_name"},
    {"ph": "X", "name": "no time"},
    "text",
]


def test_kinds_overlap_and_collectives(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "trace.json", GPU))
    assert trace.span_s == pytest.approx(1e-3) and trace.steps == [3]
    assert trace.seconds["communication"] == pytest.approx(400e-6)
    assert trace.seconds["backward"] == pytest.approx(200e-6) and trace.seconds["update"] == pytest.approx(100e-6)
    assert trace.exposed_communication_s == pytest.approx(200e-6)
    assert trace.device_busy_s == pytest.approx(700e-6)
    assert trace.collectives == [("ncclDevKernel_AllReduce_Sum_f32", 1, pytest.approx(400e-6), 4000)]


def test_on_a_cpu_only_other_threads_hide_communication(tmp_path: Path) -> None:
    events = [
        event("autograd::engine::evaluate_function", 0, 100),
        event("gloo:all_reduce", 10, 80),
        event("aten::mm", 50, 100, thread=2),
    ]
    trace = read_trace(write(tmp_path / "trace.json", events))
    assert trace.exposed_communication_s == pytest.approx(40e-6)


def test_calls_are_nested_and_own_time_is_what_callees_leave(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "trace.json", GPU))
    linear = trace.root.children["ProfilerStep"].children["aten::linear"]
    assert linear.children["aten::addmm"].total == pytest.approx(300e-6)
    assert linear.own == pytest.approx(100e-6)
    assert ("aten::linear", pytest.approx(100e-6), 1) in trace.operators


def test_equal_chains_are_merged_and_overlapping_events_are_no_children(tmp_path: Path) -> None:
    events = [event("a", 0, 10), event("b", 2, 3), event("a", 20, 10), event("b", 21, 5), event("c", 28, 30)]
    root = read_trace(write(tmp_path / "trace.json", events)).root
    assert root.children["a"].count == 2 and root.children["a"].children["b"].total == pytest.approx(8e-6)
    assert "c" in root.children and "c" not in root.children["a"].children


def test_gzipped_and_cut_traces(tmp_path: Path) -> None:
    whole = json.dumps({"traceEvents": [event(f"op{n}", 10 * n, 5, x={"y": 1}) for n in range(100)]})
    zipped = tmp_path / "trace.json.gz"
    zipped.write_bytes(gzip.compress(whole.encode()))
    assert len(read_trace(zipped).root.children) == 100
    cut = tmp_path / "cut.json"
    cut.write_text(whole[: len(whole) // 2])
    assert 40 <= len(read_trace(cut).root.children) <= 50


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', "\x1f\x8bbroken", '{"traceEvents": [{"ph": "X"}]}'])
def test_what_is_no_trace_gets_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError) as failure:
        read_trace(path)
    assert failure.value.hint


def test_intervals() -> None:
    assert merge_intervals([(5, 6), (0, 2), (1, 3), (3, 4)]) == [(0, 4), (5, 6)]
    assert overlap([(0, 4), (5, 6)], [(1, 2), (3, 5.5)]) == 2.5


def test_a_real_profile_of_the_cpu(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    layer = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(layer.parameters())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(2):
            layer(torch.randn(8, 64)).square().mean().backward()
            optimizer.step()
            profiler.step()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = read_trace(tmp_path / "trace.json")
    assert {"compute", "backward", "update"} <= set(trace.seconds)
    assert "communication" not in trace.seconds and trace.device_busy_s is None
    names = {name for name, _, _ in trace.operators}
    assert "aten::mm" in names or "aten::addmm" in names
    assert sum(own for _, own, _ in trace.operators) > 0


def test_a_flame_graph_shows_time_as_width() -> None:
    root = Frame("all", 10.0)
    root.child("a <b>").total, root.child("c").total = 6.0, 3.0
    root.child("a <b>").child("inner").total = 3.0
    graph = ElementTree.fromstring(flame_graph(root, title="Calls", width=1000))
    widths = [float(node.get("width", 0)) for node in graph.iter("rect")]
    assert widths == [600, 300, 300]
    assert {node.get("y") for node in graph.iter("rect")} == {"0", "16"}
    assert any("a <b>: 6 s (60.0 %)" in (node.text or "") for node in graph.iter("title"))
    assert flame_graph(Frame("all"), title="Calls") == ""

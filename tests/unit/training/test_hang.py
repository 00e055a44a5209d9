"""Who is to blame when a run hangs, told from stacks and flight records."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from llmctl.training.hang import HangWatch, Stuck, describe, read_flight_record, read_stack, to_blame


def stuck(rank: int, **changes) -> Stuck:
    return Stuck(rank, 5, 40.0, **{"silent": False, "entered": {"dp": 7}, **changes})


def test_the_process_in_no_collective_is_to_blame():
    found = [stuck(0, collective="all_reduce of dp"), stuck(1, entered={"dp": 6}, where="read (data.py:10)")]
    assert [item.rank for item in to_blame(found)] == [1]
    assert describe(found) == (
        "the run hangs after step 5, for 40 s: process 1 stands in read (data.py:10); "
        "the others wait for it in all_reduce of dp"
    )


def test_a_silent_process_is_to_blame_whatever_the_others_do():
    found = [stuck(0, collective="all_reduce of tp"), stuck(1, silent=True, entered=None), stuck(2)]
    assert [item.rank for item in to_blame(found)] == [1]


def test_processes_that_call_different_collectives_are_told_by_the_fewest():
    found = [
        stuck(0, collective="all_reduce of dp", entered={"dp": 7, "tp": 9}),
        stuck(1, collective="broadcast of tp", entered={"dp": 6, "tp": 9}),
    ]
    assert [item.rank for item in to_blame(found)] == [1]


def test_nobody_here_is_to_blame_when_all_stand_alike():
    found = [stuck(rank, collective="all_reduce of dp") for rank in (0, 1)]
    assert to_blame(found) == [] and "another host" in describe(found)


def test_records_that_cannot_be_read_say_nothing(tmp_path: Path):
    item = stuck(0, entered=None)
    for content in (b"", b"{", b'{"entries": [{}]}', b"[1]"):
        (tmp_path / "flight-0.json").write_bytes(content)
        read_flight_record(tmp_path / "flight-0.json", item)
    read_stack(tmp_path / "missing", item)
    assert item.entered is None and item.collective is None and item.where is None


def test_the_main_thread_is_read_from_a_dump(tmp_path: Path):
    (tmp_path / "stack-0.txt").write_text(
        'Current thread 0x01 [heartbeat] (most recent call first):\n  File "a/heartbeat.py", line 3 in run\n\n'
        'Thread 0x02 (most recent call first):\n  File "x/torch/distributed/c10d.py", line 9 in all_reduce\n'
        '  File "x/llmctl/training/engines/native.py", line 77 in step\n'
    )
    item = stuck(0)
    read_stack(tmp_path / "stack-0.txt", item)
    assert item.where == "step (native.py:77)"


@pytest.mark.parametrize(
    ("beat", "hangs"),
    [
        ({"at": 2.0, "slowest_s": 0.1}, False),
        ({"at": 5.0, "slowest_s": 0.1}, True),
        ({"at": 5.0, "slowest_s": 0.9}, False),  # a run of slow steps
        ({"at": 5.0, "slowest_s": 0.1, "busy": "validation"}, False),
        ({"at": 0.0, "slowest_s": 0.0, "busy": "start"}, False),
        ({"at": 500.0, "slowest_s": 0.1, "busy": "validation"}, True),  # longer than any wait that is allowed
        ({"at": 2.0, "slowest_s": 0.1, "time": 11.0}, True),  # not even a heartbeat
    ],
)
def test_when_a_process_counts_as_stuck(tmp_path: Path, beat: dict, hangs: bool):
    now = time.monotonic()
    state = {"step": 3, "busy": None, "time": 0.0, **beat}
    state["time"], state["at"] = now - state["time"], (now - state["at"]) if state["at"] else 0.0
    (tmp_path / "beat-0.json").write_text(json.dumps(state))
    watch = HangWatch(tmp_path, [0, 1], limit_s=4.0, longest_s=100.0)
    assert (watch._stuck(0, now) is not None) is hangs
    assert watch._stuck(1, now) is None  # it has not written yet: still starting

"""The dedup command as a user types it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from llmctl.cli.app import run


def sentence(seed: int, count: int = 60) -> str:
    return " ".join(random.Random(seed).choices([f"w{i}" for i in range(3000)], k=count))


@pytest.fixture
def corpus(tmp_path) -> Path:
    folder = tmp_path / "raw"
    folder.mkdir()
    for name in ("a", "b"):
        with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as out:
            for number in range(60):
                text = sentence(number % 40) + (" extra" if number >= 50 else "")
                out.write(json.dumps({"id": f"{name}{number}", "text": text, "source": name}) + "\n")
    return folder


def test_result_on_stdout_is_one_json_object(corpus, tmp_path, capsys):
    assert run(["dedup", str(corpus), str(tmp_path / "out"), "--workers", "1", "--json"]) == 0
    captured = capsys.readouterr()
    records = json.loads(captured.out)["statistics"]["records"]
    assert records == {"in": 120, "kept": 40, "removed": 80, "invalid": 0}
    assert "chance that a pair" in captured.err


def test_dry_run_writes_nothing_and_prints_the_curve(corpus, tmp_path, capsys):
    assert run(["dedup", str(corpus), str(tmp_path / "out"), "--dry-run", "--json", "--threshold", "0.8"]) == 0
    printed = json.loads(capsys.readouterr().out)
    recall = {point["similarity"]: point["recall"] for point in printed["recall_curve"]}
    assert recall[0.8] >= 0.99
    assert not (tmp_path / "out").exists()


def test_methods_and_priorities_are_repeatable(corpus, tmp_path, capsys):
    output = tmp_path / "out"
    arguments = ["--method", "fuzzy", "--method", "exact", "--source-priority", "b", "--source-priority", "a"]
    assert run(["dedup", str(corpus), str(output), "--workers", "1", *arguments]) == 0
    sources = {row["source"] for path in (output / "data").glob("*") for row in pq.read_table(path).to_pylist()}
    assert sources == {"b"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--threshold", "0"], "above 0"),
        (["--threshold", "1.5"], "at most 1"),
        (["--method", "fuzy"], "did you mean `fuzzy`"),
        (["--executor", "rai"], "did you mean `ray`"),
        (["--ray-address", "auto"], "add --executor ray"),
        (["--set", "treshold=0.8"], "did you mean `threshold`"),
    ],
)
def test_mistakes_have_a_hint(corpus, tmp_path, capsys, arguments, words):
    assert run(["dedup", str(corpus), str(tmp_path / "out"), *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_paths_that_cannot_be(corpus, tmp_path, capsys):
    assert run(["dedup", str(tmp_path / "rav"), str(tmp_path / "out")]) == 2
    assert "did you mean" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert run(["dedup", str(tmp_path / "empty"), str(tmp_path / "out")]) == 2
    assert run(["dedup", str(corpus), str(corpus / "inside")]) == 2
    assert run(["dedup", str(corpus), str(corpus)]) == 2


def test_invalid_records_are_listed_and_limited(corpus, tmp_path, capsys):
    with open(corpus / "a.jsonl", "ab") as out:
        out.write(b'{"id": "broken", "text": "no end\n{"text": 5}\n\xff\xfe\n{"text": null}\n')
    assert run(["dedup", str(corpus), str(tmp_path / "one"), "--workers", "1", "--json"]) == 0
    statistics = json.loads(capsys.readouterr().out)["statistics"]
    assert statistics["records"] == {"in": 124, "kept": 40, "removed": 80, "invalid": 4}
    lines = [json.loads(line) for path in (tmp_path / "one/invalid").glob("*") for line in path.open()]
    assert len(lines) == 4
    arguments = [str(corpus), str(tmp_path / "two"), "--workers", "1", "--max-invalid-share", "0.01"]
    assert run(["dedup", *arguments]) == 3
    assert (tmp_path / "two" / "manifest.json").is_file()


def start(corpus: Path, output: Path, workers: int, hash_seed: str = "0") -> subprocess.Popen:
    command = [sys.executable, "-m", "llmctl", "dedup", str(corpus), str(output), "--workers", str(workers), "-q"]
    command += ["--set", "read.block_bytes=4000"]
    return subprocess.Popen(
        command,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


@pytest.mark.slow
def test_killed_and_resumed_gives_the_same_bytes(corpus, tmp_path):
    whole = start(corpus, tmp_path / "whole", 1)
    assert whole.wait() == 0, whole.stderr.read()
    other = start(corpus, tmp_path / "other", 2, hash_seed="1")
    assert other.wait() == 0, other.stderr.read()
    manifest = (tmp_path / "whole" / "manifest.json").read_bytes()
    assert (tmp_path / "other" / "manifest.json").read_bytes() == manifest

    output, units, kills = tmp_path / "killed", tmp_path / "killed" / "_state" / "units", 0
    for wanted in (1, 3, 6, 12, 20, 30):
        process = start(corpus, output, 1 + kills % 2)
        while process.poll() is None and len(list(units.glob("*.json")) if units.is_dir() else []) < wanted:
            time.sleep(0.005)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills >= 3
    last = start(corpus, output, 1)
    assert last.wait() == 0, last.stderr.read()
    assert (output / "manifest.json").read_bytes() == manifest
    assert not (output / "_state").exists()


def test_interrupt_is_told_by_the_status(corpus, tmp_path):
    process = start(corpus, tmp_path / "out", 1)
    state = tmp_path / "out" / "_state" / "claim.json"
    while process.poll() is None and not state.is_file():
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 75, err
    assert b"Traceback" not in err
    again = start(corpus, tmp_path / "out", 1)
    assert again.wait() == 0

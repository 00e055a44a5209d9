"""`llmctl tokenize` as a user runs it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from llmctl.cli.app import run

TEXTS = [f"The quick brown fox number {n} jumps over the lazy dog, again and again. 敏捷的狐狸 {n}" for n in range(300)]


@pytest.fixture
def raw(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    for part in range(4):
        rows = [{"id": f"{part}-{n}", "text": text, "source": "web"} for n, text in enumerate(TEXTS)]
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def result(capsys):
    return json.loads(capsys.readouterr().out)


def test_json_and_a_second_run(raw, tmp_path, capsys):
    command = ["tokenize", str(raw), str(tmp_path / "out"), "--vocab-size", "300", "--workers", "1", "--json"]
    assert run(command) == 0
    first = result(capsys)
    assert first["kind"] == "tokens"
    assert first["statistics"]["records"] == {"in": 1200, "kept": 1200, "removed": 0, "invalid": 0}
    assert first["statistics"]["tokenizer"]["vocab_size"] == 300
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    assert run(command) == 0
    captured = capsys.readouterr()
    assert "up to date" in captured.err
    assert json.loads(captured.out) == first
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    assert run([*command[:-3], "--vocab-size", "301"]) == 2
    assert "vocab_size: 300 → 301" in capsys.readouterr().err


def test_dry_run_writes_nothing(raw, tmp_path, capsys):
    assert run(["tokenize", str(raw), str(tmp_path / "out"), "--dry-run", "--json"]) == 0
    assert result(capsys)["files"] == 4
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--vocab-size", "100"], "260"),
        (["--vocab-size", "50000"], "--vocab-size"),
        (["--tokenizer", "nowhere"], "does not exist"),
        (["--split", "gpt3"], "gpt2"),
        (["--vocabsize", "300"], "--vocab-size"),
        (["--eos-token", "x"], "--tokenizer"),
    ],
)
def test_mistakes_are_one_sentence_and_a_hint(raw, tmp_path, capsys, arguments, words):
    assert run(["tokenize", str(raw), str(tmp_path / "out"), "--workers", "1", *arguments]) == 2
    err = capsys.readouterr().err
    assert "error: " in err and "hint: " in err and words in err
    assert "Traceback" not in err


def test_output_inside_the_input_is_refused(raw, capsys):
    assert run(["tokenize", str(raw), str(raw / "out")]) == 2
    assert "inside the input" in capsys.readouterr().err


def test_too_many_invalid_records_give_status_3(tmp_path, capsys):
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "the dog and the dog"}\n' * 5 + "broken\n" * 5)
    command = ["tokenize", str(path), str(tmp_path / "out"), "--vocab-size", "262", "--workers", "1", "--json"]
    assert run(command) == 3
    printed = result(capsys)
    assert printed["statistics"]["records"] == {"in": 10, "kept": 5, "removed": 0, "invalid": 5}
    assert (tmp_path / "out" / "manifest.json").is_file()
    assert run([*command[:2], str(tmp_path / "out2"), *command[3:], "--max-invalid-share", "0.6"]) == 0


def test_an_own_output_is_a_tokenizer(raw, tmp_path, capsys):
    assert run(["tokenize", str(raw), str(tmp_path / "one"), "--vocab-size", "300", "--workers", "1"]) == 0
    command = ["tokenize", str(raw), str(tmp_path / "two"), "--tokenizer", str(tmp_path / "one"), "--workers", "1"]
    assert run(command) == 0
    for path in (tmp_path / "one" / "data").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / "data" / path.name).read_bytes()
    inputs = json.loads((tmp_path / "two" / "manifest.json").read_text())["inputs"]
    assert [entry["role"] for entry in inputs] == ["source", "tokenizer"]


@pytest.mark.faults
def test_kill_9_and_again_gives_the_same_bytes(raw, tmp_path):
    def command(output, workers):
        return [
            *(sys.executable, "-m", "llmctl", "tokenize", str(raw), str(tmp_path / output), "--vocab-size", "300"),
            *("--workers", workers, "--set", "read.block_bytes=5000", "--quiet"),
        ]

    subprocess.run(command("clean", "2"), check=True, capture_output=True)
    process = subprocess.Popen(command("killed", "1"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    units = tmp_path / "killed" / "_state" / "units"
    while process.poll() is None and len(list(units.glob("encode-*"))) < 2:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "manifest.json").exists()
    subprocess.run(command("killed", "1"), check=True, capture_output=True)
    assert (tmp_path / "clean" / "manifest.json").read_bytes() == (tmp_path / "killed" / "manifest.json").read_bytes()
    assert not [path for path in (tmp_path / "killed").rglob("*") if ".tmp-" in path.name]

"""`llmctl filter` as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmctl.cli.app import run

TEXT = (
    "The old town has a long history, and many of the houses that stand in it were built with local stone. A flood "
    "came in the spring, so the people had to leave, but most of them did return before winter to rebuild it. Nobody "
    "knows when the second bridge was finished. Maps from the seventeenth century do not show it at all."
)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    records = [{"id": str(n), "text": f"{n}. {TEXT}", "source": "town"} for n in range(20)]
    records.append({"id": "short", "text": "Nothing.", "source": "town"})
    (tmp_path / "raw").mkdir()
    path = tmp_path / "raw/town.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return tmp_path / "raw"


def test_says_which_policy_applies_and_what_it_kept(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["filter", str(raw), str(tmp_path / "out"), "--workers", "1"]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{tmp_path / 'out'}: 20 of 21 records kept, 1 removed, 0 invalid\n"
    assert "policy: preset general (the default" in printed.err
    assert "word_count" in printed.err
    assert "town" in printed.err


def test_json_is_one_object_on_stdout(raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(["filter", str(raw), str(out), "--workers", "1", "--preset", "gopher", "--preset", "c4", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["statistics"]["records"] == {"in": 21, "kept": 20, "removed": 1, "invalid": 0}
    assert "line_end_mark" in result["statistics"]["policy"]["*"]
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["statistics"] == result["statistics"]
    assert manifest["config"]["preset"] == ["gopher", "c4"]


def test_a_second_run_is_up_to_date(raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["filter", str(raw), str(tmp_path / "out"), "--workers", "1"]
    assert run(command) == 0
    capsys.readouterr()
    assert run(command) == 0
    assert "up to date" in capsys.readouterr().err
    assert run([*command, "--preset", "c4"]) == 2
    assert "another configuration" in capsys.readouterr().err
    assert run([*command, "--preset", "c4", "--overwrite"]) == 0


def test_too_many_invalid_records_end_with_status_3_after_all_is_written(raw: Path, tmp_path: Path) -> None:
    with open(raw / "town.jsonl", "a") as handle:
        handle.write('{"text": 5}\n' * 5)
    assert run(["filter", str(raw), str(tmp_path / "out"), "--workers", "1"]) == 3
    assert json.loads((tmp_path / "out/manifest.json").read_text())["statistics"]["records"]["invalid"] == 5
    assert run(["filter", str(raw), str(tmp_path / "lenient"), "--workers", "1", "--max-invalid-share", "0.5"]) == 0


@pytest.mark.parametrize(
    ("arguments", "problem", "hint"),
    [
        (["--preset", "fine-web"], "unknown preset `fine-web`", "did you mean `fineweb`?"),
        (["--set", "rules.sentence.min=2"], "unknown filter rule `sentence`", "did you mean `sentences`?"),
        (["--set", "rules.sentences.mni=2"], "unknown configuration key `rules.sentences.mni`", "sentences.min"),
        (["--set", "reads.text_field=body"], "unknown configuration key `reads`", "did you mean `read`?"),
        (["--presets", "c4"], "no such option", "--preset"),
    ],
)
def test_mistakes_are_one_sentence_and_a_hint(
    raw: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    problem: str,
    hint: str,
) -> None:
    assert run(["filter", str(raw), str(tmp_path / "out"), *arguments]) == 2
    printed = capsys.readouterr().err
    assert problem in printed
    assert hint in printed
    assert "Traceback" not in printed
    assert not (tmp_path / "out").exists()


def test_the_output_must_not_be_the_input(raw: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (raw / "town.jsonl").read_bytes()
    assert run(["filter", str(raw), str(raw)]) == 2
    assert run(["filter", str(raw), str(raw / "out")]) == 2
    assert run(["filter", str(raw / "missing"), str(raw.parent / "out")]) == 2
    assert (raw / "town.jsonl").read_bytes() == before
    assert sorted(path.name for path in raw.iterdir()) == ["town.jsonl"]


def test_a_policy_file_by_source_and_the_resolved_configuration(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("preset: [gopher]\nsources:\n  town: {word_count: {min: 1}, stop_words: off}\n")
    assert run(["filter", str(raw), str(tmp_path / "out"), "--config", str(policy), "--workers", "1"]) == 0
    assert "policy of town" in capsys.readouterr().err
    resolved = tmp_path / "out/config.yaml"
    assert run(["filter", str(raw), str(tmp_path / "again"), "--config", str(resolved), "--workers", "1"]) == 0
    assert (tmp_path / "out/manifest.json").read_bytes() == (tmp_path / "again/manifest.json").read_bytes()
    assert json.loads((tmp_path / "out/manifest.json").read_text())["statistics"]["records"]["kept"] == 21


def test_a_dry_run_tells_what_would_be_done(raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["filter", str(raw), str(tmp_path / "out"), "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["files"], plan["blocks"], plan["dry_run"]) == (1, 1, True)
    assert "word_count" in plan["policy"]["*"]
    assert not (tmp_path / "out").exists()


def test_help_loads_quickly_and_names_the_presets_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["filter", "--help"]) == 0
    assert "--preset" in capsys.readouterr().out


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "llmctl", "filter", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))


def test_ctrl_c_ends_with_status_75_and_the_same_command_goes_on(raw: Path, tmp_path: Path) -> None:
    line = (raw / "town.jsonl").read_text()
    (raw / "town.jsonl").write_text(line * 40)
    arguments = [str(raw), str(tmp_path / "out"), "--workers", "1", "--set", "read.block_bytes=1100"]
    process = start(*arguments)
    units = tmp_path / "out/_state/units"
    while process.poll() is None and not (units.is_dir() and len(list(units.iterdir())) >= 2):
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, talk = process.communicate(timeout=60)
    assert process.returncode == 75, talk
    assert "the same command goes on" in talk
    assert run(["filter", *arguments]) == 0


def test_a_reader_of_stdout_that_leaves_is_no_failure(raw: Path, tmp_path: Path) -> None:
    process = start(str(raw), str(tmp_path / "out"), "--workers", "1")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(60) == 0
    assert (tmp_path / "out/manifest.json").is_file()


def test_explain_shows_why_a_document_went_or_stayed(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert run(["filter", str(raw), out, "--workers", "1"]) == 0
    capsys.readouterr()
    assert run(["filter", "--explain", "short", out]) == 0
    printed = capsys.readouterr().out
    assert "short (town, language unknown): removed" in printed
    assert "word_count" in printed
    assert "Nothing." in printed
    assert run(["filter", "--explain", "3", out, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["documents"][0]["fate"] == "kept"
    assert shown["documents"][0]["text"] == f"3. {TEXT}"
    assert shown["documents"][0]["reasons"] == []
    assert shown["statistics"][0]["num_words"] == len(TEXT.split()) + 1
    assert run(["filter", "--explain", "nobody", out]) == 2
    assert "has no document `nobody`" in capsys.readouterr().err


def test_the_output_must_be_given(raw: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["filter", str(raw)]) == 2
    assert "missing argument 'OUTPUT'" in capsys.readouterr().err


def test_scores_of_an_earlier_run_are_named(raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["filter", str(raw), str(tmp_path / "first"), "--workers", "1"]) == 0
    arguments = ["filter", str(raw), str(tmp_path / "second"), "--workers", "1", "--set", "rules.word_count.min=1"]
    assert run([*arguments, "--reuse-scores", str(tmp_path / "first")]) == 0
    assert "statistics of 1 of 1 blocks taken from" in capsys.readouterr().err

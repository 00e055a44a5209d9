"""The command line as a user meets it: help, mistakes, exit statuses, stdout for data and stderr for talk."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from llmctl.cli.app import COMMANDS, run


def llmctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as its own process."""
    return subprocess.run([sys.executable, "-m", "llmctl", *arguments], capture_output=True, text=True, check=False)


def test_help_lists_every_command() -> None:
    done = llmctl("--help")
    assert done.returncode == 0
    for name in COMMANDS:
        assert name in done.stdout
    assert done.stderr == ""


def test_version() -> None:
    done = llmctl("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("llmctl ")


@pytest.mark.parametrize(
    ("arguments", "problem", "hint"),
    [
        (["filtr"], "error: no such command 'filtr'", "hint: did you mean `filter`?"),
        (
            ["dedup", "--treshold", "0.9", "a", "b"],
            "error: no such option: --treshold",
            "hint: did you mean `--threshold`?",
        ),
        (["dedup", "--threshold", "high", "a", "b"], "error: invalid value for '--threshold'", "hint:"),
        (["pretrain", "--tensor-model-parallel-size", "8"], "error: no such option", "hint: did you mean `--tp`?"),
        (["filter"], "error: missing argument 'SOURCE'", "hint: `llmctl filter --help` shows what it takes"),
        (["filter", "no/such/folder", "out"], "error: no/such/folder does not exist", "hint: check the path"),
        (
            ["dedup", "--set", "thresold=1", "a", "b"],
            "error: unknown configuration key",
            "hint: did you mean `threshold`?",
        ),
    ],
)
def test_a_mistake_gets_a_sentence_a_hint_and_status_2(arguments: list[str], problem: str, hint: str) -> None:
    done = llmctl(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert lines[0].startswith(problem)
    assert any(line.startswith(hint) for line in lines[1:])
    assert "Traceback" not in done.stderr


def test_a_stage_without_blocks_is_refused_on_ray(tmp_path) -> None:
    done = llmctl("pretrain", str(tmp_path), str(tmp_path / "out"), "--executor", "ray")
    assert done.returncode == 2
    assert "`llmctl pretrain` does not run on Ray" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_mistake_with_json_is_json_on_stdout() -> None:
    done = llmctl("filter", "no/such/folder", "out", "--json")
    assert done.returncode == 2
    failure = json.loads(done.stdout)["error"]
    assert failure["exit_status"] == 2
    assert "does not exist" in failure["problem"]


def test_print_config_gives_yaml_that_is_taken_back(tmp_path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["dedup", "a", "b", "--threshold", "0.8", "--print-config"]) == 0
    text = capfd.readouterr().out
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert run(["dedup", "a", "b", "--config", str(file), "--print-config"]) == 0
    assert capfd.readouterr().out == text


def test_shell_completion_is_offered() -> None:
    done = llmctl("--help")
    assert "--install-completion" in done.stdout

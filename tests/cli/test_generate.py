"""`llmctl generate` as a user runs it: one prompt, a file, stdin, mistakes."""

from __future__ import annotations

import importlib.util
import io
import json
from pathlib import Path

import pytest

from llmctl.cli.app import run

_path = Path(__file__).parents[1] / "unit" / "training" / "conversations" / "tokenizers_for_tests.py"
_spec = importlib.util.spec_from_file_location("tokenizers_for_tests", _path)
made = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(made)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return made.tiny_model(tmp_path_factory.mktemp("models") / "base")


def command(*parts: object) -> list[str]:
    return [str(part) for part in parts]


def samples(capsys) -> list[dict]:
    return json.loads(capsys.readouterr().out)["samples"]


def test_one_prompt_is_answered_the_same_for_the_same_seed(base, capsys) -> None:
    arguments = command("generate", base, "--prompt", "hello", "--max-new-tokens", 6, "--json")
    assert run(arguments) == 0
    first = samples(capsys)
    assert first[0]["prompt"] == "hello" and 1 <= first[0]["tokens"] <= 6
    assert run(arguments) == 0
    assert samples(capsys) == first
    assert run([*arguments, "--seed", "1"]) == 0
    assert samples(capsys) != first


def test_file_of_prompts_of_different_length(tmp_path, base, capsys) -> None:
    records = [{"prompt": "hello"}, {"messages": [{"role": "user", "content": "a longer question " * 4}]}, {"x": 1}]
    source = made.write_lines(tmp_path / "prompts.jsonl", records)
    out = tmp_path / "answers.jsonl"
    arguments = command(
        "generate",
        base,
        "--prompts",
        source,
        "--output",
        out,
        "--max-new-tokens",
        5,
        "--num-samples",
        2,
        "--chat",
        "on",
    )
    assert run(arguments) == 0
    printed = capsys.readouterr()
    assert "4 answers" in printed.out and "line 3" in printed.err
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["prompt"][:5] for row in rows] == ["hello", "hello", "a lon", "a lon"]
    assert all(row["tokens"] <= 5 and row["logprob"] < 0 for row in rows)


def test_prompt_on_stdin(base, capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hello"))
    assert run(command("generate", base, "--max-new-tokens", 3, "--json")) == 0
    assert samples(capsys)[0]["prompt"] == "hello"


def test_chat_on_a_terminal(base, capsys, monkeypatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal("hello\n/new\nmore\n"))
    monkeypatch.setattr("builtins.input", lambda prompt: _next_line())
    lines = iter(["hello", "more", "/new", "again"])

    def _next_line() -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    assert run(command("generate", base, "--max-new-tokens", 3, "--chat", "on")) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 3


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        (["--prompt", "a", "--prompts", "b"], "both given"),
        (["--prompt", ""], "empty"),
        (["--prompts", "missing.jsonl"], "does not exist"),
        (["--prompt", "word " * 300], "the model reads 256"),
        (["--prompt", "a", "--top-p", "2"], "top"),
    ],
)
def test_mistakes_are_told(base, capsys, extra: list[str], problem: str) -> None:
    status = run(command("generate", base, *extra))
    talk = capsys.readouterr().err
    assert status == 2 and problem in talk and "Traceback" not in talk


def test_missing_model(tmp_path, capsys) -> None:
    assert run(command("generate", tmp_path / "nothing", "--prompt", "a")) == 2
    assert "does not exist" in capsys.readouterr().err

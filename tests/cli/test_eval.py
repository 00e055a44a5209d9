"""`llmctl eval` as a user runs it."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path

import pytest
import torch

from llmctl.cli.app import run
from llmctl.model.huggingface import load_model

_path = Path(__file__).parents[1] / "unit" / "training" / "conversations" / "tokenizers_for_tests.py"
_spec = importlib.util.spec_from_file_location("tokenizers_for_tests", _path)
made = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(made)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    torch.set_num_threads(1)
    return made.tiny_model(tmp_path_factory.mktemp("models") / "base")


def test_perplexity_is_weighted_by_tokens_and_counts_each_once(tmp_path, base, capsys) -> None:
    from transformers import AutoTokenizer

    texts = ["hello world " * 30, "the quick brown fox", "你好，世界。"]
    data = made.write_lines(tmp_path / "texts.jsonl", [{"text": text} for text in texts])
    assert run(["eval", str(base), "--text", str(data), "--seq-len", "16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    model, tokenizer = load_model(base).eval(), AutoTokenizer.from_pretrained(base)
    total, count = 0.0, 0
    for text in texts:
        ids = tokenizer(text)["input_ids"]
        for position in range(1, len(ids)):
            start = (position - 1) // 16 * 16
            with torch.no_grad():
                logits = model.logits(model(torch.tensor([ids[start:position]])))[0, -1]
            total -= float(logits.log_softmax(-1)[ids[position]])
            count += 1
    assert found["tokens"] == count and found["documents"] == 3
    assert found["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-4)


def test_answers_are_counted_checked_and_judged(tmp_path, base, capsys) -> None:
    records = [{"question": f"hello {number}", "answer": f"so #### {number}"} for number in range(3)]
    prompts = made.write_lines(tmp_path / "prompts.jsonl", records)
    others = made.write_lines(tmp_path / "others.jsonl", [{"response": ""} for _ in records])
    judge = f"{sys.executable} -c 'for line in open(0): print(1)'"
    given = ["--max-new-tokens", "6", "--num-samples", "3", "--chat", "on", "--json"]
    more = ["--check", "number", "--pass-at", "2", "--against", str(others), "--judge", judge]
    assert run(["eval", str(base), "--prompts", str(prompts), *given, *more]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["prompts"] == 3 and found["answers"] == 9 and 0 < found["distinct_2"] <= 1
    assert 0 <= found["pass_at_1"] <= found["pass_at_2"] <= 1
    assert found["win_rate"] == 0.5 and found["first_place_wins"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "nothing to measure"),
        (["--prompts", "PROMPTS", "--pass-at", "2"], "pass@2 of 1"),
        (["--prompts", "PROMPTS", "--check", "number"], "have no `answer`"),
        (["--prompts", "PROMPTS", "--against", "PROMPTS"], "needs a judge"),
        (["--text", "missing"], "missing"),
    ],
)
def test_mistakes_are_told(tmp_path, base, capsys, arguments: list[str], problem: str) -> None:
    prompts = made.write_lines(tmp_path / "prompts.jsonl", [{"prompt": "hello"}])
    given = [str(prompts) if part == "PROMPTS" else part for part in arguments]
    assert run(["eval", str(base), *given]) == 2
    talk = capsys.readouterr().err
    assert problem in talk and "Traceback" not in talk

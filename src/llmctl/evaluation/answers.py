"""Measures of a model's answers to prompts: diversity, right answers, and wins against other answers."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmctl import console
from llmctl.artifacts.documents import InvalidRecord
from llmctl.artifacts.inputs import open_input
from llmctl.errors import UserError
from llmctl.evaluation.config import EvalConfig
from llmctl.evaluation.measures import is_right, pass_at_k, win_rate
from llmctl.training.conversations.formats import read_prompt
from llmctl.training.conversations.reading import read_records
from llmctl.training.conversations.records import BadRecord, Conversation
from llmctl.training.diversity import distinct
from llmctl.training.respond import Responder

JUDGE_TIMEOUT_S = 3600.0


def measure_answers(responder: Responder, path: Path, config: EvalConfig, against: Path | None) -> dict[str, Any]:
    """Answer prompts and measure the answers; see `EvalConfig`.

    Args:
        against: answers of another model to the same prompts, as `llmctl generate --prompts … --output` writes them.

    Raises:
        UserError: no prompt, no right answer to compare with, or a judge that does not judge.
    """
    prompts, records = _read(path, config.max_prompts)
    if config.check != "none":
        lacking = sum(not isinstance(record.get(config.answer_field), str | int | float) for record in records)
        if lacking:
            raise UserError(
                f"{lacking:,} of {len(records):,} records have no `{config.answer_field}`",
                "name the field with --answer-field",
            )
    others = _others(against, len(prompts), config) if against is not None else []
    with console.progress("answers", None, "tokens") as shown:
        answers = responder.answer(
            [responder.encode(prompt) for prompt in prompts], on_token=lambda row, token: shown.advance()
        )
    texts = [responder.text(answer) for answer in answers]
    each = config.num_samples
    found: dict[str, Any] = {
        "prompts": len(prompts),
        "answers": len(answers),
        "stopped": sum(answer.stopped for answer in answers) / len(answers),
        "response_tokens": sum(len(answer.ids) for answer in answers) / len(answers),
        **{f"distinct_{size}": distinct([answer.ids for answer in answers], size) for size in (1, 2, 3, 4)},
    }
    if config.check != "none":
        correct = [
            sum(
                is_right(text, str(record[config.answer_field]), config.check)
                for text in texts[number * each : (number + 1) * each]
            )
            for number, record in enumerate(records)
        ]
        for k in sorted({1, config.pass_at}):
            found[f"pass_at_{k}"] = sum(pass_at_k(each, count, k) for count in correct) / len(correct)
    if others:
        asked = [prompt.messages[-1].content for prompt in prompts]
        found |= _judged(asked, texts[::each], others, config.judge)
    return found


def _read(path: Path, most: int) -> tuple[list[Conversation], list[dict[str, Any]]]:
    prompts: list[Conversation] = []
    records: list[dict[str, Any]] = []
    left_out = 0
    for raw in read_records(open_input(path, role="prompts", kinds=("conversations",))):
        if most and len(prompts) == most:
            break
        if isinstance(raw, InvalidRecord):
            left_out += 1
            continue
        value = raw.value
        if isinstance(value, dict) and "question" in value and "prompt" not in value:
            value = {**value, "prompt": value["question"]}
        try:
            prompts.append(read_prompt(value))
            records.append(value if isinstance(value, dict) else {})
        except BadRecord:
            left_out += 1
    if left_out:
        console.warning(f"{left_out:,} records of {path} hold no prompt: left out")
    if not prompts:
        raise UserError(
            f"{path} holds no prompt", "give records with `prompt`, `question`, `messages` or `instruction`"
        )
    return prompts, records


def _others(path: Path, wanted: int, config: EvalConfig) -> list[str]:
    if not config.judge:
        raise UserError("--against needs a judge", 'give --judge COMMAND, such as --judge "python judge.py"')
    records = [raw for raw in read_records(open_input(path, role="against")) if not isinstance(raw, InvalidRecord)]
    found = [raw.value.get("response") for raw in records if isinstance(raw.value, dict)]
    if len(found) != wanted or not all(isinstance(text, str) for text in found):
        raise UserError(
            f"{path} holds {len(found):,} answers to {wanted:,} prompts",
            "give what `llmctl generate --prompts … --output` writes for the same prompts",
        )
    return [str(text) for text in found]


def _judged(prompts: Sequence[str], ours: Sequence[str], others: Sequence[str], judge: str) -> dict[str, Any]:
    """Ask in both orders: judges prefer a place."""
    forward = _verdicts(judge, prompts, ours, others)
    backward = _verdicts(judge, prompts, others, ours)
    longer = sum(len(one) > len(two) for one, two in zip(ours, others, strict=True)) / len(ours)
    return {**win_rate(forward, backward), "longer": longer}


def _verdicts(judge: str, prompts: Sequence[str], first: Sequence[str], second: Sequence[str]) -> list[int]:
    lines = "".join(
        json.dumps({"prompt": prompt, "first": one, "second": two}, ensure_ascii=False) + "\n"
        for prompt, one, two in zip(prompts, first, second, strict=True)
    )
    try:
        done = subprocess.run(
            shlex.split(judge), input=lines.encode(), capture_output=True, timeout=JUDGE_TIMEOUT_S, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as failure:
        raise UserError(f"the judge cannot be run: {failure}", "try the command by hand") from None
    words = done.stdout.decode("utf-8", "replace").split()
    if done.returncode or len(words) != len(prompts) or not set(words) <= {"0", "1", "2"}:
        told = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"{len(words):,} words printed"]
        raise UserError(
            f"the judge ended with status {done.returncode} on {len(prompts):,} pairs: {told[0]}",
            "it prints 1, 2 or 0 for each line it reads",
        )
    return [int(word) for word in words]

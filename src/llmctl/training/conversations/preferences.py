"""Turn records of comparisons into one shape: pairs, conversational pairs, dialogue text, ranked lists, votes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from llmctl.training.conversations.formats import (
    kind_of,
    prompt_turns,
    read_text,
    read_turn,
    read_turns,
    strip_end_marker,
)
from llmctl.training.conversations.records import ASSISTANT, SYSTEM, USER, BadRecord, Comparison, Message

_DIALOGUE_TURN = re.compile(r"\n\n(Human|Assistant): ?")
_ROLE_OF_DIALOGUE = {"Human": USER, "Assistant": ASSISTANT}


def read_comparison(record: Any) -> Comparison:
    """Return the comparison that a record holds.

    Raises:
        BadRecord: no known shape, fewer than two answers, or an answer without text.
    """
    if not isinstance(record, Mapping):
        raise BadRecord(f"a {kind_of(record)}, not an object with fields")
    if record.get("chosen") is not None or record.get("rejected") is not None:
        prompt, answers, scores = _pair(record)
    elif record.get("responses") is not None or record.get("answers") is not None:
        prompt, answers, scores = _ranked(record)
    elif "response1" in record or "response_a" in record:
        prompt, answers, scores = _votes(record)
    else:
        raise BadRecord(f"no comparison in it: its fields are {', '.join(map(str, record)) or 'none'}")
    return _checked(_with_system(prompt, record), answers, scores)


def _pair(record: Mapping[str, Any]) -> tuple[list[Message], list[str], list[float]]:
    for key in ("chosen", "rejected"):
        if record.get(key) is None:
            raise BadRecord(f"no `{key}` answer")
    prompt = _prompt(record)
    chosen, rejected = (_answer_turns(record[key], key) for key in ("chosen", "rejected"))
    if prompt is None:
        # The prompt is what both dialogues have in common; each must go on with exactly one answer.
        shared = 0
        while shared < min(len(chosen), len(rejected)) - 1 and chosen[shared] == rejected[shared]:
            shared += 1
        prompt, chosen, rejected = chosen[:shared], chosen[shared:], rejected[shared:]
        if not prompt:
            raise BadRecord("the two dialogues have no prompt in common")
    for name, turns in (("chosen", chosen), ("rejected", rejected)):
        if len(turns) != 1 or turns[0].role != ASSISTANT:
            raise BadRecord(f"`{name}` is not one answer of the assistant after the common prompt")
    return prompt, [chosen[0].content, rejected[0].content], [1.0, 0.0]


def _answer_turns(value: Any, key: str) -> list[Message]:
    if isinstance(value, str):
        return _dialogue(value) or [Message(ASSISTANT, value)]
    if isinstance(value, Mapping):
        return [read_turn(value, 1)]
    if isinstance(value, Sequence):
        return read_turns(value, key)
    raise BadRecord(f"`{key}` is a {kind_of(value)}, not text")


def _dialogue(text: str) -> list[Message]:
    """Read "\\n\\nHuman: … \\n\\nAssistant: …" text; an empty list where it is no such dialogue."""
    if not text.startswith("\n\nHuman:"):
        return []
    parts = _DIALOGUE_TURN.split(text)[1:]
    return [
        Message(_ROLE_OF_DIALOGUE[name], content.strip()) for name, content in zip(parts[::2], parts[1::2], strict=True)
    ]


def _prompt(record: Mapping[str, Any]) -> list[Message] | None:
    if record.get("prompt") is not None:
        value = record["prompt"]
        return (_dialogue(value) if isinstance(value, str) else []) or prompt_turns(value)
    for key in ("messages", "conversations"):
        if record.get(key) is not None:
            return read_turns(record[key], key)
    for key in ("instruction", "question", "query"):
        if record.get(key) is not None:
            text = read_text(record[key], f"`{key}`")
            extra = record.get("input")
            return [Message(USER, f"{text}\n{extra}" if isinstance(extra, str) and extra else text)]
    return None


def _required_prompt(record: Mapping[str, Any]) -> list[Message]:
    prompt = _prompt(record)
    if prompt is None:
        raise BadRecord(f"no prompt in it: its fields are {', '.join(map(str, record))}")
    return prompt


def _ranked(record: Mapping[str, Any]) -> tuple[list[Message], list[str], list[float]]:
    entries = record.get("responses", record.get("answers"))
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise BadRecord(f"`responses` is a {kind_of(entries)}, not a list")
    scores = record.get("scores")
    ranks = record.get("ranks", record.get("ranking"))
    if scores is None and isinstance(ranks, Sequence) and all(_is_number(rank) for rank in ranks):
        scores = [-rank for rank in ranks]  # rank 1 is the best
    answers = []
    found = []
    for position, entry in enumerate(entries, 1):
        if isinstance(entry, Mapping):
            answers.append(read_text(entry.get("text", entry.get("content", entry.get("value"))), f"answer {position}"))
            if _is_number(entry.get("score")):
                found.append(float(entry["score"]))
            elif _is_number(entry.get("rank")):
                found.append(-float(entry["rank"]))
        else:
            answers.append(read_text(entry, f"answer {position}"))
    scores = scores if scores is not None else found
    if not isinstance(scores, Sequence) or len(scores) != len(answers):
        raise BadRecord(f"not a score or rank for each answer: {len(answers)} answers")
    if not all(_is_number(score) for score in scores):
        raise BadRecord("a score is not a number")
    return _required_prompt(record), answers, [float(score) for score in scores]


def _votes(record: Mapping[str, Any]) -> tuple[list[Message], list[str], list[float]]:
    keys = ("response1", "response2") if "response1" in record else ("response_a", "response_b")
    answers = [read_text(record.get(key), f"`{key}`") for key in keys]
    votes = Counter(
        _vote(value)
        for key, value in sorted(record.items())
        if key in ("label", "winner", "preference") or str(key).startswith("annotator")
    )
    if not votes:
        raise BadRecord("no judgement: `label`, `winner` or `annotator…` is needed")
    # A tie vote (0) is an opinion for neither.
    return _required_prompt(record), answers, [float(votes[1] > votes[2]), float(votes[2] > votes[1])]


def _vote(value: Any) -> int:
    named = {
        "1": 1,
        "2": 2,
        "0": 0,
        "a": 1,
        "b": 2,
        "tie": 0,
        "model_a": 1,
        "model_b": 2,
        "response1": 1,
        "response2": 2,
    }
    vote = named.get(str(value).lower())
    if vote is None or isinstance(value, bool):
        raise BadRecord(f"a judgement is none of 0 (tie), 1, 2: {value!r}")
    return vote


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def _with_system(prompt: list[Message], record: Mapping[str, Any]) -> list[Message]:
    system = record.get("system")
    if isinstance(system, str) and system and prompt[0].role != SYSTEM:
        return [Message(SYSTEM, system), *prompt]
    return prompt


def _checked(prompt: list[Message], answers: list[str], scores: list[float]) -> Comparison:
    if not any(turn.role == USER and turn.content.strip() for turn in prompt):
        raise BadRecord("the prompt is empty")
    if prompt[-1].role == ASSISTANT:
        raise BadRecord("the prompt ends with a turn of the assistant")
    if len(answers) < 2:
        raise BadRecord("fewer than two answers")
    notes = []
    mended = []
    for answer in answers:
        text, found = strip_end_marker(answer)
        if found:
            notes.append("end marker written as text removed")
        if not text.strip():
            raise BadRecord("an answer is empty")
        mended.append(text)
    if len(set(mended)) == 1 and len(set(scores)) > 1:
        raise BadRecord("the answers are the same text")
    return Comparison(tuple(prompt), tuple(mended), tuple(scores), tuple(dict.fromkeys(notes)))

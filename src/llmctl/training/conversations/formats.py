"""Turn records of the shapes in the wild into conversations: messages, ShareGPT, alpaca, prompt and completion.

A record that cannot be used raises `BadRecord` with a sentence; what is mended on the way is noted and counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llmctl.training.conversations.records import (
    ASSISTANT,
    ROLES,
    SYSTEM,
    TOOL,
    USER,
    BadRecord,
    Conversation,
    Message,
    UnwantedRecord,
)

ROLE_NAMES = {
    "human": USER,
    "user": USER,
    "prompter": USER,
    "gpt": ASSISTANT,
    "assistant": ASSISTANT,
    "bot": ASSISTANT,
    "model": ASSISTANT,
    "chatgpt": ASSISTANT,
    "bing": ASSISTANT,
    "bard": ASSISTANT,
    "function_call": ASSISTANT,
    "system": SYSTEM,
    "developer": SYSTEM,
    "observation": TOOL,
    "tool": TOOL,
    "function": TOOL,
    "ipython": TOOL,
}
PROMPT_KEYS = ("prompt", "question", "query", "input")
ANSWER_KEYS = ("completion", "response", "answer", "output", "target")
COMPARISON_KEYS = ("chosen", "rejected", "responses", "response1", "response_1", "response_a")
# Written into answers as text by people whose trainer did not add the end of turn by itself (T0, GPT-3 files).
END_MARKERS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "</s>", "<eos>", "<|end|>")


def read_conversations(record: Any) -> list[Conversation]:
    """Return the conversations of one record (several only where the record lists instances).

    Raises:
        BadRecord: no known shape, or no answer to learn from.
    """
    if not isinstance(record, Mapping):
        raise BadRecord(f"a {kind_of(record)}, not an object with fields")
    if any(record.get(key) is not None for key in COMPARISON_KEYS):
        raise BadRecord("holds a comparison, not a conversation (`llmctl rlhf reward` learns from it)")
    if record.get("label") is False:
        raise UnwantedRecord("label is false")
    if record.get("messages") is not None:
        return [_finished(read_turns(record["messages"], "messages"), record)]
    for key in ("conversations", "conversation", "dialog"):
        if record.get(key) is not None:
            return [_finished(read_turns(record[key], key), record)]
    if record.get("instruction") is not None:
        return _alpaca(record)
    return [_prompt_completion(record)]


def read_prompt(record: Any) -> Conversation:
    """Return the turns of a record up to where the assistant should answer: for rollouts and generation.

    An answer at the end, if there is one, is left off.

    Raises:
        BadRecord: no known shape, or no prompt in it.
    """
    if isinstance(record, str):
        return _checked_prompt([Message(USER, record)], {})
    if not isinstance(record, Mapping):
        raise BadRecord(f"a {kind_of(record)}, not an object with fields")
    for key in ("messages", "conversations", "conversation", "dialog"):
        if record.get(key) is not None:
            return _checked_prompt(read_turns(record[key], key), record)
    if record.get("instruction") is not None:
        return _checked_prompt(_instruction_turns(record), record)
    prompt = next((record[key] for key in (*PROMPT_KEYS, "text") if record.get(key) is not None), None)
    if prompt is None:
        raise BadRecord(f"no prompt in it: its fields are {', '.join(map(str, record)) or 'none'}")
    return _checked_prompt(prompt_turns(prompt), record)


def read_turns(value: Any, key: str) -> list[Message]:
    """Read a list of turns with ``role``/``content`` or ``from``/``value``.

    Raises:
        BadRecord: not such a list.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise BadRecord(f"`{key}` is text, not a list of turns") from None
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise BadRecord(f"`{key}` is a {kind_of(value)}, not a list of turns")
    if not value:
        raise BadRecord(f"`{key}` is empty")
    return [read_turn(turn, position) for position, turn in enumerate(value, 1)]


def read_turn(turn: Any, position: int) -> Message:
    """Read one turn.

    Raises:
        BadRecord: no role that is known, or no text.
    """
    if not isinstance(turn, Mapping):
        raise BadRecord(f"a turn is not an object: turn {position} is a {kind_of(turn)}")
    name = turn.get("role", turn.get("from"))
    role = ROLE_NAMES.get(name.strip().lower()) if isinstance(name, str) else None
    if role is None:
        raise BadRecord(f"a turn has an unknown role: turn {position} has {name!r}")
    content = turn.get("content", turn.get("value"))
    if content is None and turn.get("tool_calls"):
        content = "\n".join(_tool_call(call) for call in turn["tool_calls"])
    elif name == "function_call" and isinstance(content, str):
        content = f"<tool_call>\n{content}\n</tool_call>"
    return Message(role, read_text(content, f"turn {position}"))


def _tool_call(call: Any) -> str:
    function = call.get("function", call) if isinstance(call, Mapping) else call
    return f"<tool_call>\n{json.dumps(function, ensure_ascii=False)}\n</tool_call>"


def read_text(value: Any, what: str) -> str:
    """Return a text, or the text parts of a multi-part content.

    Raises:
        BadRecord: something else, such as a boolean or an image.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and value and all(isinstance(part, Mapping) for part in value):
        kinds = {str(part.get("type")) for part in value}
        if kinds == {"text"} and all(isinstance(part.get("text"), str) for part in value):
            return "".join(part["text"] for part in value)
        raise BadRecord(
            f"a content has parts that are not text: {what} has {', '.join(sorted(kinds - {'text'})) or 'broken ones'}"
        )
    raise BadRecord(f"a field is not text: {what} is a {kind_of(value)}")


def prompt_turns(value: Any) -> list[Message]:
    """Return a prompt given as text (one user turn) or as turns."""
    if isinstance(value, str):
        return [Message(USER, value)]
    return read_turns(value, "prompt")


def _instruction_turns(record: Mapping[str, Any]) -> list[Message]:
    turns = []
    for position, pair in enumerate(record.get("history") or (), 1):
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise BadRecord(f"entry {position} of `history` is not a question and an answer")
        turns += [Message(USER, read_text(pair[0], "history")), Message(ASSISTANT, read_text(pair[1], "history"))]
    text = read_text(record["instruction"], "`instruction`")
    extra = record.get("input")
    if extra not in (None, ""):
        extra = read_text(extra, "`input`")
        text = f"{text}\n{extra}" if text else extra
    return [*turns, Message(USER, text)]


def _alpaca(record: Mapping[str, Any]) -> list[Conversation]:
    instances = record.get("instances")
    if isinstance(instances, Sequence) and not isinstance(instances, str) and instances:
        if not all(isinstance(instance, Mapping) for instance in instances):
            raise BadRecord("`instances` is not a list of objects")
        return [single for instance in instances for single in _alpaca({**record, **instance, "instances": None})]
    answer = _answer(record)
    return [_finished([*_instruction_turns(record), Message(ASSISTANT, answer)], record)]


def _answer(record: Mapping[str, Any]) -> str:
    key = next((key for key in ANSWER_KEYS if record.get(key) is not None), None)
    if key is None:
        raise BadRecord(f"no answer in it: its fields are {', '.join(map(str, record))}")
    return read_text(record[key], f"`{key}`")


def _prompt_completion(record: Mapping[str, Any]) -> Conversation:
    prompt_key = next((key for key in PROMPT_KEYS if record.get(key) is not None), None)
    answer_key = next((key for key in ANSWER_KEYS if record.get(key) is not None and key != prompt_key), None)
    if prompt_key is None or answer_key is None:
        raise BadRecord(
            f"no conversation and no prompt with an answer: its fields are {', '.join(map(str, record)) or 'none'}"
        )
    turns = prompt_turns(record[prompt_key])
    answer = record[answer_key]
    if isinstance(answer, Sequence) and not isinstance(answer, str):
        return _finished([*turns, *read_turns(answer, answer_key)], record)
    return _finished([*turns, Message(ASSISTANT, read_text(answer, f"`{answer_key}`"))], record)


def _with_system(turns: list[Message], record: Mapping[str, Any]) -> list[Message]:
    system = record.get("system")
    if system in (None, "") or any(turn.role == SYSTEM for turn in turns):
        return turns
    return [Message(SYSTEM, read_text(system, "`system`")), *turns]


def _tools(record: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    tools = record.get("tools")
    if tools in (None, "", []):
        return ()
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError:
            raise BadRecord("`tools` is not JSON") from None
    if isinstance(tools, Mapping):
        tools = [tools]
    if not isinstance(tools, Sequence) or not all(isinstance(tool, Mapping) for tool in tools):
        raise BadRecord("`tools` is not a list of functions")
    return tuple(dict(tool) for tool in tools)


def _finished(turns: list[Message], record: Mapping[str, Any]) -> Conversation:
    """Check a conversation that is to be learned from, and mend what can be mended without guessing."""
    notes = []
    while turns and turns[-1].role != ASSISTANT:
        turns = turns[:-1]
        notes.append("turns after the last answer left off")
    if not turns:
        raise BadRecord("no turn of the assistant")
    mended = []
    for turn in _with_system(turns, record):
        content = turn.content
        if turn.role == ASSISTANT:
            content, found = strip_end_marker(content)
            if found:
                notes.append("end marker written as text removed")
            if not content.strip():
                raise BadRecord("an answer is empty")
        mended.append(Message(turn.role, content))
    if all(turn.role == ASSISTANT for turn in mended):
        raise BadRecord("no turn of the user")
    return Conversation(tuple(mended), _tools(record), tuple(dict.fromkeys(notes)))


def strip_end_marker(text: str) -> tuple[str, bool]:
    """Remove an end-of-text marker that ends an answer as text; the template adds the real one."""
    stripped = text.rstrip()
    for marker in END_MARKERS:
        if stripped.endswith(marker):
            return stripped[: -len(marker)].rstrip(), True
    return text, False


def _checked_prompt(turns: list[Message], record: Mapping[str, Any]) -> Conversation:
    while turns and turns[-1].role == ASSISTANT:
        turns = turns[:-1]
    if not turns or not any(turn.role == USER and turn.content.strip() for turn in turns):
        raise BadRecord("the prompt is empty")
    return Conversation(tuple(_with_system(turns, record)), _tools(record))


def kind_of(value: Any) -> str:
    """Return what JSON calls the type of a value."""
    names = {dict: "object", list: "list", str: "text", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number" if isinstance(value, (int, float)) else type(value).__name__)


__all__ = ["ROLES", "read_conversations", "read_prompt", "read_text", "read_turn", "read_turns", "strip_end_marker"]

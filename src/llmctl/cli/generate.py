"""`llmctl generate`: answer one prompt, a file of prompts, or chat on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmctl import console
from llmctl.cli.options import stage_command
from llmctl.errors import UserError
from llmctl.training.sampling_config import SamplingConfig

if TYPE_CHECKING:
    from llmctl.training.conversations.records import Conversation
    from llmctl.training.respond import Responder


def register(app: typer.Typer) -> None:
    """Add `llmctl generate`."""
    app.command("generate")(command)


@stage_command(SamplingConfig, stage="generate", options_class=None)
def command(
    model: Annotated[Path, typer.Argument(help="A run of pretrain, sft or rlhf, or a Hugging Face folder.")],
    *,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="Answer this text.")] = None,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="Answer every record of a file: JSON, JSONL or Parquet.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the answers to a JSONL file instead of stdout.")
    ] = None,
    config: SamplingConfig,
) -> None:
    """Sample answers from a model: --prompt, --prompts FILE, a prompt on stdin, or chat on a terminal."""
    if prompt is not None and prompts is not None:
        raise UserError("--prompt and --prompts are both given", "give one of them")
    from llmctl.training.respond import load_responder

    chatting = prompt is None and prompts is None and sys.stdin.isatty()
    if chatting and console.is_json():
        raise UserError("a chat has no JSON", "give --prompt or --prompts")
    if prompt is None and prompts is None and not chatting:
        prompt = sys.stdin.read()
        if not prompt.strip():
            raise UserError("there is no prompt on stdin", "give --prompt TEXT or --prompts FILE")
    asked = _read(prompt, prompts) if not chatting else []
    responder = load_responder(model, config)
    if chatting:
        _chat(responder)
        return
    _report(_rows(responder, asked, config), output)


def _read(prompt: str | None, prompts: Path | None) -> list[Conversation]:
    from llmctl.artifacts.documents import InvalidRecord
    from llmctl.artifacts.inputs import open_input
    from llmctl.training.conversations.formats import read_prompt
    from llmctl.training.conversations.reading import read_records
    from llmctl.training.conversations.records import BadRecord

    if prompt is not None:
        try:
            return [read_prompt(prompt)]
        except BadRecord as failure:
            raise UserError(f"the prompt cannot be used: {failure}", "give some text") from None
    assert prompts is not None
    found = []
    for record in read_records(open_input(prompts, role="prompts", kinds=("conversations",))):
        if isinstance(record, InvalidRecord):
            console.warning(f"{record.file}, line {record.line}: {record.error}; left out")
            continue
        try:
            found.append(read_prompt(record.value))
        except BadRecord as failure:
            console.warning(f"{record.file}, line {record.line}: {failure}; left out")
    if not found:
        raise UserError(f"{prompts} holds no prompt", "give records with `prompt`, `messages` or `instruction`")
    return found


def _rows(responder: Responder, asked: list[Conversation], config: SamplingConfig) -> list[dict[str, Any]]:
    encoded = [responder.encode(conversation) for conversation in asked]
    with console.progress("generate", None, "tokens") as shown:
        answers = responder.answer(encoded, on_token=lambda row, token: shown.advance())
    rows = []
    for position, answer in enumerate(answers):
        conversation = asked[position // config.num_samples]
        rows.append(
            {
                "prompt": conversation.messages[-1].content,
                "response": responder.text(answer),
                "stopped": answer.stopped,
                "tokens": len(answer.ids),
                "logprob": sum(answer.logprobs),
            }
        )
    return rows


def _report(rows: list[dict[str, Any]], output: Path | None) -> None:
    cut_off = sum(not row["stopped"] for row in rows)
    if cut_off and len(rows) > 1:
        console.info(f"{cut_off:,} of {len(rows):,} answers reached the limit before they ended")
    if output is not None:
        from llmctl.artifacts.documents import write_jsonl

        write_jsonl(output.parent, output.name, rows)
        console.result(f"{output}: {len(rows):,} answers", output=str(output), answers=len(rows))
    elif len(rows) == 1:
        console.result(rows[0]["response"], samples=rows)
    else:
        console.result("\n\n".join(f"> {row['prompt']}\n{row['response']}" for row in rows), samples=rows)


def _chat(responder: Responder) -> None:
    from llmctl.training.conversations.records import ASSISTANT, USER, Conversation, Message

    console.info("Ctrl-D ends the chat, /new begins another")
    history: list[Message] = []
    for line in _lines():
        if line == "/new":
            history = []
            continue
        history.append(Message(USER, line))
        if not responder.as_chat:
            history = history[-1:]
        while len(history) > 1 and not responder.has_room(Conversation(tuple(history))):
            history = history[2:]  # the oldest question and its answer
        text = _stream(responder, Conversation(tuple(history)))
        history.append(Message(ASSISTANT, text))
        responder.config.seed += 1


def _lines() -> Iterator[str]:
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            return
        if line:
            yield line


def _stream(responder: Responder, conversation: Conversation) -> str:
    ids: list[int] = []
    shown = ""

    def show(row: int, token: int) -> None:
        nonlocal shown
        ids.append(token)
        text = responder.template.decode(ids)
        # A character may span several tokens: it is shown once it is whole.
        if not text.endswith("\ufffd"):
            print(text[len(shown) :], end="", flush=True)
            shown = text

    (answer,) = responder.answer([responder.encode(conversation)], on_token=show)
    text = responder.text(answer)
    print(text[len(shown) :], flush=True)
    return text

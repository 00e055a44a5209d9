"""From files of prompts to token ids, with every record accounted for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmctl.artifacts.documents import InvalidRecord, write_parquet
from llmctl.artifacts.files import write_json
from llmctl.artifacts.inputs import Input
from llmctl.training.conversations.formats import read_prompt
from llmctl.training.conversations.ledger import Ledger
from llmctl.training.conversations.preferences import read_comparison
from llmctl.training.conversations.reading import read_records
from llmctl.training.conversations.records import BadRecord, Conversation, Message
from llmctl.training.conversations.template import ChatTemplate

FOLDER = "data"
PROMPTS, STATISTICS = "prompts.parquet", "statistics.json"
WANTED = "prompts: `prompt`, `messages` or `instruction`"
_BATCH = 512
# File, line, the prompt and the record it came from.
_Understood = tuple[str, int, Conversation, str]


@dataclass(frozen=True)
class Prompt:
    """One prompt, rendered up to where the assistant begins to write.

    Attributes:
        record: the record that it came from, as JSON: reward functions may need more than the prompt.
    """

    ids: list[int]
    messages: tuple[Message, ...]
    record: str = "{}"

    @property
    def text(self) -> str:
        """Return what the user said last: what reward functions get."""
        return self.messages[-1].content


@dataclass
class Prompts:
    """The usable prompts of one input, and what became of each record."""

    prompts: list[Prompt] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)


def read_prompts(source: Input, template: ChatTemplate, max_tokens: int) -> Prompts:
    """Read, check and render every prompt of an input; those longer than `max_tokens` are left out and counted."""
    found = Prompts()
    batch: list[_Understood] = []
    for entry in _understood(source, found.ledger):
        batch.append(entry)
        if len(batch) == _BATCH:
            _render(batch, template, max_tokens, found)
            batch = []
    _render(batch, template, max_tokens, found)
    return found


def _understood(source: Input, ledger: Ledger) -> Iterator[_Understood]:
    for raw in read_records(source):
        if isinstance(raw, InvalidRecord):
            ledger.reject(raw.file, raw.line, raw.error, raw.head)
            continue
        try:
            yield raw.file, raw.line, _prompt_of(raw.value), _as_json(raw.value)
        except BadRecord as failure:
            ledger.reject(raw.file, raw.line, str(failure))


def _as_json(record: Any) -> str:
    return json.dumps(record if isinstance(record, dict) else {}, ensure_ascii=False, default=str)


def _prompt_of(record: Any) -> Conversation:
    """Return the prompt of a record of prompts, of conversations, or of comparisons."""
    if isinstance(record, dict) and (record.get("chosen") is not None or record.get("responses") is not None):
        return Conversation(read_comparison(record).prompt)
    return read_prompt(record)


def _render(batch: list[_Understood], template: ChatTemplate, max_tokens: int, found: Prompts) -> None:
    rendered = template.prompts([conversation for _, _, conversation, _ in batch])
    for (file, line, conversation, record), ids in zip(batch, rendered, strict=True):
        if isinstance(ids, BadRecord):
            found.ledger.reject(file, line, str(ids))
        elif len(ids) > max_tokens:
            detail = f"{len(ids)} tokens, {max_tokens} leave room for an answer"
            found.ledger.remove(file, line, "overlong", detail)
        else:
            found.prompts.append(Prompt(ids, conversation.messages, record))
            found.ledger.keep(file)


def build(source: Input, template: ChatTemplate, max_tokens: int, root: Path | None = None) -> dict[str, Any]:
    """Read the prompts and say what a person should know; write them to `root` where given. Returns the statistics.

    Raises:
        UserError: no prompt can be used.
    """
    found = read_prompts(source, template, max_tokens)
    found.ledger.require_some(source.name, len(found.prompts), WANTED)
    found.ledger.report()
    statistics = {
        **found.ledger.accounting.to_mapping(),
        "prompts": len(found.prompts),
        "chat_template_sha256": template.sha256,
    }
    if root is not None:
        import pyarrow as pa

        found.ledger.write(root, "prompts")
        columns = {
            "input_ids": [prompt.ids for prompt in found.prompts],
            "messages": [
                json.dumps([message.to_mapping() for message in prompt.messages], ensure_ascii=False)
                for prompt in found.prompts
            ],
            "record": [prompt.record for prompt in found.prompts],
        }
        schema = pa.schema(
            [("input_ids", pa.large_list(pa.int32())), ("messages", pa.large_string()), ("record", pa.large_string())]
        )
        write_parquet(root, f"{FOLDER}/{PROMPTS}", pa.table(columns, schema=schema))
        write_json(root, f"{FOLDER}/{STATISTICS}", statistics)
    return statistics


def is_written(root: Path) -> bool:
    """Tell whether an earlier start of this run has written the prompts."""
    return (root / FOLDER / STATISTICS).is_file()


def read(root: Path) -> tuple[list[Prompt], dict[str, Any]]:
    """Read back what `build` wrote: prompts and statistics."""
    import pyarrow.parquet as pq

    rows = pq.read_table(root / FOLDER / PROMPTS).to_pylist()
    prompts = [
        Prompt(row["input_ids"], tuple(Message(**turn) for turn in json.loads(row["messages"])), row["record"])
        for row in rows
    ]
    return prompts, json.loads((root / FOLDER / STATISTICS).read_bytes())

"""From files of conversations to rows of token ids, with every record accounted for."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from llmctl import console
from llmctl.artifacts.documents import InvalidRecord
from llmctl.artifacts.inputs import Input
from llmctl.sft.config import SftConfig
from llmctl.sft.phrases import compile_phrases
from llmctl.sft.rows import Rows
from llmctl.training.conversations.formats import read_conversations
from llmctl.training.conversations.ledger import Ledger
from llmctl.training.conversations.reading import read_records
from llmctl.training.conversations.records import ASSISTANT, BadRecord, Conversation, UnwantedRecord
from llmctl.training.conversations.template import ChatTemplate, Rendered

_BATCH = 512
_SAMPLES = 5


@dataclass
class Prepared:
    """The usable conversations of one input.

    Attributes:
        rendered: token ids with the learned ones marked.
        prompts: a hash of each conversation's first prompt, so that one prompt is never on both sides of a split.
        ledger: what became of each record.
        phrases: per file, how many records hold a template phrase; with a few samples.
    """

    rendered: list[Rendered] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    phrases: Counter[str] = field(default_factory=Counter)
    phrase_samples: list[str] = field(default_factory=list)


@dataclass
class _Pending:
    file: str
    line: int
    conversations: list[Conversation]


def prepare(source: Input, template: ChatTemplate, config: SftConfig) -> Prepared:
    """Read, check and render every record of an input."""
    prepared = Prepared()
    pattern = compile_phrases(config.template_phrases)
    for pending in _batches(_understood(source, prepared)):
        flat = [conversation for record in pending for conversation in record.conversations]
        rendered = iter(template.render(flat, last_only=config.learn == "last"))
        for record in pending:
            results = [next(rendered) for _ in record.conversations]
            phrase = _find_phrase(record, pattern, prepared)
            if phrase is not None and config.drop_template:
                prepared.ledger.remove(record.file, record.line, "template_phrase", phrase)
            else:
                _settle(prepared, record, results, config)
    return prepared


def _understood(source: Input, prepared: Prepared) -> Iterator[_Pending]:
    """Yield the records that are conversations; account for the others."""
    for raw in read_records(source):
        if isinstance(raw, InvalidRecord):
            prepared.ledger.reject(raw.file, raw.line, raw.error, raw.head)
            continue
        try:
            yield _Pending(raw.file, raw.line, read_conversations(raw.value))
        except UnwantedRecord as failure:
            prepared.ledger.remove(raw.file, raw.line, "unwanted", str(failure))
        except BadRecord as failure:
            prepared.ledger.reject(raw.file, raw.line, str(failure))


def _batches(records: Iterable[_Pending]) -> Iterator[list[_Pending]]:
    batch: list[_Pending] = []
    for record in records:
        batch.append(record)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _find_phrase(record: _Pending, pattern: re.Pattern[str] | None, prepared: Prepared) -> str | None:
    """Return the template phrase in a record's answers, if there is one, and count it for its file."""
    if pattern is None:
        return None
    for conversation in record.conversations:
        for turn in conversation.messages:
            found = pattern.search(turn.content) if turn.role == ASSISTANT else None
            if found is not None:
                prepared.phrases[record.file] += 1
                if len(prepared.phrase_samples) < _SAMPLES:
                    shown = turn.content[max(0, found.start() - 20) : found.end() + 40].replace("\n", " ")
                    prepared.phrase_samples.append(f"{record.file}:{record.line}: …{shown}…")
                return found.group()
    return None


def _settle(prepared: Prepared, record: _Pending, results: list[Rendered | BadRecord], config: SftConfig) -> None:
    """Keep a record whose conversations can all be learned; say why of any other."""
    kept = []
    for result in results:
        if isinstance(result, BadRecord):
            prepared.ledger.reject(record.file, record.line, str(result))
            return
        ids, trained = result.ids, result.trained
        if len(ids) - 1 > config.seq_len:
            if config.overlong == "drop":
                detail = f"{len(ids) - 1} tokens, seq_len is {config.seq_len}"
                prepared.ledger.remove(record.file, record.line, "overlong", detail)
                return
            ids, trained = ids[: config.seq_len + 1], trained[: config.seq_len + 1]
            if not any(trained[1:]):
                prepared.ledger.remove(record.file, record.line, "answer_cut_off", "nothing to learn within seq_len")
                return
            prepared.ledger.notes["conversations truncated to seq_len"] += 1
        kept.append(Rendered(ids, trained))
    for conversation, row in zip(record.conversations, kept, strict=True):
        prepared.rendered.append(row)
        prepared.prompts.append(_hash([turn.content for turn in conversation.prompt[:2]]))
        prepared.ledger.notes.update(conversation.notes)
    prepared.ledger.keep(record.file)


def _hash(texts: list[str]) -> int:
    return int.from_bytes(hashlib.blake2b("\0".join(texts).encode("utf-8", "replace"), digest_size=8).digest(), "big")


def without(prepared: Prepared, others: Prepared) -> int:
    """Leave out of the training rows those that stand in the validation rows too; return how many.

    They stay `kept` in the accounting of records: they are used, on the other side.
    """
    held_out = {_row_key(row) for row in others.rendered}
    keep = [index for index, row in enumerate(prepared.rendered) if _row_key(row) not in held_out]
    dropped = len(prepared.rendered) - len(keep)
    prepared.rendered = [prepared.rendered[index] for index in keep]
    prepared.prompts = [prepared.prompts[index] for index in keep]
    return dropped


def _row_key(row: Rendered) -> bytes:
    return np.array(row.ids, dtype=np.int32).tobytes()


def split(prepared: Prepared, fraction: float, seed: int) -> tuple[list[Rendered], list[Rendered]]:
    """Return (training, validation) rows. Rows with the same prompt stay together.

    Which prompts are held out depends on their text and the seed alone: adding records moves none to the other side.
    """
    limit = int(fraction * (1 << 64))
    held_out = [_hash([str(seed), str(prompt)]) < limit for prompt in prepared.prompts]
    if len(prepared.rendered) < 2 or all(held_out) or not any(held_out):
        return prepared.rendered, []
    return (
        [row for row, out in zip(prepared.rendered, held_out, strict=True) if not out],
        [row for row, out in zip(prepared.rendered, held_out, strict=True) if out],
    )


def to_rows(rendered: list[Rendered]) -> Rows:
    """Return rendered conversations as flat arrays."""
    return Rows.of([(row.ids, row.trained) for row in rendered])


def report(prepared: Prepared, config: SftConfig, num_training: int) -> None:
    """Say on stderr what a person should know before training on these conversations."""
    prepared.ledger.report()
    total = sum(prepared.phrases.values())
    if total and not config.drop_template:
        share = total / max(1, len(prepared.rendered))
        console.warning(
            f"{total:,} records ({share:.1%}) hold a template phrase, such as {prepared.phrase_samples[0]}",
            "--drop-template leaves them out; --template-phrases sets the list",
        )
    if num_training < config.min_seed:
        console.warning(
            f"{num_training:,} training conversations; {config.min_seed:,} curated ones are a sound minimum",
            "add more, or set --min-seed",
        )

"""From files of comparisons to token ids: one item per prompt with all its answers and their scores."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from llmctl import console
from llmctl.artifacts.documents import InvalidRecord, write_parquet
from llmctl.artifacts.files import write_json
from llmctl.artifacts.inputs import Input
from llmctl.errors import UserError
from llmctl.training.conversations.ledger import Ledger
from llmctl.training.conversations.preferences import read_comparison
from llmctl.training.conversations.reading import read_records
from llmctl.training.conversations.records import ASSISTANT, BadRecord, Comparison, Conversation, Message
from llmctl.training.conversations.template import ChatTemplate

FOLDER = "data"
TRAINING, VALIDATION, STATISTICS = "train.parquet", "validation.parquet", "statistics.json"
WANTED = "comparisons: chosen and rejected, or responses with scores or ranks"
_BATCH = 256


@dataclass(frozen=True)
class Item:
    """The answers to one prompt.

    Attributes:
        rows: token ids of prompt and answer, for each answer.
        answer_starts: where each answer begins in its row.
        scores: one per answer; higher is better, equal is a tie.
        characters: length of each answer's text, for the baseline that prefers the longer one.
        prompt_key: hash of the prompt.
    """

    rows: list[list[int]]
    answer_starts: list[int]
    scores: list[float]
    characters: list[int]
    prompt_key: int

    def pairs(self) -> list[tuple[int, int]]:
        """Return (better, worse) answers of every pair that is not a tie."""
        order = range(len(self.rows))
        return [(i, j) for i in order for j in order if self.scores[i] > self.scores[j]]


@dataclass
class Comparisons:
    """The usable comparisons of one input, and what became of each record."""

    items: list[Item] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def num_pairs(self) -> int:
        """Return the number of comparisons that are no ties."""
        return sum(len(item.pairs()) for item in self.items)


def read_comparisons(source: Input, template: ChatTemplate, seq_len: int) -> Comparisons:
    """Read, check and render every comparison of an input.

    A prompt whose answers are all tied is left out and counted, and so is one with an answer beyond `seq_len`.
    """
    found = Comparisons()
    batch: list[tuple[str, int, Comparison]] = []
    for entry in _understood(source, found.ledger):
        batch.append(entry)
        if len(batch) == _BATCH:
            _render(batch, template, seq_len, found)
            batch = []
    _render(batch, template, seq_len, found)
    return found


def _understood(source: Input, ledger: Ledger) -> Iterator[tuple[str, int, Comparison]]:
    for raw in read_records(source):
        if isinstance(raw, InvalidRecord):
            ledger.reject(raw.file, raw.line, raw.error, raw.head)
            continue
        try:
            comparison = read_comparison(raw.value)
        except BadRecord as failure:
            ledger.reject(raw.file, raw.line, str(failure))
            continue
        if not comparison.pairs():
            ledger.remove(raw.file, raw.line, "tie", "all answers have the same score")
            continue
        yield raw.file, raw.line, comparison


def _render(
    batch: Sequence[tuple[str, int, Comparison]], template: ChatTemplate, seq_len: int, found: Comparisons
) -> None:
    whole = [
        Conversation((*comparison.prompt, Message(ASSISTANT, answer)))
        for _, _, comparison in batch
        for answer in comparison.answers
    ]
    rendered = iter(template.render(whole, last_only=True))
    for file, line, comparison in batch:
        rows = [next(rendered) for _ in comparison.answers]
        refused = next((row for row in rows if isinstance(row, BadRecord)), None)
        if refused is not None:
            found.ledger.reject(file, line, str(refused))
            continue
        good = [row for row in rows if not isinstance(row, BadRecord)]
        longest = max(len(row.ids) for row in good)
        if longest > seq_len:
            found.ledger.remove(file, line, "overlong", f"{longest} tokens, seq_len is {seq_len}")
            continue
        found.items.append(
            Item(
                rows=[row.ids for row in good],
                answer_starts=[row.trained.index(True) for row in good],
                scores=list(comparison.scores),
                characters=[len(answer) for answer in comparison.answers],
                prompt_key=_key("\0".join(turn.content for turn in comparison.prompt)),
            )
        )
        found.ledger.keep(file)
        found.ledger.notes.update(comparison.notes)
        if len(comparison.pairs()) > 0 and comparison.num_ties:
            found.ledger.notes["tied pairs within a ranking, left out"] += comparison.num_ties


def _key(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big")


def longer_wins(items: Sequence[Item]) -> float:
    """Return how often the longer answer is the better one (half for equal lengths); each prompt counts once."""
    shares = []
    for item in items:
        wins = [
            float(item.characters[better] > item.characters[worse])
            + 0.5 * (item.characters[better] == item.characters[worse])
            for better, worse in item.pairs()
        ]
        shares.append(sum(wins) / len(wins))
    return float(np.mean(shares)) if shares else float("nan")


@dataclass
class ComparisonData:
    """Comparisons to train and to validate on, with the statistics for the manifest."""

    training: list[Item]
    validation: list[Item]
    statistics: dict[str, Any]


def build(
    source: Input,
    validation: Input | None,
    template: ChatTemplate,
    *,
    seq_len: int,
    validation_fraction: float,
    min_comparisons: int,
    seed: int,
    root: Path | None = None,
) -> ComparisonData:
    """Read comparisons, hold some out, and say what a person should know; write them to `root` where given.

    Raises:
        UserError: nothing to learn.
    """
    found = read_comparisons(source, template, seq_len)
    found.ledger.require_some(source.name, len(found.items), WANTED)
    ledgers = {"training": found.ledger}
    statistics = found.ledger.accounting.to_mapping()
    if validation is not None:
        other = read_comparisons(validation, template, seq_len)
        other.ledger.require_some(validation.name, len(other.items), WANTED)
        ledgers["validation"] = other.ledger
        statistics["validation_records"] = other.ledger.accounting.records()
        held_out = other.items
        keys = {item.prompt_key for item in held_out}
        training = [item for item in found.items if item.prompt_key not in keys]
        if len(training) < len(found.items):
            console.warning(
                f"{len(found.items) - len(training):,} prompts stand in the validation file too: left out of training"
            )
        if not training:
            raise UserError("every training prompt stands in the validation file too", "give other files")
    else:
        training, held_out = _split(found.items, validation_fraction, seed)
    found.ledger.report()
    comparisons = sum(len(item.pairs()) for item in training)
    answers = [len(item.rows) for item in training]
    statistics |= {
        "prompts": {"training": len(training), "validation": len(held_out)},
        "comparisons": {"training": comparisons, "validation": sum(len(item.pairs()) for item in held_out)},
        "answers_per_prompt": {"least": min(answers), "most": max(answers)},
        "longer_wins": {"training": _rounded(longer_wins(training)), "validation": _rounded(longer_wins(held_out))},
        "notes": dict(sorted(found.ledger.notes.items())),
        "chat_template_sha256": template.sha256,
    }
    console.info(f"{len(training):,} prompts with {sum(answers):,} answers, {comparisons:,} comparisons")
    if comparisons < min_comparisons:
        console.warning(
            f"{comparisons:,} comparisons; {min_comparisons:,} are a sound minimum",
            "add more, or set --min-comparisons",
        )
    if root is not None:
        for role, ledger in ledgers.items():
            ledger.write(root, role)
        write_items(training, root, f"{FOLDER}/{TRAINING}")
        write_items(held_out, root, f"{FOLDER}/{VALIDATION}")
        write_json(root, f"{FOLDER}/{STATISTICS}", statistics)
    return ComparisonData(training, held_out, statistics)


def _rounded(value: float) -> float | None:
    return None if value != value else round(value, 4)


def _split(items: list[Item], fraction: float, seed: int) -> tuple[list[Item], list[Item]]:
    limit = int(fraction * (1 << 64))
    held_out = [_key(f"{seed}:{item.prompt_key}") < limit for item in items]
    if all(held_out):
        return items, []
    return (
        [item for item, out in zip(items, held_out, strict=True) if not out],
        [item for item, out in zip(items, held_out, strict=True) if out],
    )


def is_written(root: Path) -> bool:
    """Tell whether an earlier start of this run has written the data."""
    return (root / FOLDER / STATISTICS).is_file()


def read(root: Path) -> ComparisonData:
    """Read back what `build` wrote."""
    return ComparisonData(
        read_items(root / FOLDER / TRAINING),
        read_items(root / FOLDER / VALIDATION),
        json.loads((root / FOLDER / STATISTICS).read_bytes()),
    )


def write_items(items: Sequence[Item], root: Path, relative: str) -> None:
    """Write items as Parquet, one row per prompt."""
    import pyarrow as pa

    schema = pa.schema(
        [
            ("rows", pa.large_list(pa.large_list(pa.int32()))),
            ("answer_starts", pa.list_(pa.int32())),
            ("scores", pa.list_(pa.float64())),
            ("characters", pa.list_(pa.int32())),
            ("prompt_key", pa.uint64()),
        ]
    )
    columns = {name: [getattr(item, name) for item in items] for name in schema.names}
    write_parquet(root, relative, pa.table(columns, schema=schema))


def read_items(path: Path) -> list[Item]:
    """Read items back."""
    import pyarrow.parquet as pq

    return [Item(**row) for row in pq.read_table(path).to_pylist()]

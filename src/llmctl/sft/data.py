"""The data of one run: built once by the first process, read back by all."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmctl import console
from llmctl.artifacts.files import write_json
from llmctl.artifacts.inputs import Input
from llmctl.errors import UserError
from llmctl.model.config import ModelConfig
from llmctl.sft.config import SftConfig
from llmctl.sft.packing import BatchPlan, pack, singles
from llmctl.sft.prepare import prepare, report, split, to_rows, without
from llmctl.sft.preview import show
from llmctl.sft.rows import Rows
from llmctl.training.conversations.ledger import Ledger
from llmctl.training.conversations.template import ChatTemplate

FOLDER = "data"
WANTED = "conversations: messages, ShareGPT, alpaca, or prompt and answer"
TRAINING, VALIDATION, STATISTICS = "train.parquet", "validation.parquet", "statistics.json"


@dataclass
class SftData:
    """Rows to train and to validate on.

    Attributes:
        plan: which rows each step takes.
        statistics: the accounting of records and what else the manifest tells about the data.
        ledgers: what became of each record, by role.
    """

    training: Rows
    validation: Rows
    plan: BatchPlan
    statistics: dict[str, Any]
    ledgers: dict[str, Ledger] = field(default_factory=dict)

    def total_steps(self, config: SftConfig) -> int:
        """Return the optimizer steps of the run."""
        return config.steps or max(1, math.ceil(config.epochs * self.plan.steps_per_epoch))


def limit_seq_len(seq_len: int, model: ModelConfig) -> int:
    """Return `seq_len`, or the longest that the model reads where that is less."""
    return min(seq_len, model.max_seq_len) if model.max_seq_len else seq_len


def batch_plan(rows: Rows, config: SftConfig) -> BatchPlan:
    """Put rows into sequences as the configuration says."""
    packs = pack(rows.lengths, config.seq_len, config.seed) if config.packing == "isolate" else singles(len(rows))
    return BatchPlan(packs, config.global_batch_size, config.seed)


def build_data(source: Input, validation: Input | None, template: ChatTemplate, config: SftConfig) -> SftData:
    """Read, check and render the conversations, and split off those to validate on.

    Raises:
        UserError: nothing to learn.
    """
    prepared = prepare(source, template, config)
    prepared.ledger.require_some(source.name, len(prepared.rendered), WANTED)
    statistics = prepared.ledger.accounting.to_mapping()
    ledgers = {"training": prepared.ledger}
    overlap = 0
    if validation is not None:
        held_out = prepare(validation, template, config)
        held_out.ledger.require_some(validation.name, len(held_out.rendered), WANTED)
        overlap = without(prepared, held_out)
        if overlap:
            console.warning(
                f"{overlap:,} training conversations stand in the validation file too: left out of training"
            )
        if not prepared.rendered:
            raise UserError("every training conversation stands in the validation file too", "give other files")
        training, validating = prepared.rendered, held_out.rendered
        statistics["validation_records"] = held_out.ledger.accounting.records()
        ledgers["validation"] = held_out.ledger
    else:
        training, validating = split(prepared, config.validation_fraction, config.seed)
    report(prepared, config, len(training))
    show(template, training, config.show)
    rows, validation_rows = to_rows(training), to_rows(validating)
    statistics |= {
        "conversations": {"training": len(rows), "validation": len(validation_rows), "in_both": overlap},
        "tokens": {
            "training": int(rows.lengths.sum()),
            "learned": rows.num_trained,
            "validation_learned": validation_rows.num_trained,
        },
        "notes": dict(sorted(prepared.ledger.notes.items())),
        "template_phrases": dict(sorted(prepared.phrases.items())),
        "chat_template_sha256": template.sha256,
    }
    return SftData(rows, validation_rows, batch_plan(rows, config), statistics, ledgers)


def write_data(data: SftData, root: Path) -> None:
    """Write the data into a run's folder; the statistics come last and say that it is complete."""
    data.training.write(root, f"{FOLDER}/{TRAINING}")
    data.validation.write(root, f"{FOLDER}/{VALIDATION}")
    for role, ledger in data.ledgers.items():
        ledger.write(root, role)
    write_json(root, f"{FOLDER}/{STATISTICS}", data.statistics)


def read_data(root: Path, config: SftConfig) -> SftData:
    """Read back what `write_data` wrote."""
    training, validation = Rows.read(root / FOLDER / TRAINING), Rows.read(root / FOLDER / VALIDATION)
    statistics = json.loads((root / FOLDER / STATISTICS).read_bytes())
    return SftData(training, validation, batch_plan(training, config), statistics)


def is_written(root: Path) -> bool:
    """Tell whether an earlier start of this run has written the data."""
    return (root / FOLDER / STATISTICS).is_file()

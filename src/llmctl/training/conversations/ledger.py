"""Account for every record that is read for training: kept, left out with a reason, or invalid with an error."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmctl import console
from llmctl.artifacts.accounting import Accounting
from llmctl.artifacts.documents import InvalidRecord, write_invalid, write_jsonl
from llmctl.errors import UserError


@dataclass
class Ledger:
    """What became of each record of one input.

    Attributes:
        accounting: in = kept + removed + invalid, per file.
        removed: one mapping per record left out: file, line, reason, detail.
        invalid: the records that could not be used.
        notes: how often something was mended on reading.
    """

    accounting: Accounting = field(default_factory=Accounting)
    removed: list[dict[str, Any]] = field(default_factory=list)
    invalid: list[InvalidRecord] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)

    def keep(self, file: str) -> None:
        """Account for a record that is used."""
        self.accounting.add_file(file, kept=1)

    def remove(self, file: str, line: int, reason: str, detail: str) -> None:
        """Account for a record that is left out on purpose."""
        self.accounting.add_file(file, removed=1)
        self.accounting.reasons[reason] += 1
        self.removed.append({"file": file, "line": line, "reason": reason, "detail": detail})

    def reject(self, file: str, line: int | None, error: str, head: bytes = b"") -> None:
        """Account for a record that cannot be used."""
        self.accounting.add_file(file, invalid=1)
        self.accounting.errors[error] += 1
        self.invalid.append(InvalidRecord(file, error, line, head=head))

    def require_some(self, name: str, kept: int, what: str) -> None:
        """Refuse an input of which nothing can be used.

        Raises:
            UserError: with the commonest reason.
        """
        if kept:
            return
        records = self.accounting.records()
        if not records["in"]:
            raise UserError(f"{name} holds no records", f"give JSON, JSONL or Parquet with {what}")
        errors, examples = self.accounting.errors_by_kind()
        reason, count = (Counter(errors) + self.accounting.reasons).most_common(1)[0]
        hint = HINTS.get(reason, f"give records with {what}; the guide shows the shapes that are known")
        raise UserError(
            f"none of the {records['in']:,} records of {name} can be used ({count:,} × {examples.get(reason, reason)})",
            hint,
        )

    def report(self) -> None:
        """Say on stderr what was left out, was invalid, or was mended."""
        self.accounting.warn()
        for reason, count in sorted(self.accounting.reasons.items()):
            console.warning(f"{count:,} records left out: {reason}", HINTS.get(reason))
        for note, count in sorted(self.notes.items()):
            console.info(f"{count:,} × {note}")

    def write(self, root: Path, part: str) -> None:
        """Write ``removed/<part>.jsonl`` and ``invalid/<part>.jsonl``, where there is something to write."""
        if self.removed:
            write_jsonl(root, f"removed/{part}.jsonl", self.removed)
        write_invalid(root, part, self.invalid)


HINTS = {
    "overlong": "raise --seq-len",
    "answer_cut_off": "raise --seq-len",
    "unwanted": "their label says not to learn from them",
    "template_phrase": "--no-drop-template keeps them",
    "tie": "no answer is better than another in them",
}

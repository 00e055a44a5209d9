"""Account for every record of a data stage: in = kept + removed + invalid, per file, per source and in sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from llmctl import console
from llmctl.errors import LimitPassed, RunFailed

RECORD_KEYS = ("in", "kept", "removed", "invalid")
# A source or language that loses nearly everything deserves an alarm (rare-language data was once lost that way).
ALARM_KEPT_SHARE = 0.05
ALARM_MIN_RECORDS = 20


@dataclass
class Accounting:
    """Counts of one block or of a whole run. Blocks are merged in any order with the same result.

    Attributes:
        files: per input file the counts `RECORD_KEYS`.
        groups: per (source, language) the counts ``in``, ``kept``, ``bytes_in``, ``bytes_kept``, ``tokens``.
        reasons: removed records by their deciding reason.
        errors: invalid records by error; errors are told apart by their kind, which is what comes before the first
            colon, and the rest is kept as an example.
        examples: for each kind of error one whole error (the first in alphabetical order).
        skipped: what was read and is no document, by reason; it is not among the records.
    """

    files: dict[str, Counter[str]] = field(default_factory=dict)
    groups: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)

    def add_file(self, path: str, *, kept: int = 0, removed: int = 0, invalid: int = 0) -> None:
        """Count records of one input file; ``in`` is their sum."""
        counts = self.files.setdefault(path, Counter())
        counts.update({"in": kept + removed + invalid, "kept": kept, "removed": removed, "invalid": invalid})

    def add_group(self, source: str, lang: str | None, **counts: int) -> None:
        """Count documents, bytes or tokens of one source and language."""
        self.groups.setdefault((source, lang or "unknown"), Counter()).update(counts)

    def merge(self, other: Accounting) -> None:
        """Add the counts of another block."""
        for path, counts in other.files.items():
            self.files.setdefault(path, Counter()).update(counts)
        for key, counts in other.groups.items():
            self.groups.setdefault(key, Counter()).update(counts)
        self.reasons.update(other.reasons)
        self.errors.update(other.errors)
        self.skipped.update(other.skipped)
        for kind, example in other.examples.items():
            self.examples[kind] = min(example, self.examples.get(kind, example))

    def errors_by_kind(self) -> tuple[dict[str, int], dict[str, str]]:
        """Return the counts of the errors by kind, and one whole error of each kind that has details."""
        counts: Counter[str] = Counter()
        examples = dict(self.examples)
        for error, count in self.errors.items():
            kind = error.split(":")[0]
            counts[kind] += count
            if error != kind:
                examples[kind] = min(error, examples.get(kind, error))
        return dict(sorted(counts.items())), dict(sorted(examples.items()))

    def records(self) -> dict[str, int]:
        """Return the sum over all files."""
        return {key: sum(counts[key] for counts in self.files.values()) for key in RECORD_KEYS}

    def to_mapping(self) -> dict[str, Any]:
        """Return the counts as they stand in a manifest's statistics, in an order that does not depend on the run."""
        by_error, examples = self.errors_by_kind()
        return {
            "records": self.records(),
            "by_reason": dict(sorted(self.reasons.items())),
            "by_error": by_error,
            "error_examples": examples,
            **({"skipped": dict(sorted(self.skipped.items()))} if self.skipped else {}),
            "by_file": [
                {"path": path, **{key: counts[key] for key in RECORD_KEYS}}
                for path, counts in sorted(self.files.items())
            ],
            "by_source": [
                {"source": source, "lang": lang, **dict(sorted(counts.items()))}
                for (source, lang), counts in sorted(self.groups.items())
            ],
            **({"alarms": alarms} if (alarms := self.alarms()) else {}),
        }

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Accounting:
        """Read the counts back (of a finished unit, after a kill)."""
        accounting = cls(
            reasons=Counter(mapping["by_reason"]),
            errors=Counter(mapping["by_error"]),
            examples=dict(mapping.get("error_examples", {})),
            skipped=Counter(mapping.get("skipped", {})),
        )
        for row in mapping["by_file"]:
            accounting.files[row["path"]] = Counter({key: row[key] for key in RECORD_KEYS})
        for row in mapping["by_source"]:
            counts = {key: value for key, value in row.items() if key not in ("source", "lang")}
            accounting.groups[row["source"], row["lang"]] = Counter(counts)
        return accounting

    def check(self) -> None:
        """Refuse to finish a stage whose sums do not add up.

        Raises:
            RunFailed: a record is unaccounted for; that is a fault of llmctl.
        """
        for path, counts in self.files.items():
            if counts["in"] != counts["kept"] + counts["removed"] + counts["invalid"]:
                raise RunFailed(f"records of {path} are unaccounted for: {dict(counts)}", "please report this fault")
        removed = sum(self.reasons.values())
        if removed != self.records()["removed"]:
            raise RunFailed(
                f"{self.records()['removed']} records removed, {removed} with a reason", "please report this fault"
            )

    def warn(self) -> None:
        """Say on stderr which records were invalid and which sources nearly vanished."""
        records = self.records()
        if self.skipped:
            reasons = ", ".join(f"{count:,} × {reason}" for reason, count in sorted(self.skipped.items()))
            console.info(f"skipped {self.skipped.total():,} answers that are no pages ({reasons})")
        if records["invalid"]:
            counts, examples = self.errors_by_kind()
            largest = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:3]
            kinds = ", ".join(f"{count:,} × {kind}" for kind, count in largest)
            console.warning(
                f"{records['invalid']:,} of {records['in']:,} records are invalid ({kinds})",
                "they are listed with file, line and error under invalid/ in the output",
            )
            for kind, _ in largest:
                if kind.startswith("no field ") and kind in examples:
                    console.warning(examples[kind], "name the field that holds the text: --set read.text_field=NAME")
        for alarm in self.alarms():
            console.warning(
                f"{alarm['what']} `{alarm['name']}` is nearly wiped out: {alarm['kept']:,} of {alarm['in']:,} "
                "documents kept",
                "look at removed/ for the reasons before you train on the rest",
            )

    def alarms(self) -> list[dict[str, Any]]:
        """Return the sources and languages of which next to nothing is kept."""
        return [
            {"what": what, "name": name, "in": counts["in"], "kept": counts["kept"]}
            for what, totals in (("source", self._totals(0)), ("language", self._totals(1)))
            for name, counts in sorted(totals.items())
            if counts["in"] >= ALARM_MIN_RECORDS and counts["kept"] < ALARM_KEPT_SHARE * counts["in"]
        ]

    def _totals(self, position: int) -> dict[str, Counter[str]]:
        totals: dict[str, Counter[str]] = {}
        for key, counts in self.groups.items():
            totals.setdefault(key[position], Counter()).update(counts)
        return totals


def merge_all(parts: Iterable[Accounting]) -> Accounting:
    """Return the sum of several accountings."""
    total = Accounting()
    for part in parts:
        total.merge(part)
    return total


def enforce_invalid_share(records: Mapping[str, int], max_invalid_share: float) -> None:
    """Fail with status 3 when too many records are invalid; called after everything is written.

    Raises:
        LimitPassed: the share of invalid records is above the limit.
    """
    if records["in"] and records["invalid"] > max_invalid_share * records["in"]:
        raise LimitPassed(
            f"{records['invalid']:,} of {records['in']:,} records are invalid; the limit is {max_invalid_share:.3g}",
            "look under invalid/ in the output; --max-invalid-share sets the limit",
        )

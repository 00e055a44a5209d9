"""Hold the statistics of a batch of documents against the policies' limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from llmctl.config.schema import to_mapping
from llmctl.filtering.policy import LAST_RULE, Policy
from llmctl.filtering.rule import is_unspaced
from llmctl.filtering.rules import load_rule
from llmctl.text.statistics import WORD_SLOTS, Family, families_of

if TYPE_CHECKING:
    import pyarrow as pa

ORIGINAL = "original."
LIMITS = ("min", "max")
SCRIPT_COLUMNS = ("letters", "unspaced_letters")


@dataclass
class Verdict:
    """What one rule says about every document.

    Attributes:
        value: float64, what was held against the limits.
        threshold: float64, the limit that was passed (of no meaning where `failed` is False).
        failed: bool.
    """

    value: np.ndarray
    threshold: np.ndarray
    failed: np.ndarray


@dataclass
class Evaluator:
    """The document rules of all policies, ready for batches.

    Attributes:
        order: the rules in the order in which they decide.
        word_lists: the different lists of words that rules count.
    """

    policies: Sequence[Policy]

    def __post_init__(self) -> None:
        names = dict.fromkeys(name for policy in self.policies for name in policy.document_rules)
        last = names.pop(LAST_RULE, False) is None
        self.order: list[str] = [*names, *([LAST_RULE] if last else [])]
        self.word_lists: list[tuple[str, ...]] = []
        # Which list counts for which policy, by slot.
        self._lists = np.full((len(self.policies), WORD_SLOTS), -1, np.int32)
        for number, policy in enumerate(self.policies):
            for name, parameters in policy.document_rules.items():
                if hasattr(load_rule(name), "WORD_SLOT"):
                    words = tuple(parameters.words)
                    if words not in self.word_lists:
                        self.word_lists.append(words)
                    self._lists[number, load_rule(name).WORD_SLOT] = self.word_lists.index(words)

    @property
    def edits(self) -> bool:
        """Tell whether any policy changes texts."""
        return any(policy.line_rules for policy in self.policies)

    def families(self, text: str) -> Family:
        """Return which statistics of the original or the edited text the rules need."""
        needed: set[str] = set()
        for policy in self.policies:
            for name, parameters in policy.document_rules.items():
                for column in load_rule(name).COLUMNS:
                    about = "original" if column.startswith(ORIGINAL) else parameters.text
                    if about == text or (text == "original" and not self.edits):
                        needed.add(column.removeprefix(ORIGINAL))
        return families_of(needed)

    def lists_of(self, policy_of_document: np.ndarray) -> np.ndarray:
        """Return the word lists of each document, int32 of shape [documents, slots]."""
        return self._lists[policy_of_document]

    def line_actions(self) -> list[dict[str, float]]:
        """Return the line actions of each policy, for `edit_lines`."""
        return [
            {name: load_rule(name).limit(parameters) for name, parameters in policy.line_rules.items()}
            for policy in self.policies
        ]

    def verdicts(
        self,
        original: Mapping[str, np.ndarray],
        edited: Mapping[str, np.ndarray],
        policy_of_document: np.ndarray,
        detected: Mapping[str, np.ndarray] | None = None,
    ) -> dict[str, Verdict]:
        """Apply every rule to every document, in order.

        Args:
            original, edited: the statistics of the texts before and after the line rules.
            policy_of_document: int32.
            detected: the scores of models.
        """
        unspaced = is_unspaced(original)
        original = {**original, **(detected or {})}
        texts = {
            "original": {**original, **{f"{ORIGINAL}{name}": column for name, column in original.items()}},
            "edited": {**edited, **{f"{ORIGINAL}{name}": column for name, column in original.items()}},
        }
        present = set(np.unique(policy_of_document).tolist())
        return {name: self._verdict(name, texts, unspaced, policy_of_document, present) for name in self.order}

    def _verdict(
        self,
        name: str,
        texts: Mapping[str, Mapping[str, np.ndarray]],
        unspaced: np.ndarray,
        policy_of_document: np.ndarray,
        present: set[int],
    ) -> Verdict:
        documents = len(policy_of_document)
        value = np.zeros(documents)
        applies = np.zeros(documents, np.bool_)
        own_lower = np.full(documents, np.nan)
        lower = np.full(len(self.policies), -math.inf)
        upper = np.full(len(self.policies), math.inf)
        groups: dict[str, tuple[Any, list[int]]] = {}
        for number, policy in enumerate(self.policies):
            parameters = policy.rules.get(name)
            if parameters is None or number not in present:
                continue
            lower[number] = _limit(parameters, "min", -math.inf)
            upper[number] = _limit(parameters, "max", math.inf)
            rest = {key: item for key, item in to_mapping(parameters).items() if key not in LIMITS}
            groups.setdefault(repr(rest), (parameters, []))[1].append(number)
        for parameters, numbers in groups.values():
            rows = np.isin(policy_of_document, numbers) if len(present) > 1 else np.ones(documents, np.bool_)
            if parameters.scripts != "all":
                rows &= unspaced == (parameters.scripts == "unspaced")
            columns = texts[parameters.text]
            rule = load_rule(name)
            np.copyto(value, rule.value(columns, parameters), where=rows)
            if hasattr(rule, "lower"):
                np.copyto(own_lower, rule.lower(columns, parameters), where=rows)
            applies |= rows
        low, high = lower[policy_of_document], upper[policy_of_document]
        low = np.where(np.isnan(own_lower), low, own_lower)
        below = value < low
        return Verdict(value, np.where(below, low, high), applies & (below | (value > high)))


def _limit(parameters: Any, name: str, default: float) -> float:
    limit = getattr(parameters, name, None)
    return default if limit is None else float(limit)


def deciding_rule(verdicts: Mapping[str, Verdict], documents: int) -> np.ndarray:
    """Return the number of the first rule that fails each document, -1 where none does (int32)."""
    decided = np.full(documents, -1, np.int32)
    for number, verdict in enumerate(verdicts.values()):
        decided[(decided < 0) & verdict.failed] = number
    return decided


def all_reasons(verdicts: Mapping[str, Verdict], rows: np.ndarray) -> pa.Array:
    """Return, for the documents at `rows`, every failed rule with value and threshold as a JSON list."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def text(value: str) -> pa.Scalar:
        return pa.scalar(value, pa.large_string())

    parts = []
    for name, verdict in verdicts.items():
        failed = verdict.failed[rows]
        if not failed.any():
            continue
        value, threshold = (
            pc.cast(pa.array(numbers[rows], mask=~failed), pa.large_string())
            for numbers in (verdict.value, verdict.threshold)
        )
        opening, middle = text(f'{{"reason": "{name}", "value": '), text(', "threshold": ')
        parts.append(pc.binary_join_element_wise(opening, value, middle, threshold, text("}"), text("")))
    if not parts:
        return pa.array(["[]"] * len(rows), pa.large_string())
    joined = pc.binary_join_element_wise(*parts, text(", "), null_handling="skip")
    return pc.binary_join_element_wise(text("["), joined, text("]"), text(""))

"""The columns of rules that count phrases of a list: each document by the list of its source's policy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from llmctl.filtering.policy import Policy, policy_of
from llmctl.filtering.rules import load_rule
from llmctl.text.buffers import text_buffers
from llmctl.text.phrases import Automaton, compile_phrases, count_phrases

if TYPE_CHECKING:
    import pyarrow as pa

PHRASE_RULES = ("abusive_words", "bad_words", "restriction_notices")


def phrase_rules(policies: Sequence[Policy]) -> list[str]:
    """Return the rules with a list that a policy has."""
    return [name for name in PHRASE_RULES if any(name in policy.rules for policy in policies)]


def phrases_of(policy: Policy, rule: str) -> tuple[str, ...]:
    """Return the list of a rule in a policy; nothing where the rule is off."""
    parameters = policy.rules.get(rule)
    if parameters is None:
        return ()
    return tuple(parameters.phrases if rule == "restriction_notices" else parameters.words)


def identity(policies: Sequence[Policy], rule: str) -> str:
    """Return what the rule's column depends on beside the texts: which list is for which sources."""
    lists = [[policy.pattern, phrases_of(policy, rule)] for policy in policies]
    return hashlib.sha256(json.dumps(lists).encode()).hexdigest()[:32]


def count_listed(table: pa.Table, policies: Sequence[Policy], rule: str) -> dict[str, np.ndarray]:
    """Return {column of the rule: float64 of shape [documents]}."""
    import pyarrow as pa

    counts = np.zeros(table.num_rows)
    if table.num_rows:
        sources = table.column("source").combine_chunks().dictionary_encode()
        numbers = np.array([policy_of(name, policies) for name in sources.dictionary.to_pylist()], np.int64)
        policy_of_document = numbers[sources.indices.to_numpy()]
        for number in np.unique(policy_of_document).tolist():
            phrases = phrases_of(policies[number], rule)
            rows = np.flatnonzero(policy_of_document == number)
            texts = table.column("text")
            if len(rows) < table.num_rows:
                texts = texts.take(pa.array(rows))
            counts[rows] = count_phrases(*text_buffers(texts), _automaton(phrases)) if phrases else 0
    return {load_rule(rule).PHRASES_COLUMN: counts}


@lru_cache(maxsize=16)
def _automaton(phrases: tuple[str, ...]) -> Automaton:
    return compile_phrases(phrases)

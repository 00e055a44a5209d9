"""The repetition limits of the `gopher` preset are those of MassiveText, table A1 (Rae et al. 2021)."""

from __future__ import annotations

import pytest

from llmctl.filtering.policy import read_preset

TABLE_A1 = {
    "duplicate_lines": 0.30,
    "duplicate_paragraphs": 0.30,
    "duplicate_line_chars": 0.20,
    "duplicate_paragraph_chars": 0.20,
    "top_2gram": 0.20,
    "top_3gram": 0.18,
    "top_4gram": 0.16,
    "duplicate_5gram": 0.15,
    "duplicate_6gram": 0.14,
    "duplicate_7gram": 0.13,
    "duplicate_8gram": 0.12,
    "duplicate_9gram": 0.11,
    "duplicate_10gram": 0.10,
}


@pytest.mark.parametrize(("rule", "limit"), TABLE_A1.items())
def test_limit_is_the_published_one(rule: str, limit: float) -> None:
    assert read_preset("gopher")["rules"][rule]["max"] == limit

"""in = kept + removed + invalid, whatever order blocks are merged in."""

from __future__ import annotations

import json

import pytest

from llmctl.artifacts.accounting import Accounting, enforce_invalid_share, merge_all
from llmctl.errors import LimitPassed, RunFailed


def block(path, kept, removed, invalid, error="not JSON: at 3"):
    part = Accounting()
    part.add_file(path, kept=kept, removed=removed, invalid=invalid)
    part.add_group("web", "en", **{"in": kept + removed, "kept": kept})
    part.reasons.update({"short": removed} if removed else {})
    part.errors.update({error: invalid} if invalid else {})
    return part


def test_sums_hold_in_any_order():
    parts = [block("a", 3, 1, 0), block("b", 0, 0, 2, "not JSON: at 9"), block("a", 5, 5, 1)]
    forward, backward = merge_all(parts), merge_all(reversed(parts))
    assert forward.to_mapping() == backward.to_mapping()
    assert forward.records() == {"in": 17, "kept": 8, "removed": 6, "invalid": 3}
    assert forward.files["a"] == {"in": 15, "kept": 8, "removed": 6, "invalid": 1}
    forward.check()


def test_round_trip_through_json():
    total = merge_all([block("a", 3, 1, 4), block("b", 2, 0, 0)])
    again = Accounting.from_mapping(json.loads(json.dumps(total.to_mapping())))
    assert again.to_mapping() == total.to_mapping()
    again.check()


def test_errors_are_counted_by_kind_with_one_example():
    total = merge_all(
        [block("a", 0, 0, 1, "not JSON: z"), block("b", 0, 0, 2, "not JSON: a"), block("c", 0, 0, 1, "odd")]
    )
    mapping = total.to_mapping()
    assert mapping["by_error"] == {"not JSON": 3, "odd": 1}
    assert mapping["error_examples"] == {"not JSON": "not JSON: a"}


def test_a_lost_record_is_a_failure():
    lost = block("a", 3, 1, 0)
    lost.files["a"]["in"] += 1
    with pytest.raises(RunFailed, match="unaccounted"):
        lost.check()
    unexplained = block("a", 3, 1, 0)
    unexplained.reasons.clear()
    with pytest.raises(RunFailed, match="1 records removed, 0 with a reason"):
        unexplained.check()


def test_warnings_name_invalid_records_and_vanished_sources(capsys):
    total = merge_all([block("a", 0, 0, 2, "no field `text`: the fields are body, url")])
    total.add_group("rare", "mn", **{"in": 100, "kept": 1})
    total.warn()
    said = capsys.readouterr().err
    assert "2 of 2 records are invalid (2 × no field `text`)" in said
    assert "the fields are body, url" in said and "--set read.text_field=" in said
    assert "source `rare` is nearly wiped out: 1 of 100" in said
    assert "language `mn` is nearly wiped out" in said
    assert "`web`" not in said


def test_the_limit_for_invalid_records():
    enforce_invalid_share({"in": 0, "invalid": 0}, 0.05)
    enforce_invalid_share({"in": 100, "invalid": 5}, 0.05)
    with pytest.raises(LimitPassed, match="6 of 100"):
        enforce_invalid_share({"in": 100, "invalid": 6}, 0.05)

"""The folder of rules is their register: each has a page, thresholds, and can be built from a configuration."""

from __future__ import annotations

import re

import pytest

from llmctl.config.schema import fields_of
from llmctl.diagnosis.config import DiagnoseConfig
from llmctl.diagnosis.registry import build_rule, page_of, rule_classes, summary_of
from llmctl.diagnosis.stage import diagnose
from llmctl.errors import UserError


@pytest.mark.parametrize("name", sorted(rule_classes()))
def test_a_page_has_its_sections(name: str) -> None:
    page = page_of(name)
    for section in ("Signal:", "Look-alikes:", "Cause:", "Fix:", "Source:"):
        assert re.search(rf"^{section} \S", page, re.MULTILINE), section
    assert summary_of(name).endswith(".")
    assert all(field.opt.help for field in fields_of(rule_classes()[name]))


def test_unknown_rules_and_thresholds_name_the_nearest(tmp_path, make_pretraining) -> None:
    run = make_pretraining(30).write(tmp_path / "run")
    with pytest.raises(UserError, match="los_spike") as failure:
        diagnose(run, DiagnoseConfig(rules=["los_spike"]))
    assert "loss_spike" in str(failure.value.hint)
    with pytest.raises(UserError, match="sigma") as failure:
        build_rule("loss_spike", {"sigma": 3})
    assert "sigmas" in str(failure.value.hint)


def test_thresholds_change_the_verdict(tmp_path, make_pretraining) -> None:
    run = make_pretraining(400)
    run["data_time_s"] += 0.06
    run["step_time_s"] += 0.06
    folder = run.write(tmp_path / "run")
    assert diagnose(folder, DiagnoseConfig()).findings == []
    strict = DiagnoseConfig(rules=["data_wait"], thresholds={"data_wait": {"share": 0.05}})
    assert [finding.rule for finding in diagnose(folder, strict).findings] == ["data_wait"]

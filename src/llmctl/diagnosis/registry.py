"""The rules: each file in ``rules/`` is one, and its name is the file's name."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Protocol

from llmctl.config.load import build
from llmctl.diagnosis.evidence import MIN_STEPS, Evidence
from llmctl.diagnosis.findings import Finding
from llmctl.errors import unknown_name


class DiagnosisRule(Protocol):
    """What a rule file's class ``Rule`` (a dataclass whose fields are its thresholds) must have.

    Attributes:
        needs: what a run must have logged for the rule to judge; alternatives stand joined by ``|``.
    """

    needs: ClassVar[tuple[str, ...]]

    def check(self, evidence: Evidence) -> list[Finding]:
        """Return what is wrong; an empty list for a healthy run."""
        ...


@cache
def rule_classes() -> dict[str, type]:
    """Return every rule's class by name, sorted."""
    folder = Path(__file__).parent / "rules"
    names = sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))
    return {name: importlib.import_module(f"llmctl.diagnosis.rules.{name}").Rule for name in names}


def build_rule(name: str, thresholds: Mapping[str, Any] | None = None) -> DiagnosisRule:
    """Return a rule with its thresholds.

    Raises:
        UserError: no such rule, or no such threshold.
    """
    classes = rule_classes()
    if name not in classes:
        raise unknown_name("diagnosis rule", name, classes)
    rule: DiagnosisRule = build(classes[name], thresholds or {}, f"thresholds.{name}.")
    return rule


def page_of(name: str) -> str:
    """Return a rule's page: its file's docstring, and its thresholds with their defaults.

    Raises:
        UserError: no such rule.
    """
    from llmctl.config.schema import fields_of

    classes = rule_classes()
    if name not in classes:
        raise unknown_name("diagnosis rule", name, classes)
    lines = [name, "", inspect.getdoc(sys.modules[classes[name].__module__]) or ""]
    fields = fields_of(classes[name])
    if fields:
        lines += ["", "Thresholds (--set thresholds." + name + ".NAME=VALUE):"]
        lines += [f"  {field.name} = {field.default_value}: {field.opt.help}" for field in fields]
    return "\n".join(lines)


def summary_of(name: str) -> str:
    """Return the first line of a rule's page."""
    return (sys.modules[rule_classes()[name].__module__].__doc__ or "").strip().partition("\n")[0]


def lacking(rule: DiagnosisRule, evidence: Evidence) -> list[str]:
    """Return what a rule needs and the run has not logged."""
    missing = []
    for need in rule.needs:
        if not any(_is_there(name, evidence) for name in need.split("|")):
            missing.append(need.replace("|", " or "))
    return missing


def _is_there(name: str, evidence: Evidence) -> bool:
    if name == "validation":
        return bool(evidence.validation_loss())
    if name == "hang":
        return bool(evidence.hang)
    if name == "ranks":
        return len(evidence.ranks) > 1
    if name == "steps":
        return evidence.num_steps >= MIN_STEPS
    return name in evidence.metrics

"""Resolve presets and overrides into policies: which rules with which limits apply to which source."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmctl.config.load import build, read_yaml
from llmctl.config.schema import to_mapping
from llmctl.errors import UserError, unknown_name
from llmctl.filtering.rules import CLASSIFIER_PREFIX, is_line_rule, load_rule

if TYPE_CHECKING:
    from llmctl.filtering.config import FilterConfig
    from llmctl.filtering.models import Models

PRESETS_FOLDER = Path(__file__).parent / "presets"
NO_PRESET = "none"
FIRST_RULE = "empty"
LAST_RULE = "nothing_left"


@dataclass(frozen=True)
class Policy:
    """The rules that apply to one group of sources, in the order in which they decide.

    Attributes:
        pattern: the source, or pattern of sources, that it is for; ``*`` for the default.
        rules: rule → its parameters (an instance of the rule's ``Parameters``).
    """

    pattern: str
    rules: dict[str, Any]

    @property
    def line_rules(self) -> dict[str, Any]:
        """Return the rules that drop or change lines."""
        return {name: parameters for name, parameters in self.rules.items() if is_line_rule(name)}

    @property
    def document_rules(self) -> dict[str, Any]:
        """Return the rules that remove documents."""
        return {name: parameters for name, parameters in self.rules.items() if not is_line_rule(name)}

    def to_mapping(self) -> dict[str, Any]:
        """Return the rules as plain values."""
        return {name: to_mapping(parameters) for name, parameters in self.rules.items()}


def preset_names() -> list[str]:
    """Return the names of the presets that ship."""
    return sorted(path.stem for path in PRESETS_FOLDER.glob("*.yaml"))


def read_preset(name: str) -> dict[str, Any]:
    """Return a preset's file: ``description``, ``source``, ``rules``, perhaps ``include``.

    Raises:
        UserError: there is no such preset.
    """
    if name not in preset_names():
        raise unknown_name("preset", name, [*preset_names(), NO_PRESET])
    return deepcopy(_shipped_preset(name))


@cache
def _shipped_preset(name: str) -> dict[str, Any]:
    # Every block resolves its policies; parsing takes longer than a small block's rules.
    return read_yaml(PRESETS_FOLDER / f"{name}.yaml")


def resolve_policies(config: FilterConfig, models: Models | None = None) -> list[Policy]:
    """Return the default policy (first) and those of single sources, in the order of the configuration.

    Args:
        config: presets and changes.
        models: the classifiers that are there; they bring thresholds of their own. A preset's limits for a classifier
            that is not there do not apply.

    Raises:
        UserError: an unknown preset, rule or parameter, or a value of the wrong type.
    """
    base = _with_models(preset_rules(config.preset), models)
    listed = [part.strip() for entry in config.languages for part in entry.split(",") if part.strip()]
    if listed:
        base = _merged(base, {"language": {"languages": listed}}, "languages")
    base = _merged(base, _sensitive(config), "pii")
    if config.templates == "drop":
        base = _merged(base, {"template": {}}, "templates")
    if config.drop_clusters:
        base = _merged(base, {"cluster": {"drop": list(config.drop_clusters)}}, "drop_clusters")
    default = _merged(base, config.rules, "rules")
    policies = [_policy("*", default, "rules")]
    for pattern, changes in config.sources.items():
        where = f"sources.{pattern}"
        if not isinstance(changes, Mapping):
            raise UserError(
                f"`{where}` must be a section of rules, got {changes!r}", "write `rule: {max: 0.2}` or `rule: off`"
            )
        changes = dict(changes)
        base = default
        if "preset" in changes:
            names = changes.pop("preset")
            base = _with_models(preset_rules([names] if isinstance(names, str) else names), models)
        policies.append(_policy(pattern, _merged(base, changes, where), where))
    return policies


def _sensitive(config: FilterConfig) -> dict[str, Any]:
    """Return the rule that `--pii` and its companions stand for.

    Raises:
        UserError: companions without `--pii`.
    """
    types = [part.strip() for entry in config.pii_types for part in entry.split(",") if part.strip()]
    if config.pii == "off":
        if types or config.pii_consistent:
            raise UserError(
                "`--pii-types` and `--pii-consistent` say how `--pii` works, which is off", "add --pii mask"
            )
        return {}
    changes = {"mode": config.pii, "consistent": config.pii_consistent, **({"types": types} if types else {})}
    return {"sensitive_entities": changes}


def policy_of(source: str, policies: Sequence[Policy]) -> int:
    """Return which policy is for a source: one of that name, else the first pattern that fits, else the default."""
    for number, policy in enumerate(policies[1:], 1):
        if policy.pattern == source:
            return number
    for number, policy in enumerate(policies[1:], 1):
        if fnmatch.fnmatchcase(source, policy.pattern):
            return number
    return 0


def _with_models(rules: Mapping[str, dict[str, Any]], models: Models | None) -> dict[str, dict[str, Any]]:
    own = models.defaults() if models else {}
    there = {name: change for name, change in rules.items() if not name.startswith(CLASSIFIER_PREFIX) or name in own}
    return _merged(own, there, "rules")


def preset_rules(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the rules of presets, a later one over an earlier one."""
    rules: dict[str, dict[str, Any]] = {}
    for name in names:
        if name == NO_PRESET:
            continue
        preset = read_preset(name)
        rules = _merged(rules, preset_rules(preset.get("include", [])), name)
        rules = _merged(rules, preset["rules"], name)
    return rules


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any], where: str) -> dict[str, dict[str, Any]]:
    rules = deepcopy(dict(base))
    for name, change in _by_rule(changes, where):
        load_rule(name)
        if change is False or (isinstance(change, str) and change.lower() == "off"):
            # Kept as a mark, because two rules apply unless they are switched off.
            rules[name] = {"off": True}
        elif change is True or change is None or (isinstance(change, str) and change.lower() == "on"):
            rules[name] = {} if rules.get(name, {}).get("off") else rules.get(name, {})
        elif isinstance(change, Mapping):
            known = {} if rules.get(name, {}).get("off") else rules.get(name, {})
            rules[name] = {**known, **change}
        else:
            raise UserError(
                f"`{where}.{name}` must be a section of parameters, `on` or `off`, got {change!r}",
                f"write `{name}: {{max: 0.2}}` or `{name}: off`",
            )
    return rules


def _by_rule(changes: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    """Yield the changes by rule: those below `classifier` are for the rule of the classifier of that name."""
    for name, change in changes.items():
        if name != CLASSIFIER_PREFIX.rstrip("."):
            yield name, change
        elif isinstance(change, Mapping):
            yield from ((f"{CLASSIFIER_PREFIX}{label}", inner) for label, inner in change.items())
        else:
            raise UserError(
                f"`{where}.classifier` must be a section by classifier, got {change!r}",
                "write `classifier: {spam: {max: 0.5}}`",
            )


def _policy(pattern: str, rules: Mapping[str, dict[str, Any]], where: str) -> Policy:
    names = [FIRST_RULE, *(name for name in rules if name not in (FIRST_RULE, LAST_RULE)), LAST_RULE]
    active = {}
    for name in names:
        values = rules.get(name, {})
        if not values.get("off"):
            active[name] = build(load_rule(name).Parameters, values, f"{where}.{name}.")
    if not any(is_line_rule(name) for name in active) and LAST_RULE not in rules:
        active.pop(LAST_RULE, None)
    return Policy(pattern, active)

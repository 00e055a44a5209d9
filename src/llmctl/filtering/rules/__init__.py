"""The filter rules: one file each, and the folder is the registry."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from types import ModuleType

from llmctl.errors import unknown_name


@cache
def rule_names() -> tuple[str, ...]:
    """Return the names of all rules, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


@cache
def load_rule(name: str) -> ModuleType:
    """Return the module of a rule.

    Raises:
        UserError: there is no such rule; the hint names the nearest.
    """
    if name not in rule_names():
        raise unknown_name("filter rule", name, rule_names())
    return importlib.import_module(f"{__name__}.{name}")


def is_line_rule(name: str) -> bool:
    """Tell whether a rule works on lines."""
    return hasattr(load_rule(name), "limit")

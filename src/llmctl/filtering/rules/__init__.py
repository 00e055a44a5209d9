"""The filter rules: one file each, and the folder is the registry."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from llmctl.errors import unknown_name

if TYPE_CHECKING:
    import numpy as np

# In a policy there is one such rule for each classifier.
CLASSIFIER_PREFIX = "classifier."


@dataclass(frozen=True)
class NamedRule:
    """The rule `classifier` for the classifier of one name; it has what a rule's module has."""

    module: ModuleType
    name: str

    @property
    def Parameters(self) -> Any:
        """Return the class of the rule's parameters."""
        return self.module.Parameters

    @property
    def COLUMNS(self) -> tuple[str, ...]:
        """Return the columns that the rule needs."""
        return (self.name,)

    def value(self, columns: Mapping[str, np.ndarray], parameters: Any) -> np.ndarray:
        """Return what is held against the limits."""
        values: np.ndarray = self.module.value({"classifier": columns[self.name]}, parameters)
        return values


@cache
def rule_names() -> tuple[str, ...]:
    """Return the names of all rules, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


@cache
def load_rule(name: str) -> Any:
    """Return the module of a rule; for ``classifier.NAME`` the rule of that classifier.

    Raises:
        UserError: there is no such rule; the hint names the nearest.
    """
    if name.startswith(CLASSIFIER_PREFIX):
        return NamedRule(importlib.import_module(f"{__name__}.classifier"), name)
    if name not in rule_names():
        raise unknown_name("filter rule", name, rule_names())
    return importlib.import_module(f"{__name__}.{name}")


def is_line_rule(name: str) -> bool:
    """Tell whether a rule works on lines."""
    return hasattr(load_rule(name), "limit")

"""The catalogue of sensitive entities: every type by name, in the order of the families."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from functools import cache

from llmctl.errors import UserError, unknown_name
from llmctl.filtering.pii import families
from llmctl.filtering.pii.entity import Entity

# Where two types claim the same characters, the one whose family comes first has them (after confidence and length).
FAMILIES = (
    "secrets",
    "crypto",
    "payment",
    "identity_asia",
    "identity_europe",
    "identity_americas",
    "documents",
    "contact",
    "network",
    "vehicles",
    "legal",
    "personal",
)
ALL = "all"
DEFAULT = "default"
CONFIDENCES = ("high", "medium", "low")


@cache
def family_names() -> tuple[str, ...]:
    """Return the names of the families, in the catalogue's order."""
    found = {module.name for module in pkgutil.iter_modules(families.__path__)}
    return (*FAMILIES, *sorted(found - set(FAMILIES)))


@cache
def entities() -> tuple[Entity, ...]:
    """Return every entity of every family; a type may consist of several."""
    return tuple(entity for name in family_names() for entity in entities_of(name))


def entities_of(family: str) -> tuple[Entity, ...]:
    """Return the entities of one family."""
    found: tuple[Entity, ...] = importlib.import_module(f"{families.__name__}.{family}").ENTITIES
    return found


@cache
def type_names() -> tuple[str, ...]:
    """Return the names of all types, in the catalogue's order."""
    return tuple(dict.fromkeys(entity.name for entity in entities()))


def selected_types(names: Sequence[str]) -> tuple[str, ...]:
    """Return the types that some names stand for, in the catalogue's order.

    Args:
        names: types, families, ``all``, ``default`` (all but those of low confidence), ``high``, ``medium``, ``low``
            (of that confidence); a ``-`` before a name takes it away again.

    Raises:
        UserError: an unknown name, or nothing left.
    """
    chosen: set[str] = set()
    if names and all(name.startswith("-") for name in names):
        names = [DEFAULT, *names]
    for name in names:
        stripped = name.removeprefix("-")
        if stripped == name:
            chosen |= _members(stripped)
        else:
            chosen -= _members(stripped)
    if not chosen:
        raise UserError("`--pii-types` leaves no type", f"the default is `{DEFAULT}`; `{ALL}` takes every type")
    return tuple(name for name in type_names() if name in chosen)


def _members(name: str) -> set[str]:
    if name in type_names():
        return {name}
    if name in family_names():
        return {entity.name for entity in entities_of(name)}
    if name == ALL:
        return set(type_names())
    low = {entity.name for entity in entities() if entity.confidence == "low"}
    if name == DEFAULT:
        return set(type_names()) - low
    if name in CONFIDENCES:
        return {entity.name for entity in entities() if entity.confidence == name}
    raise unknown_name("type of sensitive entity", name, [*type_names(), *family_names(), ALL, DEFAULT, *CONFIDENCES])

"""Declare configuration: one typed dataclass field gives the YAML key, the flag, the help text and the reference page.

    @dataclass
    class FilterConfig:
        '''What one filter run keeps.'''
        min_words: Annotated[int, Opt("Fewest words of a kept document.", min=0)] = 50

A field without `Opt` is a fault of ours (``tests/architecture`` says so). Nothing heavy is imported here.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin


@dataclass(frozen=True)
class Opt:
    """Describe one configuration field.

    Args:
        help: one sentence, shown by ``--help`` and in the reference; gives the unit and the source of a number.
        min, max: inclusive bounds of a number.
        choices: the allowed values of a string (``Literal`` types give theirs by themselves).
        flag: False keeps the field out of the command line (YAML and ``--set`` still reach it).
        aliases: other long flags that mean the same, such as ``("--max-steps",)``.
        size: the value is a number of bytes and may be written ``200MB`` or ``1.5GiB``.
        identity: False for fields that cannot change the output's bytes; they may differ between a run
            and its resumption.
    """

    help: str
    min: float | None = None
    max: float | None = None
    choices: tuple[str, ...] | None = None
    flag: bool = True
    aliases: tuple[str, ...] = ()
    size: bool = False
    identity: bool = True


@dataclass(frozen=True)
class Field:
    """One resolved configuration field."""

    name: str
    type: Any
    opt: Opt
    default: Any
    required: bool

    @property
    def is_section(self) -> bool:
        """Tell whether the field is a nested configuration class."""
        return dataclasses.is_dataclass(self.type)

    @property
    def optional(self) -> bool:
        """Tell whether None is a legal value."""
        return type(None) in get_args(self.type)

    @property
    def base_type(self) -> Any:
        """Return the type without ``| None``."""
        return strip_none(self.type)

    @property
    def choices(self) -> tuple[str, ...] | None:
        """Return the allowed values, if the field is an enumeration."""
        if get_origin(self.base_type) is Literal:
            return tuple(get_args(self.base_type))
        return self.opt.choices

    @property
    def default_value(self) -> Any:
        """Return a fresh copy of the default."""
        return self.default() if callable(self.default) else self.default


def strip_none(annotation: Any) -> Any:
    """Return `annotation` without ``| None``."""
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [item for item in get_args(annotation) if item is not type(None)]
        return rest[0] if len(rest) == 1 else Union[tuple(rest)]  # noqa: UP007 - built at run time
    return annotation


def fields_of(config_class: type) -> tuple[Field, ...]:
    """Return the fields of a configuration class, in order of declaration."""
    found = _resolved.get(config_class)
    if found is None:
        found = _resolved[config_class] = _resolve(config_class)
    return found


_resolved: dict[type, tuple[Field, ...]] = {}


def _resolve(config_class: Any) -> tuple[Field, ...]:
    hints = typing.get_type_hints(config_class, include_extras=True)
    resolved = []
    for field in dataclasses.fields(config_class):
        annotation = hints[field.name]
        opt = None
        if hasattr(annotation, "__metadata__"):
            opt = next((item for item in annotation.__metadata__ if isinstance(item, Opt)), None)
            annotation = annotation.__origin__
        if opt is None:
            raise TypeError(f"{config_class.__name__}.{field.name} has no Opt")
        has_factory = field.default_factory is not dataclasses.MISSING
        has_default = field.default is not dataclasses.MISSING
        default: Any = field.default_factory if has_factory else (field.default if has_default else None)
        resolved.append(Field(field.name, annotation, opt, default, not (has_default or has_factory)))
    return tuple(resolved)


def walk(config_class: type, prefix: str = "") -> Iterator[tuple[str, Field]]:
    """Yield every leaf field as (dotted key, field)."""
    for field in fields_of(config_class):
        key = f"{prefix}{field.name}"
        if field.is_section:
            yield from walk(field.type, f"{key}.")
        else:
            yield key, field


def to_mapping(config: Any, *, identity_only: bool = False) -> dict[str, Any]:
    """Turn a configuration into plain values for YAML and JSON.

    Args:
        config: an instance of a configuration class.
        identity_only: leave out the fields that cannot change the output (``Opt(identity=False)``).
    """
    mapping: dict[str, Any] = {}
    for field in fields_of(type(config)):
        if identity_only and not field.opt.identity:
            continue
        value = getattr(config, field.name)
        mapping[field.name] = _plain(value, identity_only)
    return mapping


def _plain(value: Any, identity_only: bool) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_mapping(value, identity_only=identity_only)
    if isinstance(value, dict):
        return {str(key): _plain(item, identity_only) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, identity_only) for item in value]
    return value


def to_yaml(config: Any) -> str:
    """Write a configuration as YAML that ``--config`` takes back."""
    import yaml

    return yaml.safe_dump(to_mapping(config), sort_keys=False, allow_unicode=True)

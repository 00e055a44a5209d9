"""Build a configuration: defaults < ``--config FILE`` < ``--set a.b=v`` < flags, checked strictly.

Unknown keys fail with the nearest known one, wrong types with what was expected. Lists replace, sections merge.
No environment variables are read.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from llmctl.config.schema import Field, fields_of, strip_none, to_mapping
from llmctl.errors import UserError, unknown_name

ConfigT = TypeVar("ConfigT")

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(i?)[bB]?\s*$")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str) -> int:
    """Read a number of bytes: ``200MB`` = 200·10⁶, ``256MiB`` = 256·2²⁰, ``1024``."""
    match = _SIZE.match(text)
    if match is None:
        raise ValueError(text)
    number, unit, binary = match.groups()
    base = 1024 if binary else 1000
    return int(float(number) * base ** _POWERS[unit.lower()])


def load(
    config_class: type[ConfigT],
    file: Path | str | None = None,
    assignments: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
    stage: str | None = None,
) -> ConfigT:
    """Resolve a configuration.

    Args:
        config_class: the dataclass to build.
        file: a YAML file, or the name of a shipped one (``configs/<stage>/<name>.yaml``).
        assignments: ``--set`` values, each ``a.b=value`` with the value in YAML.
        flags: values given on the command line by dotted key; None means "not given".
        stage: where shipped configurations are looked up.

    Raises:
        UserError: a file that cannot be read, an unknown key, or a value of the wrong type or out of bounds.
    """
    mapping: dict[str, Any] = {}
    if file is not None:
        mapping = read_yaml(find_config(file, stage))
    for assignment in assignments:
        key, value = parse_assignment(assignment)
        _assign(mapping, key.split("."), value, key)
    for key, value in (flags or {}).items():
        if value is not None:
            _assign(mapping, key.split("."), value, key)
    return build(config_class, mapping)


def shipped_configs(stage: str) -> dict[str, Path]:
    """Return the configurations that ship with llmctl for a stage, by name."""
    package = Path(__file__).resolve().parents[1]
    for root in (package / "configs", package.parents[1] / "configs"):
        if (root / stage).is_dir():
            return {path.stem: path for path in sorted((root / stage).glob("*.yaml"))}
    return {}


def find_config(file: Path | str, stage: str | None) -> Path:
    """Return the path of a configuration given by path or by shipped name."""
    path = Path(file)
    if path.is_file():
        return path
    shipped = shipped_configs(stage) if stage else {}
    if str(file) in shipped:
        return shipped[str(file)]
    if shipped:
        raise UserError(f"no such configuration: {file}", f"give a YAML file, or one that ships: {', '.join(shipped)}")
    raise UserError(f"no such configuration file: {file}", "give the path of a YAML file")


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping safely (no tags that run code)."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise UserError(f"cannot read {path}: {failure}", "give a readable YAML file in UTF-8") from None
    try:
        loaded = yaml.load(text, Loader=_strict_loader())
    except yaml.YAMLError as failure:
        mark = getattr(failure, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(failure, "problem", None) or "not YAML"
        raise UserError(f"{path}{where}: {problem}", "put the YAML right and try again") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise UserError(f"{path} holds a {type(loaded).__name__}, not keys and values", "write `key: value` lines")
    return loaded


def _strict_loader() -> Any:
    """Return a safe YAML loader that refuses a key written twice."""
    import yaml

    class StrictLoader(yaml.SafeLoader):
        pass

    def construct(loader: Any, node: Any) -> dict[Any, Any]:
        loader.flatten_mapping(node)
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = loader.construct_object(key_node)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key `{key}` stands twice", key_node.start_mark)
            seen.add(key)
        return yaml.SafeLoader.construct_mapping(loader, node, deep=True)

    StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, construct)
    return StrictLoader


def parse_assignment(assignment: str) -> tuple[str, Any]:
    """Split one ``--set`` value into its dotted key and its YAML value."""
    import yaml

    key, separator, text = assignment.partition("=")
    if not separator or not key.strip():
        raise UserError(f"`--set {assignment}` is not of the form key=value", "write --set section.key=value")
    try:
        return key.strip(), yaml.safe_load(text)
    except yaml.YAMLError:
        return key.strip(), text


def _assign(mapping: dict[str, Any], parts: Sequence[str], value: Any, key: str) -> None:
    for part in parts[:-1]:
        inner = mapping.get(part)
        if inner is None:
            inner = mapping[part] = {}
        if not isinstance(inner, dict):
            raise UserError(f"`{key}`: `{part}` is a value, not a section", "set the whole value instead")
        mapping = inner
    mapping[parts[-1]] = value


def build(config_class: type[ConfigT], mapping: Mapping[str, Any], where: str = "") -> ConfigT:
    """Build a configuration from a mapping, and run its ``validate`` method if it has one."""
    fields = {field.name: field for field in fields_of(config_class)}
    values: dict[str, Any] = {}
    for key, value in mapping.items():
        if key not in fields:
            raise unknown_name("configuration key", f"{where}{key}", [f"{where}{name}" for name in fields])
        field = fields[key]
        if field.is_section and isinstance(value, Mapping):
            values[key] = build(field.type, value, f"{where}{key}.")
        elif field.is_section and not isinstance(value, field.type):
            raise UserError(f"`{where}{key}` is a section, got {value!r}", f"write `{where}{key}.NAME=value`")
        else:
            values[key] = coerce(value, field, f"{where}{key}")
    missing = [name for name, field in fields.items() if field.required and name not in values]
    if missing:
        raise UserError(f"`{where}{missing[0]}` must be given", "set it in the configuration file or with --set")
    config = config_class(**values)
    validate = getattr(config, "validate", None)
    if validate is not None:
        validate()
    return config


def coerce(value: Any, field: Field, key: str) -> Any:
    """Check a value against its field and turn it into the declared type.

    Raises:
        UserError: names the key, what was expected and what was given.
    """
    if value is None or (isinstance(value, str) and value.lower() in ("none", "null") and field.optional):
        if field.optional:
            return None
        raise UserError(f"`{key}` must have a value", f"leave it out to take the default, {field.default_value!r}")
    try:
        result = _convert(value, field.base_type, field.opt.size)
    except (ValueError, TypeError):
        raise UserError(
            f"`{key}` must be {_describe(field.base_type, field.opt.size)}, got {value!r}", field.opt.help
        ) from None
    choices = field.choices
    for item in result if isinstance(result, list) else [result]:
        if choices and item not in choices:
            raise unknown_name(f"value of `{key}`", str(item), choices)
        if isinstance(item, (int, float)) and not isinstance(item, bool):
            _check_bounds(item, field.opt.min, field.opt.max, key, field.opt.help)
    return result


def _check_bounds(number: float, low: float | None, high: float | None, key: str, help_text: str) -> None:
    if math.isnan(number):
        raise UserError(f"`{key}` must be a number, got nan", help_text)
    if low is not None and number < low:
        raise UserError(f"`{key}` must be at least {low:g}, got {number:g}", help_text)
    if high is not None and number > high:
        raise UserError(f"`{key}` must be at most {high:g}, got {number:g}", help_text)


def _convert(value: Any, target: Any, size: bool) -> Any:
    origin = get_origin(target)
    if origin is list:
        (item_type,) = get_args(target)
        items = value if isinstance(value, (list, tuple)) else [value]
        return [_convert(item, item_type, size) for item in items]
    if origin is dict:
        if not isinstance(value, Mapping):
            raise TypeError(value)
        value_type = get_args(target)[1]
        return {str(key): _convert(item, value_type, size) for key, item in value.items()}
    if origin is not None and origin.__name__ == "Literal":
        return _word_of(value, get_args(target))
    if dataclasses.is_dataclass(target):
        assert isinstance(target, type)
        return build(target, value)
    if target is Any:
        return value
    return _convert_scalar(value, strip_none(target), size)


def _word_of(value: Any, choices: tuple[Any, ...]) -> Any:
    """Return the word that YAML took for a truth value: `off` and `no` are choices of some keys."""
    if not isinstance(value, bool):
        return value
    words = ("on", "yes", "true") if value else ("off", "no", "false")
    return next((word for word in words if word in choices), value)


def _convert_scalar(value: Any, target: Any, size: bool) -> Any:
    if target is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "yes", "on", "false", "no", "off"):
            return value.lower() in ("true", "yes", "on")
        raise ValueError(value)
    if target is int:
        if isinstance(value, bool):
            raise ValueError(value)
        if isinstance(value, str):
            return parse_size(value) if size else int(value.replace("_", ""))
        if isinstance(value, float) and not value.is_integer():
            raise ValueError(value)
        return int(value)
    if target is float:
        if isinstance(value, bool):
            raise ValueError(value)
        return float(value)  # PyYAML reads `1e-4` as a string
    if target is str:
        if isinstance(value, (bool, Mapping, list)):
            raise ValueError(value)
        return str(value)
    raise TypeError(target)


def _describe(target: Any, size: bool) -> str:
    origin = get_origin(target)
    if origin is list:
        return f"a list, each item {_describe(get_args(target)[0], size)}"
    if origin is dict:
        return "a section of keys and values"
    if size:
        return "a size such as 200MB"
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}.get(target, str(target))


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = "") -> list[str]:
    """List what differs between two configurations, as ``key: theirs → ours``."""
    lines: list[str] = []
    for key in dict.fromkeys([*theirs, *ours]):
        mine, other = ours.get(key), theirs.get(key)
        if isinstance(mine, Mapping) and isinstance(other, Mapping):
            lines += differences(mine, other, f"{prefix}{key}.")
        elif mine != other:
            lines.append(f"{prefix}{key}: {other!r} → {mine!r}")
    return lines


def identity_of(config: Any) -> dict[str, Any]:
    """Return the part of a configuration that decides the output's bytes."""
    return to_mapping(config, identity_only=True)

"""Turn configuration classes into command-line flags.

A command is a plain function ``command(source, output, config, options)``; `stage_command` gives it a flag for each
configuration field (nested fields are reached by ``--set``), the common options, and the strict loading of values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_origin

import typer

from llmctl import console
from llmctl.config.common import RunOptions
from llmctl.config.load import load
from llmctl.config.schema import Field, fields_of, to_yaml

CONFIG_PANEL = "Configuration"
RUN_PANEL = "Run"
# The stages whose OUTPUT may be in object storage; the others write while they train.
DATA_STAGES = ("filter", "dedup", "tokenize", "shard")


def flag_name(name: str) -> str:
    """Return the long flag of a configuration field."""
    return "--" + name.replace("_", "-")


def _flag_type(field: Field) -> Any:
    base = field.base_type
    if get_origin(base) is list:
        return list[str]
    if base is bool:
        return bool | None
    if base in (int, float) and not field.opt.size:
        return base | None
    return str | None


def _help(field: Field) -> str:
    text = field.opt.help
    if field.choices:
        text += f" [{' | '.join(field.choices)}]"
    default = field.default_value
    if default not in (None, "", [], {}) and not field.required:
        text += f" Default: {_shown(default, field)}."
    return text


def _shown(default: Any, field: Field) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    if field.opt.size and isinstance(default, int) and default >= 1000:
        return f"{default / 1e6:g}MB"
    return f"{default:g}" if isinstance(default, float) else str(default)


def config_parameters(config_class: type, panel: str) -> list[inspect.Parameter]:
    """Return one keyword parameter per top-level field that has a flag. Values of None mean "not given"."""
    parameters = []
    for field in fields_of(config_class):
        if field.is_section or not field.opt.flag or get_origin(field.base_type) is dict:
            continue
        names = [flag_name(field.name)]
        if field.base_type is bool:
            names = [f"--{field.name.replace('_', '-')}/--no-{field.name.replace('_', '-')}"]
        names += list(field.opt.aliases)
        is_list = get_origin(field.base_type) is list
        option = typer.Option(
            *names,
            help=_help(field),
            show_default=False,
            rich_help_panel=panel,
            min=field.opt.min if field.base_type is int and not field.opt.size else None,
            max=field.opt.max if field.base_type is int and not field.opt.size else None,
        )
        annotation = Annotated[list[str] | None, option] if is_list else Annotated[_flag_type(field), option]
        parameters.append(
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        )
    return parameters


def _extra_parameters(stage: str) -> list[inspect.Parameter]:
    config_option = typer.Option(
        "--config", help="A YAML file, or the name of a configuration that ships.", rich_help_panel=CONFIG_PANEL
    )
    set_option = typer.Option(
        "--set", metavar="KEY=VALUE", help="Set any configuration key; repeatable.", rich_help_panel=CONFIG_PANEL
    )
    show_option = typer.Option(
        "--print-config", help="Print the resolved configuration as YAML and stop.", rich_help_panel=CONFIG_PANEL
    )
    json_option = typer.Option(
        "--json", help="Print the result on stdout as one JSON object.", rich_help_panel=RUN_PANEL
    )
    quiet_option = typer.Option("--quiet", "-q", help="Say nothing but warnings and errors.", rich_help_panel=RUN_PANEL)
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter("config_file", keyword, default=None, annotation=Annotated[str | None, config_option]),
        inspect.Parameter("assignments", keyword, default=None, annotation=Annotated[list[str] | None, set_option]),
        inspect.Parameter("print_config", keyword, default=False, annotation=Annotated[bool, show_option]),
        inspect.Parameter("json_output", keyword, default=False, annotation=Annotated[bool, json_option]),
        inspect.Parameter("quiet", keyword, default=False, annotation=Annotated[bool, quiet_option]),
    ]


def stage_command(
    config_class: type,
    *,
    stage: str,
    options_class: type | None = RunOptions,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command function that takes its positional arguments, then ``config`` and ``options``.

    Args:
        config_class: the configuration of the stage.
        stage: its name; shipped configurations are found under it.
        options_class: `RunOptions` or a class derived from it; None for commands without run options.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = [
            parameter
            for parameter in inspect.signature(function, eval_str=True).parameters.values()
            if parameter.name not in ("config", "options")
        ]
        config_fields = config_parameters(config_class, CONFIG_PANEL)
        run_fields = config_parameters(options_class, RUN_PANEL) if options_class else []
        config_names = [parameter.name for parameter in config_fields]
        run_names = [parameter.name for parameter in run_fields]

        def command(**values: Any) -> None:
            console.configure(json_output=values.pop("json_output"), quiet=values.pop("quiet"))
            config_file, assignments = values.pop("config_file"), values.pop("assignments") or []
            print_config = values.pop("print_config")
            flags = {name: _given(values.pop(name)) for name in config_names}
            config: Any = load(config_class, config_file, assignments, flags, stage)
            if print_config:
                typer.echo(to_yaml(config), nl=False)
                return
            arguments = dict(values)
            if options_class:
                run_flags = {name: _given(arguments.pop(name)) for name in run_names}
                options: Any = load(options_class, None, (), run_flags)
                options.check_executor(stage)
                arguments["options"] = options
            from llmctl.artifacts.addresses import local_paths

            run = arguments.get("options", RunOptions())
            writes = stage in DATA_STAGES
            with local_paths(arguments, verify=run.verify, overwrite=run.overwrite, writes=writes) as local:
                function(config=config, **local)

        command.__name__ = function.__name__
        command.__doc__ = function.__doc__
        command.config_class = config_class  # type: ignore[attr-defined] # read by the reference generator
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*own, *config_fields, *run_fields, *_extra_parameters(stage)]
        )
        return command

    return decorate


def _given(value: Any) -> Any:
    # typer gives an empty list for a repeatable option that was not used.
    return None if value == [] or value == () else value


def comma_lists(values: Sequence[str] | None) -> list[str]:
    """Split repeatable values that may also be written with commas."""
    return [part.strip() for value in values or () for part in value.split(",") if part.strip()]


def report_manifest(manifest: Any, output: Path | str) -> None:
    """Print the result of a stage: its folder and statistics."""
    records = manifest.statistics.get("records")
    if records:
        text = (
            f"{output}: {records['kept']:,} of {records['in']:,} records kept, {records['removed']:,} removed, "
            f"{records['invalid']:,} invalid"
        )
    else:
        text = f"{output}: done"
    console.result(
        text,
        output=str(output),
        kind=manifest.kind,
        stage=manifest.stage,
        fingerprint=manifest.fingerprint,
        statistics=manifest.statistics,
    )

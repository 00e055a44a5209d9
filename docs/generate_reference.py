"""Write the reference pages from the code: commands with their flags and keys, and every rule and loss.

python docs/generate_reference.py            write docs/reference/
python docs/generate_reference.py --check    exit 1 if a page is not up to date
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import typer

from llmctl.cli.app import build_app
from llmctl.config.schema import Field, walk

REFERENCE = Path(__file__).resolve().parent / "reference"
SOURCE = Path(__file__).resolve().parents[1] / "src" / "llmctl"

# Folders that are registries: the file name is the name in YAML and on the command line, its docstring the page.
CATALOGUES = {
    "filter-rules": ("Filter rules", SOURCE / "filtering" / "rules"),
    "losses": ("Losses", SOURCE / "training" / "losses"),
    "diagnosis-rules": ("Diagnosis rules", SOURCE / "diagnosis" / "rules"),
}


def pages() -> dict[str, str]:
    """Return every reference page by file name."""
    found: dict[str, str] = {}
    root: Any = typer.main.get_command(build_app())
    for name, command in _leaf_commands(root, "llmctl"):
        found[name.removeprefix("llmctl ").replace(" ", "-") + ".md"] = _command_page(name, command)
    for slug, (title, folder) in CATALOGUES.items():
        found[f"{slug}.md"] = _catalogue_page(title, folder)
    found["sensitive-entities.md"] = sensitive_entities_page()
    index = ["# Reference", "", "Generated from the code by `make docs`.", ""]
    index += [f"- [{name.removesuffix('.md')}]({name})" for name in found]
    found["index.md"] = "\n".join(index) + "\n"
    return found


def _leaf_commands(command: Any, path: str) -> list[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        return [(path, command)]
    return [leaf for name, sub in inner.items() for leaf in _leaf_commands(sub, f"{path} {name}")]


def _command_page(name: str, command: Any) -> str:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    usage = " ".join(_usage_word(argument) for argument in arguments)
    lines = [f"# {name}", "", _plain(command.help or ""), "", f"    {name} [OPTIONS] {usage}".rstrip(), ""]
    if arguments:
        lines += ["| argument | meaning |", "|---|---|"]
        lines += [
            f"| `{_usage_word(argument)}` | {_cell(getattr(argument, 'help', '') or '')} |" for argument in arguments
        ]
        lines.append("")
    lines += ["| flag | meaning |", "|---|---|"]
    for option in options:
        flags = ", ".join(f"`{flag}`" for flag in [*option.opts, *option.secondary_opts])
        lines.append(f"| {flags} | {_cell(option.help or '')} |")
    config_class = getattr(getattr(command, "callback", None), "config_class", None)
    if config_class is not None:
        lines += ["", "## Configuration keys", "", "For `--config FILE` and `--set KEY=VALUE`.", ""]
        lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
        lines += [_key_row(key, field) for key, field in walk(config_class)]
    return "\n".join(lines) + "\n"


def _usage_word(argument: Any) -> str:
    word = (argument.metavar or argument.name).upper()
    return word if argument.required else f"[{word}]"


def _key_row(key: str, field: Field) -> str:
    default = "required" if field.required else f"`{field.default_value!r}`"
    return f"| `{key}` | {_type_name(field)} | {_cell(default)} | {_cell(field.opt.help)} |"


def _type_name(field: Field) -> str:
    if field.choices:
        return _cell(" | ".join(field.choices))
    name = getattr(field.base_type, "__name__", str(field.base_type))
    if "[" in str(field.base_type):
        name = str(field.base_type).replace("typing.", "")
    return "size" if field.opt.size else _cell(name)


def _catalogue_page(title: str, folder: Path) -> str:
    lines = [f"# {title}", ""]
    for path in sorted(folder.glob("*.py")):
        if path.stem.startswith("_"):
            continue
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        lines += [f"## {path.stem}", "", docstring, ""]
    return "\n".join(lines).rstrip() + "\n"


def sensitive_entities_page() -> str:
    """Return the catalogue of sensitive entities: a table for each family."""
    from llmctl.filtering.pii.catalogue import entities_of, family_names, type_names

    lines = [f"# Sensitive entities ({len(type_names())} types)", ""]
    lines += [
        "What `llmctl filter --pii` looks for. Types of low confidence only if asked for. In a masked text an entity is"
    ]
    lines += ["`<TYPE>` in capitals, or `<TYPE_1>` with `--pii-consistent`.", ""]
    for family in family_names():
        path = SOURCE / "filtering" / "pii" / "families" / f"{family}.py"
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        lines += [f"## {family}", "", docstring, "", "| type | what | verified | confidence |", "|---|---|---|---|"]
        # A type may have a second entry without a text of its own, for other forms of it.
        shown = [entity for entity in entities_of(family) if entity.what]
        lines += [
            f"| `{entity.name}` | {_cell(entity.what)} | {_cell(entity.checked or 'form')} | {entity.confidence} |"
            for entity in shown
        ]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _plain(text: str) -> str:
    return "\n".join(line.strip() for line in text.replace("\b", "").strip().splitlines())


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> int:
    """Write the pages, or check them."""
    wanted = pages()
    check = "--check" in sys.argv[1:]
    stale = []
    REFERENCE.mkdir(exist_ok=True)
    for name, text in wanted.items():
        path = REFERENCE / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    for path in REFERENCE.glob("*.md"):
        if path.name not in wanted:
            stale.append(path.name)
            if not check:
                path.unlink()
    if check and stale:
        print(f"not up to date: {', '.join(stale)}; run `make docs`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

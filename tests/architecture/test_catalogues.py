"""Every rule, loss and option is documented, every rule and loss is named in a test, and reference pages are fresh."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from llmctl.cli.app import COMMANDS, build_app
from llmctl.config.load import load, shipped_configs
from llmctl.config.schema import walk

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "llmctl"
CATALOGUES = [SOURCE / "filtering" / "rules", SOURCE / "training" / "losses", SOURCE / "diagnosis" / "rules"]


def _entries() -> list[Path]:
    return [path for folder in CATALOGUES for path in sorted(folder.glob("*.py")) if not path.stem.startswith("_")]


def _commands():
    import typer

    root = typer.main.get_command(build_app())
    stack, found = [root], []
    while stack:
        command = stack.pop()
        inner = getattr(command, "commands", None)
        if inner is None:
            found.append(command)
        else:
            stack.extend(inner.values())
    return found


def test_catalogues_are_not_empty() -> None:
    for folder in CATALOGUES:
        assert [path for path in folder.glob("*.py") if not path.stem.startswith("_")], folder


@pytest.mark.parametrize("path", _entries(), ids=lambda path: f"{path.parent.parent.name}-{path.stem}")
def test_entry_has_a_page_and_a_test(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring and len(docstring) > 60, "the docstring is the page: say what, why and the source"
    tests = ROOT / "tests"
    named = any(path.stem in test.read_text(encoding="utf-8") for test in tests.rglob("test_*.py"))
    assert named, f"no test names {path.stem}"


def test_every_command_is_there_and_documented() -> None:
    commands = _commands()
    names = {command.name for command in commands}
    assert set(COMMANDS) - {"rlhf", "classifier", "perplexity"} <= names
    for command in commands:
        assert command.help, command.name
        for parameter in command.params:
            assert getattr(parameter, "help", None), f"{command.name}: {parameter.name} has no help"


def test_every_configuration_key_has_one_sentence() -> None:
    for command in _commands():
        config_class = getattr(command.callback, "config_class", None)
        if config_class is None:
            continue
        for key, field in walk(config_class):
            assert field.opt.help.strip().endswith((".", ")")), f"{command.name}: {key}: {field.opt.help!r}"


def test_shipped_configurations_load() -> None:
    classes = {command.name: getattr(command.callback, "config_class", None) for command in _commands()}
    checked = 0
    for stage in [path.name for path in (ROOT / "configs").iterdir() if path.is_dir()]:
        for name, path in shipped_configs(stage).items():
            wanted = name if stage == "demo" else stage
            config_class = classes.get(wanted)
            if config_class is not None:
                load(config_class, path)
                checked += 1
    assert checked >= 7


def test_reference_pages_are_fresh() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate_reference.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_chain_makefile_is_fresh() -> None:
    from llmctl.demo.chain import makefile

    assert (SOURCE / "demo" / "chain.mk").read_text(encoding="utf-8") == makefile()


def test_nothing_names_this_machine_or_a_registry_host() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split(
        "\n"
    )
    banned = ["/".join(("", "work", "")), "pypi" + ".org", "pythonhosted" + ".org", "/".join(("", "opt", "wheels"))]
    wrong = []
    for name in tracked:
        path = ROOT / name
        if not path.is_file() or path.suffix in (".zst", ".png"):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        wrong += [f"{name}: {word}" for word in banned if word in text]
    assert not wrong, "\n".join(wrong)

"""Imports point down only, stage folders never import one another, and start-up stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "llmctl"

STAGES = {
    "filtering", "dedup", "tokenization", "sharding", "pretraining", "sft", "rlhf", "evaluation", "planning",
    "diagnosis",
}  # fmt: skip
# From the top down; a folder may import those below it, and those beside it where that is named.
LAYERS: list[set[str]] = [
    {"__main__"},
    {"cli"},
    {"demo"},
    STAGES,
    {"training", "report"},
    {"loading"},
    {"model", "text", "runtime"},
    {"artifacts"},
    {"config"},
    {"errors", "console"},
]
BESIDE = {("console", "errors"), ("training", "training")}
HEAVY = {"torch", "deepspeed", "transformers", "numba", "ray", "pyarrow", "numpy", "tokenizers", "datasketch", "scipy"}


def _rank(name: str) -> int:
    for rank, layer in enumerate(LAYERS):
        if name in layer:
            return rank
    raise AssertionError(f"src/llmctl/{name} has no layer: say in {Path(__file__).name} where it stands")


def _imports(path: Path, *, module_level_only: bool = False) -> list[tuple[str, int]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = _module_level(tree) if module_level_only else ast.walk(tree)
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            if module == "llmctl":
                found += [(f"llmctl.{alias.name}", node.lineno) for alias in node.names]
            else:
                found.append((module, node.lineno))
    return found


def _module_level(tree: ast.Module):
    """Yield the nodes that run on import: not function bodies, not `if TYPE_CHECKING`."""
    stack: list[ast.AST] = list(tree.body)
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        yield node
        stack.extend(ast.iter_child_nodes(node))


def _modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py"))


def _folder(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def test_imports_point_down() -> None:
    wrong = []
    for path in _modules():
        ours = _folder(path)
        if ours == "__init__":
            continue
        for module, line in _imports(path):
            if not module.startswith("llmctl."):
                continue
            theirs = module.split(".")[1]
            if theirs in (ours, "__version__"):
                continue
            if (ours, theirs) in BESIDE:
                continue
            if _rank(theirs) <= _rank(ours):
                wrong.append(f"{path.relative_to(SOURCE)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_light_modules_import_nothing_heavy() -> None:
    wrong = []
    for path in _modules():
        relative = path.relative_to(SOURCE)
        light = relative.parts[0] in ("cli", "config", "errors.py", "console.py", "artifacts", "demo", "runtime")
        if not (light or relative.name == "config.py"):
            continue
        if relative.parts[0] == "artifacts" and relative.name not in (
            "kinds.py",
            "output.py",
            "manifest.py",
            "inputs.py",
        ):
            continue
        for module, line in _imports(path, module_level_only=True):
            if module.split(".")[0] in HEAVY:
                wrong.append(f"{relative}:{line} imports {module} when it is imported")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("arguments", [["--help"], ["filter", "--help"], ["pretrain", "--help"], ["rlhf", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom llmctl.cli.app import run\n"
        f"status = run({arguments!r})\n"
        "print(sorted(name for name in sys.modules if '.' not in name), file=sys.stderr)\n"
        "sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(ast.literal_eval(done.stderr.strip().splitlines()[-1]))
    assert not loaded & HEAVY
    assert "llmctl" in done.stdout


def test_modules_stay_short() -> None:
    long = [
        f"{path.relative_to(SOURCE)}: {count} lines"
        for path in _modules()
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 450
    ]
    assert not long, "\n".join(long)

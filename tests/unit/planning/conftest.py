"""Published tables, which stand beside the shared corpora, and the module that turns them into cases."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARK = Path(__file__).resolve().parents[3] / "benchmarks" / "plan.py"


@pytest.fixture(scope="session")
def tables(shared_data: Path) -> Path:
    """The folder of published tables; tests that need it are skipped, visibly, where it is not there."""
    folder = shared_data.parent / "tables"
    if not folder.is_dir():
        pytest.skip("the published tables are not on this machine")
    return folder


@pytest.fixture(scope="session")
def published() -> ModuleType:
    """`benchmarks/plan.py`: published rows as cases."""
    name = "llmctl_benchmark_plan"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, BENCHMARK)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]

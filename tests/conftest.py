"""Fixtures for all tests: where the large shared corpora are, and small corpora made on the spot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


def shared_data_folder() -> Path | None:
    """Return the folder with the large corpora, or None where it is not available."""
    named = os.environ.get("LLMCTL_SHARED_DATA")
    for candidate in (Path(named) if named else None, REPOSITORY.parent / "shared" / "data"):
        if candidate is not None and candidate.is_dir():
            return candidate
    return None


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The large corpora; tests that need them are skipped, visibly, where they are not available."""
    folder = shared_data_folder()
    if folder is None:
        pytest.skip("the large corpora are not on this machine (set LLMCTL_SHARED_DATA)")
    return folder

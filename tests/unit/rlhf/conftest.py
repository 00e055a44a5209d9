"""A tiny model, its template, and helpers shared by the tests of alignment."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

_path = Path(__file__).parents[1] / "training" / "conversations" / "tokenizers_for_tests.py"
_spec = importlib.util.spec_from_file_location("tokenizers_for_tests", _path)
_made = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_made)


@pytest.fixture(autouse=True)
def one_thread():
    """Other tests run beside these."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def made():
    """The module with tiny tokenizers, models and conversations."""
    return _made


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """A folder with a tiny untrained model."""
    return _made.tiny_model(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="session")
def template(base):
    """Its tokenizer with the default chat template."""
    from llmctl.training.conversations.template import load_chat_template

    return load_chat_template(base)

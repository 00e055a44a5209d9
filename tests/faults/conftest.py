"""A small real corpus, cut into shards once, and real pretraining runs on it."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from llmctl.cli.app import run as llmctl
from llmctl.diagnosis.config import DiagnoseConfig
from llmctl.diagnosis.stage import Diagnosis, diagnose

MODEL = {
    "num_layers": 2,
    "hidden_size": 48,
    "num_heads": 4,
    "num_kv_heads": 2,
    "ffn_hidden_size": 96,
    "max_seq_len": 64,
}
SHAPE = [
    *(part for name, value in MODEL.items() for part in ("--set", f"model.{name}={value}")),
    *("--seq-len", "64", "--global-batch-size", "4", "--device", "cpu", "--threads", "1", "--no-tensorboard"),
    *("--validation-tokens", "2000", "--validate-every", "15"),
]


def _shards(folder: Path, num_documents: int, words: int) -> Path:
    """Make shards of the beginning of modules of Python's own library: real text that is on every machine."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    texts = [path.read_text(encoding="utf-8", errors="replace").split(" ")[:words] for path in sources]
    documents = [" ".join(text) for text in texts if len(text) == words][:num_documents]
    assert len(documents) == num_documents
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    assert llmctl(["tokenize", str(corpus), str(folder / "tokens"), "--vocab-size", "300", "--workers", "1"]) == 0
    assert llmctl(["shard", str(folder / "tokens"), str(folder / "shards"), "--workers", "1"]) == 0
    return folder / "shards"


@pytest.fixture(scope="session")
def shards(tmp_path_factory) -> Path:
    return _shards(tmp_path_factory.mktemp("corpus"), 100, 600)


@pytest.fixture(scope="session")
def few_shards(tmp_path_factory) -> Path:
    """A corpus so small that a model learns it by heart."""
    return _shards(tmp_path_factory.mktemp("few"), 10, 40)


@pytest.fixture
def shape() -> list[str]:
    """The flags of a model and batch that take hundredths of a second a step."""
    return SHAPE


@pytest.fixture
def pretrain(tmp_path: Path) -> Callable[..., tuple[int, Diagnosis]]:
    """Pretrain with some flags in this process; return the exit status and the diagnosis of the run."""

    def run(source: Path, *flags: str, name: str = "run") -> tuple[int, Diagnosis]:
        status = llmctl(["pretrain", str(source), str(tmp_path / name), *SHAPE, *flags])
        return status, diagnose(tmp_path / name, DiagnoseConfig())

    return run

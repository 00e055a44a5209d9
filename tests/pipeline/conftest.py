"""A small corpus and small settings for tests that run whole commands."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

# Smaller than any user would choose; every stage still does all it does on large input.
TINY_MODEL = [
    "--set", "model.num_layers=2",
    "--set", "model.hidden_size=32",
    "--set", "model.num_heads=2",
    "--set", "model.num_kv_heads=1",
    "--set", "model.ffn_hidden_size=64",
]  # fmt: skip
TINY_TRAINING = ["--device", "cpu", "--seq-len", "64", "--global-batch-size", "4", "--micro-batch-size", "2"]


@pytest.fixture(scope="session")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text in several files and formats: good documents, bad ones, copies, broken lines."""
    from llmctl.demo.raw import read_corpus

    folder = tmp_path_factory.mktemp("raw")
    records = read_corpus("en_docs-postgresql-doc-15")[:40] + read_corpus("en_books-sword-text-web")[:40]
    records += read_corpus("zh-libreoffice-help-zh-cn")[:20]
    records += [{**record, "id": f"copy-{record['id']}"} for record in records[:15]]
    records += [{"id": f"bad-{n}", "text": "BUY NOW $$$ " * 30, "lang": "en"} for n in range(5)]
    random.Random(3).shuffle(records)
    for n in range(6):
        path = folder / f"part{n % 2}" / f"{n}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(record) + "\n" for record in records[n::6]))
    (folder / "part0" / "broken.jsonl").write_text('{"id": "x", "text": "no end\n{"id": "y", "text": null}\n')
    return folder

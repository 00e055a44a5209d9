"""Any documents, tokenized, sharded and read back by the loader, are the documents."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmctl.artifacts.shards import open_shards
from llmctl.cli.app import run
from llmctl.loading.loader import Loader, LoaderSettings

pytestmark = pytest.mark.slow

documents = st.lists(
    st.tuples(st.text(min_size=1, max_size=200), st.sampled_from(["a", "b/c", "d"])), min_size=1, max_size=12
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    root = tmp_path_factory.mktemp("tokenizer")
    (root / "raw.txt").write_text("some words of a text that is long enough. " * 50)
    assert run(["tokenize", str(root / "raw.txt"), str(root / "tok"), "--vocab-size", "265", "--workers", "1"]) == 0
    return root / "tok"


@given(documents, st.sampled_from(["concat", "best_fit"]), st.integers(1, 40), st.integers(0, 3))
@settings(max_examples=6, deadline=None)
def test_what_goes_in_comes_out(tokenizer, tmp_path_factory, texts, packing, seq_len, seed):
    from transformers import AutoTokenizer

    root = tmp_path_factory.mktemp("documents")
    lines = [json.dumps({"text": text, "source": source}) for text, source in texts]
    (root / "raw.jsonl").write_text("\n".join(lines) + "\n")
    one = ["--workers", "1", "--quiet"]
    assert run(["tokenize", str(root / "raw.jsonl"), str(root / "tok"), "--tokenizer", str(tokenizer), *one]) == 0
    assert run(["shard", str(root / "tok"), str(root / "shards"), "--shard-size", "1KB", *one]) == 0
    shards = open_shards(root / "shards")
    assert len(shards) == len(texts)
    decode = AutoTokenizer.from_pretrained(root / "shards" / "tokenizer").decode

    count = len(texts)
    loader = Loader(shards, np.arange(count), LoaderSettings(1, 10_000, seq_len, seed, packing))
    first_epoch = loader.samples(1).epochs == 0
    packed = loader.batch(1)
    ids = [labels[labels != -100].tolist() for labels in packed.labels[first_epoch]]
    assert sum(map(len, ids)) == int(shards.lengths.sum())
    found = []
    for document in range(count):
        tokens = shards.tokens(document)
        assert tokens[-1] == shards.eos_id
        found.append((decode(tokens[:-1].tolist()), shards.sources[shards.source_ids[document]]))
    assert sorted(found) == sorted(texts)
    every = sorted(token for row in ids for token in row)
    assert every == sorted(int(token) for document in range(count) for token in shards.tokens(document))

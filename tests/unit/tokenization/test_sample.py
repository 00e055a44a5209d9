"""The training sample: by source in proportion, within its budget, and a function of the documents alone."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from llmctl.artifacts.inputs import open_input
from llmctl.artifacts.raw.blocks import ReadOptions
from llmctl.artifacts.raw.plan import plan_blocks
from llmctl.runtime.pool import Unit
from llmctl.tokenization.sample import ScanContext, plan_sample, sample_texts, scan_block


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    rows = [
        {"id": f"{source}{n}", "source": source, "text": f"{source} {n} " + "é" * (n % 50)}
        for n in range(300)
        for source in ("big", "big2", "rare")
    ]
    rows = [row for row in rows if row["source"] != "rare" or int(row["id"][4:]) % 10 == 0]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def sample(folder, budget, seed=0, block_bytes=256_000_000):
    source = open_input(folder)
    context = ScanContext(ReadOptions(block_bytes=block_bytes), seed)
    scans = [scan_block(Unit(block.name, block), context).data for block in plan_blocks(source, context.read)]
    plan = plan_sample(json.loads(json.dumps(scans)), budget)
    return plan, list(sample_texts(plan_blocks(source, context.read), plan, context, "sampling"))


def bytes_by_source(texts):
    sizes = Counter()
    for text in texts:
        sizes[text.split()[0]] += len(text.encode())
    return sizes


def test_everything_is_taken_when_it_fits(corpus):
    plan, texts = sample(corpus, 10**9)
    assert len(texts) == 630
    assert plan.sample_bytes == plan.total_bytes == sum(bytes_by_source(texts).values())


def test_the_budget_is_kept_and_shared_out(corpus):
    whole = bytes_by_source(sample(corpus, 10**9)[1])
    budget = sum(whole.values()) // 4
    plan, texts = sample(corpus, budget)
    taken = bytes_by_source(texts)
    assert sum(taken.values()) <= budget
    for source, size in whole.items():
        # At most one character does not fit at the cut.
        assert size // 4 - 4 <= taken[source] <= size // 4
    assert plan.sample_bytes <= budget


def test_blocks_do_not_matter_and_the_seed_does(corpus):
    _, one = sample(corpus, 5000)
    _, small_blocks = sample(corpus, 5000, block_bytes=2000)
    _, other_seed = sample(corpus, 5000, seed=1)
    assert one == small_blocks
    assert one != other_seed


def test_a_rare_source_is_never_left_out(corpus):
    _, texts = sample(corpus, 400)
    assert set(bytes_by_source(texts)) == {"big", "big2", "rare"}

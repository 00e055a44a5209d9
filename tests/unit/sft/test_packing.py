"""Packing: every row once, nothing too long, and a packed sequence computes what its conversations alone compute."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from llmctl.model.huggingface import load_model
from llmctl.sft.packing import BatchPlan, collate, micro_batches, pack, singles
from llmctl.sft.prepare import to_rows
from llmctl.training.conversations.formats import read_conversations
from llmctl.training.losses.next_token import NextTokenLoss


@pytest.fixture(scope="module")
def rows(made, template):
    records = made.conversations(9)
    records[3]["messages"] += [{"role": "user", "content": "more"}, {"role": "assistant", "content": "a longer answer"}]
    return to_rows(template.render([read_conversations(record)[0] for record in records]))


def test_every_row_stands_in_one_pack_and_none_is_too_long() -> None:
    lengths = np.random.Generator(np.random.PCG64(0)).integers(1, 100, 500)
    packs = pack(lengths, 128, seed=3)
    assert sorted(row for rows in packs for row in rows) == list(range(500))
    assert max(int(lengths[rows].sum()) for rows in packs) <= 128
    # Best fit wastes little: the sum of lengths bounds the number of packs from below.
    assert len(packs) <= 1.1 * np.ceil(lengths.sum() / 128)
    assert packs == pack(lengths, 128, seed=3)
    assert packs != pack(lengths, 128, seed=4)


def test_labels_are_the_learned_tokens_shifted(rows, template) -> None:
    batch = collate(rows, [[0, 3], [1]], template.pad_id)
    for line, members in enumerate([[0, 3], [1]]):
        start = 0
        for number, row in enumerate(members):
            ids, trained = rows.row(row)
            stop = start + len(ids) - 1
            assert batch["input_ids"][line, start:stop].tolist() == ids[:-1].tolist()
            expected = [int(token) if flag else -100 for token, flag in zip(ids[1:], trained[1:], strict=True)]
            assert batch["labels"][line, start:stop].tolist() == expected
            assert batch["position_ids"][line, start:stop].tolist() == list(range(stop - start))
            assert set(batch["document_ids"][line, start:stop].tolist()) == {number}
            start = stop
        assert set(batch["labels"][line, start:].tolist()) <= {-100}
        assert set(batch["document_ids"][line, start:].tolist()) <= {-1}
    learned = rows.num_trained
    assert int((collate(rows, singles(9), 0)["labels"] != -100).sum()) == learned


def gradient(model, batches) -> tuple[float, torch.Tensor]:
    model.zero_grad()
    loss = NextTokenLoss()
    total = sum(loss(model, batch).total for batch in batches)
    total.backward()
    return float(total.detach()), torch.cat([p.grad.flatten() for p in model.parameters()])


def test_packed_equals_separate(rows, template, base) -> None:
    model = load_model(base).double()
    packed = gradient(model, [collate(rows, [[0, 3, 1, 7], [2, 4, 5, 6, 8]], template.pad_id)])
    separate = gradient(model, [collate(rows, [[row]], template.pad_id) for row in range(9)])
    assert packed[0] == pytest.approx(separate[0], abs=1e-9)
    assert float((packed[1] - separate[1]).abs().max()) < 1e-9


def test_without_isolation_the_loss_would_differ(rows, template, base) -> None:
    model = load_model(base).double()
    batch = collate(rows, [[0, 3, 1, 7]], template.pad_id)
    right = float(NextTokenLoss()(model, batch).total.detach())
    leaking = {name: tensor for name, tensor in batch.items() if name not in ("document_ids", "position_ids")}
    assert abs(float(NextTokenLoss()(model, leaking).total.detach()) - right) > 1e-3


def test_hidden_states_of_a_pack_are_those_of_each_row(rows, template, base) -> None:
    model = load_model(base)
    batch = collate(rows, [[0, 3, 1]], template.pad_id)
    with torch.no_grad():
        together = model(batch["input_ids"], position_ids=batch["position_ids"], document_ids=batch["document_ids"])[0]
        start = 0
        for row in (0, 3, 1):
            ids = torch.from_numpy(rows.row(row)[0][:-1].astype(np.int64)).unsqueeze(0)
            alone = model(ids)[0]
            assert float((together[start : start + ids.shape[1]] - alone).abs().max()) < 1e-5
            start += ids.shape[1]


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_replicas_and_micro_batches_share_the_work(rows, template, replicas: int) -> None:
    packs = [[0, 3], [1], [2, 4], [5], [6, 7, 8]]
    seen = []
    for rank in range(replicas):
        for batch in micro_batches(rows, packs, 2, template.pad_id, rank, replicas):
            assert batch["input_ids"].shape[0] <= 2
            seen += batch["labels"][batch["labels"] != -100].tolist()
    whole = collate(rows, packs, 0)["labels"]
    assert sorted(seen) == sorted(whole[whole != -100].tolist())


def test_every_epoch_takes_every_pack_in_another_order() -> None:
    plan = BatchPlan(singles(10), 4, seed=1)
    assert plan.steps_per_epoch == 3
    epochs = [[row for step in range(1 + 3 * e, 4 + 3 * e) for (row,) in plan.step(step)] for e in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(10))
    assert epochs[0] != epochs[1]
    assert [len(plan.step(step)) for step in (1, 2, 3)] == [4, 4, 2]


def test_rows_survive_parquet(rows, tmp_path) -> None:
    from llmctl.sft.rows import Rows

    first = rows.write(tmp_path, "a.parquet")
    second = rows.write(tmp_path, "b.parquet")
    assert first.sha256 == second.sha256
    again = Rows.read(tmp_path / "a.parquet")
    for name in ("ids", "trained", "offsets"):
        assert np.array_equal(getattr(again, name), getattr(rows, name))
    Rows.of([]).write(tmp_path, "empty.parquet")
    assert len(Rows.read(tmp_path / "empty.parquet")) == 0

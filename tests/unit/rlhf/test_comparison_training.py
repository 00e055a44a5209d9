"""Reward models and DPO on files of comparisons: accounting, what is learned, resumption."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from llmctl.artifacts.inputs import open_input
from llmctl.config.common import RunOptions
from llmctl.errors import UserError
from llmctl.rlhf import comparisons
from llmctl.rlhf.comparisons import Item, longer_wins, read_comparisons
from llmctl.rlhf.config import DpoConfig, RewardConfig
from llmctl.rlhf.dpo_train import collate as collate_pairs
from llmctl.rlhf.dpo_train import pairs_of
from llmctl.rlhf.reward_train import collate
from llmctl.rlhf.stage import run_dpo, run_reward
from llmctl.training.conversations.preferences import read_comparison
from llmctl.training.conversations.reading import read_records
from llmctl.training.conversations.records import BadRecord

COMMON = {
    "precision": "fp32", "tensorboard": False, "lr": 3e-3, "epochs": 2.0, "seq_len": 64, "global_batch_size": 10,
    "micro_batch_size": 5, "device": "cpu", "threads": 1, "validation_fraction": 0.2, "min_comparisons": 0,
    "checkpoint_every": 2,
}  # fmt: skip


def pairs(made, count: int) -> list[dict]:
    return [
        {
            "prompt": record["messages"][0]["content"],
            "chosen": record["messages"][1]["content"],
            "rejected": "brown fox",
        }
        for record in made.conversations(count)
    ]


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_record_is_accounted_for(tmp_path, made, template) -> None:
    records = [
        *pairs(made, 3),
        {"prompt": "Q", "responses": ["A", "B", "C", "D"], "scores": [3, 1, 1, 2]},
        {"prompt": "Q", "responses": ["A", "B"], "scores": [1, 1]},
        {"prompt": "Q", "chosen": "A", "rejected": "A"},
        {"prompt": "Q", "chosen": "A", "rejected": "long " * 100},
        {"prompt": "Q", "completion": "A"},
    ]
    found = read_comparisons(open_input(made.write_lines(tmp_path / "a.jsonl", records)), template, 64)
    found.ledger.accounting.check()
    assert found.ledger.accounting.records() == {"in": 8, "kept": 4, "removed": 2, "invalid": 2}
    assert {row["reason"] for row in found.ledger.removed} == {"tie", "overlong"}
    assert found.num_pairs == 3 + 5
    assert found.ledger.notes["tied pairs within a ranking, left out"] == 1


def test_all_pairs_of_a_prompt_stand_in_one_item(tmp_path, made, template) -> None:
    records = [{"prompt": "Q", "responses": ["A", "B", "C"], "scores": [1, 3, 2]}, *pairs(made, 1)]
    items = read_comparisons(open_input(made.write_lines(tmp_path / "a.jsonl", records)), template, 64).items
    batch = collate(items, template.pad_id)
    assert batch["pairs"].tolist() == [[1, 0], [1, 2], [2, 0], [3, 4]]
    assert batch["pair_weights"].tolist() == pytest.approx([1 / 3] * 3 + [1.0])
    for row, length in zip(batch["input_ids"], batch["lengths"].tolist(), strict=True):
        assert int(row[length - 1]) == template.end_of_turn_id, "the score stands at the end of the answer"


def test_items_survive_parquet(tmp_path, made, template) -> None:
    records = [{"prompt": "Q", "responses": ["A", "B", "C"], "scores": [1, 3, 2]}, *pairs(made, 3)]
    items = read_comparisons(open_input(made.write_lines(tmp_path / "a.jsonl", records)), template, 64).items
    comparisons.write_items(items, tmp_path, "items.parquet")
    assert comparisons.read_items(tmp_path / "items.parquet") == items


def test_response_masks_cover_the_answer_and_its_end(tmp_path, made, template) -> None:
    items = read_comparisons(open_input(made.write_lines(tmp_path / "a.jsonl", pairs(made, 2))), template, 64).items
    batch = collate_pairs(pairs_of(items), template.pad_id)
    texts = [
        template.decode(row[1:][mask].tolist(), skip_special=False)
        for row, mask in zip(batch["input_ids"], batch["mask"], strict=True)
    ]
    assert texts == ["the cat<|im_end|>", "the dog<|im_end|>", "brown fox<|im_end|>", "brown fox<|im_end|>"]


def test_longer_wins_counts_each_prompt_once(shared_data) -> None:
    found = {}
    for name in (
        "hh_harmless_base_test.jsonl.gz",
        "alpacaeval_kwise7_gpt4judge.jsonl.gz",
        "pandalm_testset_v1.json.gz",
    ):
        items = []
        for raw in read_records(open_input(shared_data / "post" / name)):
            try:
                one = read_comparison(raw.value)
            except BadRecord:
                continue
            if one.pairs():
                lengths = [len(answer) for answer in one.answers]
                items.append(Item([[0]] * len(lengths), [0] * len(lengths), list(one.scores), lengths, 0))
        found[name.split("_")[0]] = longer_wins(items)
    # The first two are the figures of the data's own page; the third counts the majority of the three judges.
    assert found == {
        "hh": pytest.approx(0.446, abs=0.01),
        "alpacaeval": pytest.approx(0.818, abs=0.015),
        "pandalm": pytest.approx(0.67, abs=0.015),
    }


def test_reward_model_ranks_held_out_answers_and_goes_on_after_a_kill(tmp_path, made, base, monkeypatch) -> None:
    from llmctl.training.run import TrainingRun

    data = made.write_lines(tmp_path / "pairs.jsonl", pairs(made, 40))
    settings = RewardConfig(**COMMON)
    whole = run_reward(data, tmp_path / "whole", settings, RunOptions(), model=base, validation=None)
    assert whole.statistics["validation"]["after"]["accuracy"] >= 0.9
    record = TrainingRun.record

    def dies(self, step, *arguments, **extra):
        if step == 3:
            raise KeyboardInterrupt
        return record(self, step, *arguments, **extra)

    monkeypatch.setattr(TrainingRun, "record", dies)
    with pytest.raises(KeyboardInterrupt):
        run_reward(data, tmp_path / "cut", settings, RunOptions(), model=base, validation=None)
    monkeypatch.undo()
    resumed = run_reward(data, tmp_path / "cut", settings, RunOptions(), model=base, validation=None)
    assert resumed.to_mapping() == whole.to_mapping()


def test_few_comparisons_and_a_beaten_model_are_told(tmp_path, made, base, capsys) -> None:
    records = [{"prompt": record["prompt"], "chosen": "the " * 9, "rejected": "the"} for record in pairs(made, 30)]
    data = made.write_lines(tmp_path / "pairs.jsonl", records)
    settings = RewardConfig(**{**COMMON, "lr": 0.0, "steps": 1, "min_comparisons": 50_000, "seed": 3})
    run_reward(data, tmp_path / "out", settings, RunOptions(), model=base, validation=None)
    talk = capsys.readouterr().err
    assert "50,000 are a sound minimum" in talk
    assert "preferring the longer answer gets 100.0%" in talk


def test_dpo_moves_answers_apart_and_starts_at_ln2(tmp_path, made, base) -> None:
    data = made.write_lines(tmp_path / "pairs.jsonl", pairs(made, 40))
    manifest = run_dpo(
        data, tmp_path / "out", DpoConfig(**{**COMMON, "lr": 1e-3}), RunOptions(), model=base, validation=None
    )
    before, after = (manifest.statistics["validation"][name] for name in ("before", "after"))
    assert before["loss"] == pytest.approx(0.6931, abs=1e-4) and before["margin"] == 0.0
    assert after["loss"] < 0.6 and after["accuracy"] > 0.9
    assert after["chosen_reward"] > after["rejected_reward"]


def test_a_reward_model_is_no_place_to_start(tmp_path, made, base) -> None:
    data = made.write_lines(tmp_path / "pairs.jsonl", pairs(made, 10))
    settings = RewardConfig(**{**COMMON, "steps": 1})
    run_reward(data, tmp_path / "reward", settings, RunOptions(), model=base, validation=None)
    with pytest.raises(UserError, match="holds a reward model"):
        run_dpo(data, tmp_path / "out", DpoConfig(**COMMON), RunOptions(), model=tmp_path / "reward", validation=None)


def test_saturated_margins_are_told(tmp_path, made, base, capsys) -> None:
    data = made.write_lines(tmp_path / "pairs.jsonl", pairs(made, 40))
    settings = DpoConfig(**{**COMMON, "lr": 2e-2, "epochs": 6.0, "beta": 1.0})
    run_dpo(data, tmp_path / "out", settings, RunOptions(), model=base, validation=None)
    assert "saturated" in capsys.readouterr().err


def test_equal_prompts_are_not_on_both_sides(tmp_path, made, template) -> None:
    training = open_input(made.write_lines(tmp_path / "a.jsonl", pairs(made, 20)))
    validation = open_input(made.write_lines(tmp_path / "b.jsonl", pairs(made, 5)))
    data = comparisons.build(
        training, validation, template, seq_len=64, validation_fraction=0.1, min_comparisons=0, seed=0
    )
    assert (len(data.training), len(data.validation)) == (15, 5)
    assert (
        torch.tensor([item.prompt_key in {i.prompt_key for i in data.validation} for item in data.training]).sum() == 0
    )

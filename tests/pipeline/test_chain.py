"""The whole chain on small input: every stage reads what the one before wrote, and its promises hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import llmctl, losses, manifest, records_add_up

from conftest import TINY_MODEL, TINY_TRAINING


@pytest.fixture(scope="module")
def chain(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run every command once, each on the output of the one before."""
    from llmctl.demo.conversations import write_conversations

    root = tmp_path_factory.mktemp("chain")
    write_conversations(root)
    llmctl("filter", raw, root / "clean", "--preset", "gopher", "--workers", 2)
    llmctl("dedup", root / "clean", root / "unique", "--workers", 2)
    llmctl("tokenize", root / "unique", root / "tokens", "--vocab-size", 1000)
    llmctl("shard", root / "tokens", root / "shards")
    llmctl("pretrain", root / "shards", root / "pretrain", "--steps", 12, "--lr", "0.01", *TINY_TRAINING, *TINY_MODEL)
    small = ["--global-batch-size", 8, "--micro-batch-size", 8, "--device", "cpu"]
    llmctl("sft", root / "conversations" / "held-out.jsonl", root / "sft", "--model", root / "pretrain",
           "--steps", 6, "--lr", "0.003", "--seq-len", 256, *small)  # fmt: skip
    llmctl("rlhf", "reward", root / "preferences" / "held-out.jsonl", root / "reward", "--model", root / "sft",
           "--steps", 4, *small)  # fmt: skip
    llmctl("rlhf", "ppo", root / "prompts" / "held-out.jsonl", root / "ppo", "--model", root / "sft",
           "--reward", root / "reward", "--steps", 2, "--set", "max_new_tokens=12", *small)  # fmt: skip
    return root


def test_records_add_up_in_every_data_stage(chain: Path) -> None:
    previous = None
    for name in ("clean", "unique", "tokens"):
        records = records_add_up(chain / name)
        if previous is not None:
            assert records["in"] == previous["kept"]
        previous = records
    assert records_add_up(chain / "clean")["removed"] >= 5
    assert records_add_up(chain / "clean")["invalid"] == 2
    assert records_add_up(chain / "unique")["removed"] >= 10


def test_every_folder_says_where_it_came_from(chain: Path) -> None:
    from llmctl.artifacts.manifest import read_manifest

    for folder, parent in (
        ("unique", "clean"),
        ("tokens", "unique"),
        ("shards", "tokens"),
        ("pretrain", "shards"),
        ("sft", "pretrain"),
        ("ppo", "reward"),
    ):
        fingerprints = [entry["fingerprint"] for entry in manifest(chain / folder)["inputs"]]
        assert read_manifest(chain / parent).fingerprint in fingerprints, folder
        assert read_manifest(chain / folder).damaged_files() == []


@pytest.mark.parametrize("name", ["pretrain", "sft", "ppo"])
def test_transformers_loads_the_model_and_gives_the_same_logits(chain: Path, name: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from llmctl.model.huggingface import load_model

    folder = chain / name / "model"
    theirs = AutoModelForCausalLM.from_pretrained(folder).float().eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ours = load_model(chain / name, dtype=torch.float32, device="cpu").eval()
    ids = torch.tensor([tokenizer("The database server answers every question. 数据库")["input_ids"]])
    with torch.no_grad():
        expected = theirs(ids).logits
        actual = ours.logits(ours(ids))
    torch.testing.assert_close(actual[..., : expected.shape[-1]], expected, atol=1e-4, rtol=0)


def test_pretraining_learns(chain: Path) -> None:
    by_step = losses(chain / "pretrain")
    assert sorted(by_step) == list(range(1, 13))
    assert by_step[12] < by_step[1] - 0.3


def test_a_second_run_of_every_command_is_up_to_date(chain: Path, raw: Path) -> None:
    before = {
        name: (chain / name / "manifest.json").stat().st_mtime_ns for name in ("clean", "unique", "tokens", "shards")
    }
    runs = [
        ("filter", raw, chain / "clean", "--preset", "gopher"),
        ("dedup", chain / "clean", chain / "unique"),
        ("tokenize", chain / "unique", chain / "tokens", "--vocab-size", 1000),
        ("shard", chain / "tokens", chain / "shards"),
        ("pretrain", chain / "shards", chain / "pretrain", "--steps", 12, "--lr", "0.01", *TINY_TRAINING, *TINY_MODEL),
    ]
    for arguments in runs:
        assert "up to date" in llmctl(*arguments).stderr
    after = {name: (chain / name / "manifest.json").stat().st_mtime_ns for name in before}
    assert before == after


def test_another_configuration_is_refused_with_what_differs(chain: Path) -> None:
    done = llmctl("tokenize", chain / "unique", chain / "tokens", "--vocab-size", 900, check=False)
    assert done.returncode == 2
    assert "vocab_size: 1000 → 900" in done.stderr
    assert "--overwrite" in done.stderr


def test_diagnose_reads_the_run(chain: Path) -> None:
    import json

    found = json.loads(llmctl("diagnose", chain / "pretrain", "--json").stdout)
    assert isinstance(found["findings"], list)


def test_generate_answers(chain: Path) -> None:
    done = llmctl("generate", chain / "sft", "--prompt", "What is a table?", "--max-new-tokens", 8, "--json")
    assert done.stdout.strip()


def test_show_tells_the_chain(chain: Path) -> None:
    import json

    shown = json.loads(llmctl("show", chain / "shards", "--json").stdout)
    assert shown["kind"] == "shards"

"""Every file of other projects loads, or says per record why not; nothing is lost."""

from __future__ import annotations

import pytest

from llmctl.artifacts.inputs import open_input
from llmctl.rlhf.comparisons import read_comparisons
from llmctl.sft.config import SftConfig
from llmctl.sft.prepare import prepare

CONVERSATIONS = (
    "llamafactory_alpaca_en_demo.json.gz", "llamafactory_alpaca_zh_demo.json.gz", "llamafactory_identity.json.gz",
    "llamafactory_glaive_toolcall_en_demo.json.gz", "fastchat_dummy_conversation.json.gz",
    "llamafactory_kto_en_demo.json.gz", "t0_train_sample10pct.jsonl.gz",
)  # fmt: skip
COMPARISONS = (
    "llamafactory_dpo_en_demo.json.gz", "llamafactory_dpo_zh_demo.json.gz", "pandalm_testset_v1.json.gz",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_conversations_full_grid(shared_data, template, name: str) -> None:
    prepared = prepare(open_input(shared_data / "post" / name, role="source"), template, SftConfig(seq_len=1 << 20))
    _check(prepared.ledger.accounting.to_mapping(), name)
    assert prepared.rendered and all(any(row.trained) for row in prepared.rendered)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons(shared_data, template, name: str) -> None:
    found = read_comparisons(open_input(shared_data / "post" / name, role="source"), template, 1 << 20)
    _check(found.ledger.accounting.to_mapping(), name)
    assert found.num_pairs >= 0.5 * len(found.items) > 0


def _check(told: dict, name: str) -> None:
    records = told["records"]
    assert records["in"] == records["kept"] + records["removed"] + records["invalid"] > 0
    assert records["kept"] >= 0.5 * records["in"], (name, told["by_reason"], told["by_error"])
    assert sum(told["by_reason"].values()) == records["removed"], "each removed record has its reason"
    assert sum(told["by_error"].values()) == records["invalid"], "each invalid record has its error"

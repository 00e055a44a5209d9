"""A tokenizer grown by domain terms, from `tokenize` to `pretrain --init-from` and to `sft --tokenizer`."""

from __future__ import annotations

import json

import pytest

from llmctl.cli.app import run

pytestmark = pytest.mark.slow

TINY = """
steps: 2
seq_len: 64
global_batch_size: 2
validate_every: 0
precision: fp32
tensorboard: false
threads: 1
lr: 0
model: {num_layers: 1, hidden_size: 16, num_heads: 2, num_kv_heads: 1, ffn_hidden_size: 16}
"""


def test_a_grown_tokenizer_reaches_both_trainings(tmp_path, capsys):
    def command(*words: object) -> None:
        capsys.readouterr()
        assert run([str(word) for word in words]) == 0, capsys.readouterr().err

    def write(name: str, rows: list) -> str:
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(tmp_path / name)

    plain = write("plain.jsonl", [{"text": f"the cat {n} sat on the mat by the road. " * 3} for n in range(40)])
    (tmp_path / "tiny.yaml").write_text(TINY)
    config = ["--config", tmp_path / "tiny.yaml"]
    command("tokenize", plain, tmp_path / "tok", "--vocab-size", 270, "--workers", 1)
    command("shard", tmp_path / "tok", tmp_path / "shards", "--workers", 1)
    command("pretrain", tmp_path / "shards", tmp_path / "base", *config)

    medical = write("med.jsonl", [{"text": f"case {n}: cardiomyopathy with tachycardia. " * 3} for n in range(40)])
    (tmp_path / "terms.txt").write_text("cardiomyopathy\ntachycardia\n")
    grow = ["--tokenizer", tmp_path / "base", "--domain-terms", tmp_path / "terms.txt"]
    command("tokenize", medical, tmp_path / "grown", *grow, "--workers", 1)
    command("shard", tmp_path / "grown", tmp_path / "grown-shards", "--workers", 1)
    command("pretrain", tmp_path / "grown-shards", tmp_path / "more", *config, "--init-from", tmp_path / "base")
    assert "new tokens from id 270 on start at the mean of their pieces" in capsys.readouterr().err

    conversations = [
        {"messages": [{"role": "user", "content": f"Case {n}?"}, {"role": "assistant", "content": "cardiomyopathy"}]}
        for n in range(12)
    ]
    chats = write("chats.jsonl", conversations)
    sft = ["--steps", 2, "--seq-len", 64, "--global-batch-size", 2, "--precision", "fp32", "--threads", 1, "--lr", 0]
    command("sft", chats, tmp_path / "tuned", "--model", tmp_path / "base", "--tokenizer", tmp_path / "grown", *sft)
    assert "new tokens from id 270" in capsys.readouterr().err
    command("sft", chats, tmp_path / "again", "--model", tmp_path / "more", "--tokenizer", tmp_path / "grown", *sft)
    assert "new tokens" not in capsys.readouterr().err  # it knows them already

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base" / "model").eval()
    told = json.loads((tmp_path / "grown" / "tokenizer" / "grown_tokens.json").read_text())
    for name in ("more", "tuned", "again"):
        model = AutoModelForCausalLM.from_pretrained(tmp_path / name / "model").eval()
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / name / "model")
        first = told["tokens"][0]["id"]
        assert first in tokenizer(" cardiomyopathy and tachycardia").input_ids
        assert model.config.vocab_size >= first + len(told["tokens"])
        ids = torch.arange(4, 20)[None]
        with torch.no_grad():
            # The learning rate was 0: logits of old tokens are those of the model that was grown.
            torch.testing.assert_close(model(ids).logits[..., :270], base(ids).logits[..., :270])
        rows = model.get_input_embeddings().weight
        for token in told["tokens"]:
            torch.testing.assert_close(rows[token["id"]], rows[token["pieces"]].mean(dim=0))

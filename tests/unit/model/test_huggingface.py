"""Import from and export to transformers: equal logits, both ways."""

from __future__ import annotations

import json

import pytest
import torch
import transformers

from llmctl.errors import UserError
from llmctl.model.config import ModelConfig
from llmctl.model.huggingface import load_model, read_model_config, save_model
from llmctl.model.transformer import Transformer

SHAPE = {
    "vocab_size": 151,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def their_model(kind: str, tied: bool, **changes):
    config = {
        "llama": transformers.LlamaConfig,
        "mistral": transformers.MistralConfig,
        "qwen2": transformers.Qwen2Config,
        "qwen3": transformers.Qwen3Config,
    }[kind](**{**SHAPE, "tie_word_embeddings": tied, **changes})
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # also norms and biases, which start at one and zero
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


CASES = [
    ("llama", True, {}),
    ("llama", False, {"num_key_value_heads": 4, "head_dim": 16}),
    ("llama", False, {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}}),
    (
        "llama",
        True,
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
                "rope_theta": 10000.0,
            }
        },
    ),
    ("mistral", False, {"num_key_value_heads": 1, "head_dim": 12}),
    ("qwen2", True, {}),
    ("qwen3", True, {"head_dim": 24}),
    ("qwen3", False, {"head_dim": 12}),
]


@pytest.mark.parametrize(("kind", "tied", "changes"), CASES)
def test_logits_equal_both_ways(tmp_path, kind, tied, changes):
    theirs = their_model(kind, tied, **changes)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_model(tmp_path / "theirs").eval()
    ids = torch.randint(0, SHAPE["vocab_size"], (2, 70), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs(ids).logits
        torch.testing.assert_close(ours.logits(ours(ids)), expected, rtol=1e-5, atol=1e-5)
        save_model(ours, tmp_path / "again")
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
        torch.testing.assert_close(again(ids).logits, expected, rtol=1e-5, atol=1e-5)


def test_padded_rows_equal_transformers(tmp_path):
    theirs = their_model("llama", True)
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path).eval()
    ids = torch.randint(0, SHAPE["vocab_size"], (2, 9), generator=torch.Generator().manual_seed(2))
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, :4] = False
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask.long()).logits[mask]
        got = ours.logits(ours(ids, attention_mask=mask))[mask]
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_random_model_exports(tmp_path):
    for number, config in enumerate(
        (
            ModelConfig(151, 2, 32, 4, 2, 0, 64, tied_embeddings=False),
            ModelConfig(151, 2, 32, 4, 2, 16, 64, qk_norm=True),
        )
    ):
        model = Transformer(config, seed=4).eval()
        save_model(model, tmp_path / str(number), extra_config={"eos_token_id": 3})
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / str(number)).eval()
        ids = torch.arange(40).view(2, 20)
        with torch.no_grad():
            torch.testing.assert_close(theirs(ids).logits, model.logits(model(ids)), rtol=1e-5, atol=1e-5)
        assert theirs.config.eos_token_id == 3
        assert read_model_config(tmp_path / str(number)).num_parameters() == config.num_parameters()


def test_sharded_files(tmp_path, monkeypatch):
    monkeypatch.setattr("llmctl.model.huggingface.MAX_FILE_BYTES", 10_000)
    model = Transformer(ModelConfig(151, 2, 32, 4, 2, 0, 64), seed=4)
    records = save_model(model, tmp_path)
    assert sum(record.path.startswith("model-0") for record in records) > 2
    assert not list(tmp_path.glob("*tmp*"))
    loaded = dict(load_model(tmp_path).named_parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, loaded[name])


def test_refusals(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        load_model(tmp_path / "nothing")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(UserError, match="gpt2"):
        load_model(tmp_path)
    theirs = their_model("llama", True)
    theirs.config.save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(UserError, match="pickled"):
        load_model(tmp_path)
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    with pytest.raises(UserError, match=r"lacks the weight model\.layers\.3"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    with pytest.raises(UserError, match=r"has the weight model\.layers\.2"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 96}))
    with pytest.raises(UserError, match="shape"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not a safetensors file at all")
    with pytest.raises(UserError, match="cannot read"):
        load_model(tmp_path)

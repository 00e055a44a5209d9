"""Model shapes from all the files that describe one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmctl.errors import UserError
from llmctl.planning.config import PlanConfig
from llmctl.planning.inputs import MODELS, apply_training_keys, read_model


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gpt3-175b", 174.6),
        ("mt-nlg-530b", 529.6),
        ("bloom-176b", 176.2),
        ("llama-7b", 6.7),
        ("llama-13b", 13.0),
        ("llama-65b", 65.3),
    ],
)
def test_shipped_models_have_their_published_sizes(name: str, billions: float) -> None:
    shape, _ = read_model(Path(name))
    assert round(shape.num_parameters / 1e9, 1) == billions


def test_every_shipped_model_is_checked() -> None:
    assert {path.stem for path in MODELS.glob("*.yaml")} == {
        "gpt3-175b",
        "mt-nlg-530b",
        "bloom-176b",
        "llama-7b",
        "llama-13b",
        "llama-65b",
    }


def test_training_configuration_brings_its_layout(tmp_path: Path) -> None:
    path = tmp_path / "pretrain.yaml"
    path.write_text(
        "seq_len: 512\ntp: 2\npp: 2\nglobal_batch_size: 64\nlr: 1e-4\nsteps: 10\n"
        "model: {vocab_size: 1000, num_layers: 4, hidden_size: 64, num_heads: 4, num_kv_heads: 2, "
        "ffn_hidden_size: 128, rope_theta: 5000.0, dropout: 0.1}\n",
        encoding="utf-8",
    )
    shape, beside = read_model(path)
    assert (shape.seq_len, shape.has_dropout, shape.gated_mlp) == (512, True, True)
    config = apply_training_keys(PlanConfig(gpus=8, pp=4), beside)
    assert (config.tp, config.pp, config.global_batch_size) == (2, 4, 64)


def test_hugging_face_configuration(tmp_path: Path) -> None:
    raw = {
        "model_type": "llama",
        "num_hidden_layers": 80,
        "hidden_size": 8192,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "intermediate_size": 28672,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }
    (tmp_path / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    shape, _ = read_model(tmp_path)
    assert shape.num_parameters == 68_976_648_192
    assert shape.seq_len == 4096


def test_gpt2_configuration(tmp_path: Path) -> None:
    raw = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(raw), encoding="utf-8")
    shape, _ = read_model(path)
    assert shape.num_parameters == 124_439_808


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("m.yaml", "num_layers: 2\n", "must be given"),
        ("m.yaml", "num_layer: 2\n", "unknown configuration key"),
        ("m.yaml", "model: {num_layers: 2, hidden_size: 8, num_heads: 2}\n", "vocab_size"),
        ("config.json", "[]", "holds no object"),
        ("config.json", "{", "is not JSON"),
        ("config.json", '{"hidden_size": 8}', "num_hidden_layers"),
    ],
)
def test_wrong_files_get_a_sentence(tmp_path: Path, name: str, text: str, words: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=words):
        read_model(path)


def test_no_such_model_lists_those_that_ship() -> None:
    with pytest.raises(UserError) as failure:
        read_model(Path("llama-8b"))
    assert "llama-7b" in failure.value.hint

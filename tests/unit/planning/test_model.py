"""Parameters and FLOPs against formulas, against published tables, and against the model that llmctl trains."""

from __future__ import annotations

import pytest

from llmctl.errors import UserError
from llmctl.planning.model import ModelShape


def gpt(layers: int, hidden: int, heads: int, vocab: int = 51200, seq_len: int = 2048) -> ModelShape:
    return ModelShape(layers, hidden, heads, vocab, seq_len=seq_len, gated_mlp=False)


def test_gpt_parameters_follow_the_megatron_formula() -> None:
    shape = gpt(96, 12288, 96)
    layers, hidden, vocab, length = 96, 12288, 51200, 2048
    formula = 12 * layers * hidden**2 * (1 + 13 / (12 * hidden) + (vocab + length) / (12 * layers * hidden))
    assert shape.num_parameters == pytest.approx(formula + 2 * hidden, rel=1e-12)  # the final norm is not in it


def test_parameter_counts_of_sc21_are_exact(tables, published) -> None:
    rows = published.read(tables, "a1")
    assert len(rows) == 10
    for row in rows:
        shape = gpt(int(row["num_layers"]), int(row["hidden_size"]), int(row["attention_heads"]))
        assert round(shape.num_parameters / 1e9, 1) == float(row["params_billion"])


def test_model_flops_are_korthikanti_equation_7() -> None:
    shape, batch = gpt(105, 20480, 128), 280
    h, s, v, layers = 20480, 2048, 51200, 105
    assert shape.model_flops(batch) == pytest.approx(
        72 * batch * layers * s * h**2 * (1 + s / (6 * h) + v / (12 * h * layers)), rel=1e-12
    )


@pytest.mark.parametrize(
    ("recompute", "factor"),
    [
        ("none", lambda h, s, v, layers: 72 * (1 + s / (6 * h) + v / (12 * h * layers))),
        ("selective", lambda h, s, v, layers: 72 * (1 + s / (3 * h) + v / (12 * h * layers))),
        ("full", lambda h, s, v, layers: 96 * (1 + s / (6 * h) + v / (16 * layers * h))),
    ],
)
def test_hardware_flops_count_recomputation(recompute, factor) -> None:
    shape, batch = gpt(48, 6144, 64), 4
    expected = batch * 48 * 2048 * 6144**2 * factor(6144, 2048, 51200, 48)
    assert shape.hardware_flops(batch, recompute) == pytest.approx(expected, rel=1e-12)


def test_flash_attention_has_nothing_to_recompute_selectively() -> None:
    shape = gpt(48, 6144, 64)
    assert shape.hardware_flops(4, "selective", "flash") == shape.model_flops(4)


def test_llama_shapes_have_the_published_sizes() -> None:
    llama = ModelShape(80, 8192, 64, 32000, ffn_hidden_size=22016, tied_embeddings=False)
    assert llama.num_parameters == 65_285_660_672  # what transformers counts
    grouped = ModelShape(80, 8192, 64, 32000, num_kv_heads=8, ffn_hidden_size=28672, tied_embeddings=False)
    assert grouped.num_parameters == 68_976_648_192  # LLaMA-2 70B


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("qk_norm", [True, False])
def test_parameters_equal_those_of_the_model_that_is_trained(tied: bool, qk_norm: bool) -> None:
    from llmctl.model.config import ModelConfig

    keys = {"vocab_size": 320, "num_layers": 3, "hidden_size": 64, "num_heads": 8, "num_kv_heads": 2}
    keys["ffn_hidden_size"] = 96
    config = ModelConfig(**keys, tied_embeddings=tied, qk_norm=qk_norm, qkv_bias=True)
    shape = ModelShape(**keys, tied_embeddings=tied, qk_norm=qk_norm, qkv_bias=True)
    assert shape.num_parameters == config.num_parameters()


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match=r"hidden_size.*not a multiple of `num_heads`"):
        ModelShape(2, 100, 3, 10).validate()
    with pytest.raises(UserError, match="num_kv_heads"):
        ModelShape(2, 96, 8, 10, num_kv_heads=3).validate()

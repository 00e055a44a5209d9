"""The decoder: isolation of packed documents, cache, padding, chunked loss, dropout, initial values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from llmctl.errors import UserError
from llmctl.model import cross_entropy
from llmctl.model.cache import KVCache
from llmctl.model.config import ModelConfig
from llmctl.model.dropout import keep_mask
from llmctl.model.initialization import normal_range, normal_slice
from llmctl.model.layers import TensorGroup
from llmctl.model.transformer import Transformer

CONFIG = ModelConfig(
    vocab_size=97, num_layers=2, hidden_size=32, num_heads=4, num_kv_heads=2, ffn_hidden_size=48, max_seq_len=64
)


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model() -> Transformer:
    model = Transformer(CONFIG, seed=1).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0)  # far from uniform outputs, so that differences show
    return model


def ids(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 97, (batch, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_documents_do_not_see_each_other(model):
    first, second = ids(1, 9, 1), ids(1, 7, 2)
    packed = torch.cat((first, second), 1)
    documents = torch.tensor([[0] * 9 + [1] * 7])
    places = torch.cat((torch.arange(9), torch.arange(7))).unsqueeze(0)
    logits = model.logits(model(packed, document_ids=documents, position_ids=places))
    changed = packed.clone()
    changed[0, :9] = ids(1, 9, 3)
    again = model.logits(model(changed, document_ids=documents, position_ids=places))
    assert torch.equal(logits[:, 9:], again[:, 9:])
    assert not torch.allclose(logits[:, :9], again[:, :9])
    torch.testing.assert_close(logits[:, 9:], model.logits(model(second)))
    plain = model.logits(model(packed))
    assert not torch.allclose(plain[:, 9:], logits[:, 9:], atol=1e-3)


@torch.no_grad()
def test_the_future_is_not_seen(model):
    whole = ids(2, 12)
    changed = whole.clone()
    changed[:, 8:] = (changed[:, 8:] + 1) % 97
    torch.testing.assert_close(model(whole)[:, :8], model(changed)[:, :8])


@torch.no_grad()
def test_cache_gives_what_a_whole_pass_gives(model):
    whole = ids(2, 12)
    expected = model.logits(model(whole))
    cache = KVCache(CONFIG, 2, 12)
    pieces = [model(piece, cache=cache) for piece in whole.split([5, 1, 1, 4, 1], dim=1)]
    torch.testing.assert_close(model.logits(torch.cat(pieces, 1)), expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_left_padding_with_cache(model):
    short, long = ids(1, 5, 1), ids(1, 8, 2)
    rows = torch.cat((torch.cat((torch.zeros(1, 3, dtype=torch.long), short), 1), long))
    mask = torch.ones(2, 8, dtype=torch.bool)
    mask[0, :3] = False
    cache = KVCache(CONFIG, 2, 8)
    head = model(rows[:, :6], attention_mask=mask[:, :6], cache=cache)
    tail = model(rows[:, 6:], attention_mask=mask, cache=cache)
    both = torch.cat((head, tail), 1)
    torch.testing.assert_close(both[0, 3:], model(short)[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(both[1], model(long)[0], rtol=1e-4, atol=1e-5)
    assert torch.isfinite(both).all()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("rows", [1, 5, 1000])
def test_chunked_loss_and_gradients_equal_the_plain_ones(monkeypatch, tied, rows):
    monkeypatch.setattr(cross_entropy, "chunk_rows", lambda vocab_size: rows)
    config = ModelConfig(61, 1, 16, 2, 1, 0, 24, tied_embeddings=tied)
    labels = ids(3, 7, 5) % 61
    labels[0, 3:] = -100
    gradients = []
    for chunked in (True, False):
        model = Transformer(config, seed=2).double()
        hidden = model(ids(3, 7) % 61)
        if chunked:
            loss = model.negative_log_likelihood(hidden, labels)
        else:
            loss = F.cross_entropy(model.logits(hidden).flatten(0, 1), labels.flatten(), reduction="sum")
        (loss * 0.37).backward()
        gradients.append((loss.item(), [parameter.grad for parameter in model.parameters()]))
    assert gradients[0][0] == pytest.approx(gradients[1][0], rel=1e-12)
    for ours, theirs in zip(gradients[0][1], gradients[1][1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_recomputed_layers_give_equal_gradients():
    config = ModelConfig(61, 2, 16, 2, 1, 0, 24, dropout=0.2)
    keys = torch.tensor([11, 12])
    results = []
    for recompute in (False, True):
        model = Transformer(config, seed=2).train()
        model.checkpoint_layers = recompute
        tokens = ids(2, 6) % 61
        model.negative_log_likelihood(model(tokens, dropout_keys=keys), tokens).backward()
        results.append([parameter.grad for parameter in model.parameters()])
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


def test_dropout_depends_on_the_sample_and_the_place_alone():
    keys = torch.tensor([5, 1 << 50, 7])
    mask = keep_mask(keys, 3, 400, 64, 0.25)
    assert torch.equal(mask[1:2], keep_mask(keys[1:2], 3, 400, 64, 0.25))
    assert mask.float().mean().item() == pytest.approx(0.75, abs=0.005)
    for other in (keep_mask(keys, 4, 400, 64, 0.25), mask.roll(1, 0)):
        assert (mask == other).float().mean().item() == pytest.approx(0.75**2 + 0.25**2, abs=0.01)


def test_rotary_frequencies_stay_exact_in_half_precision():
    model = Transformer(CONFIG, seed=1)
    before = model.frequencies.clone()
    assert torch.equal(model.to(torch.bfloat16).frequencies, before)
    assert model.frequencies.dtype == torch.float32


def test_initial_values_are_normal_and_slices_of_the_whole():
    whole = normal_range(3, "a.weight", 0, 60_000)
    assert np.array_equal(normal_range(3, "a.weight", 1_237, 50_001), whole[1_237:50_001])
    assert not np.array_equal(normal_range(4, "a.weight", 0, 100), whole[:100])
    assert not np.array_equal(normal_range(3, "b.weight", 0, 100), whole[:100])
    assert abs(float(whole.mean())) < 0.02
    assert float(whole.std()) == pytest.approx(1.0, abs=0.02)
    table = normal_slice(3, "m", (10, 6), range(10))
    assert torch.equal(normal_slice(3, "m", (10, 6), range(10), range(2, 4)), table[:, 2:4])
    assert torch.equal(normal_slice(3, "m", (10, 6), range(8, 12))[2:], torch.zeros(2, 6))


def test_shards_start_as_slices_of_the_full_model():
    config = ModelConfig(53, 3, 16, 4, 2, 0, 24, tied_embeddings=False)
    full = dict(Transformer(config, seed=9).named_parameters())
    for rank in range(2):
        part = Transformer(config, seed=9, group=TensorGroup(2, rank), layers=range(1, 3))
        names = [name for name, _ in part.named_parameters()]
        assert not any("layers.0." in name for name in names)
        assert "embed_tokens.weight" not in names
        rows = range(rank * 8, rank * 8 + 8)
        parameters = dict(part.named_parameters())
        assert torch.equal(
            parameters["layers.1.self_attn.q_proj.weight"], full["layers.1.self_attn.q_proj.weight"][rows]
        )
        assert torch.equal(
            parameters["layers.2.self_attn.o_proj.weight"], full["layers.2.self_attn.o_proj.weight"][:, rows]
        )
        head = parameters["lm_head.weight"]
        count = 27 if rank == 0 else 26
        assert head.shape[0] == 27
        assert torch.equal(head[:count], full["lm_head.weight"][rank * 27 : rank * 27 + count])
        assert not head[count:].any()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 33}, "multiple of `model.num_heads`"),
        ({"num_kv_heads": 3}, "multiple of `model.num_kv_heads`"),
        ({"head_dim": 7}, "even width"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(changes, words):
    import dataclasses

    with pytest.raises(UserError, match=words):
        dataclasses.replace(CONFIG, **changes).validate()


def test_parameters_are_counted_right():
    for changes in ({}, {"tied_embeddings": False}, {"qk_norm": True, "head_dim": 12}, {"qkv_bias": True}):
        config = ModelConfig(**{**CONFIG.__dict__, **changes})
        model = Transformer(config, seed=None)
        assert sum(parameter.numel() for parameter in model.parameters()) == config.num_parameters()


def test_logits_of_a_batch_never_exist_at_once():
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            self.elements = max(self.elements, *sizes, 0)
            return result

    rows, vocab_size, width = 2048, 40_000, 8
    hidden = torch.randn(rows, width, requires_grad=True)
    weight = torch.randn(vocab_size, width, requires_grad=True)
    with Largest() as largest:
        loss = cross_entropy.chunked_cross_entropy(hidden, weight, torch.arange(rows))
        loss.backward()
    assert hidden.grad is not None and weight.grad is not None
    assert largest.elements <= cross_entropy.CHUNK_ELEMENTS < rows * vocab_size / 4

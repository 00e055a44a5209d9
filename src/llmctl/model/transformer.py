"""An explicit Llama-style decoder; its parameters have the names of transformers' classes.

`RMSNorm → attention → + → RMSNorm → SwiGLU → +` per layer; queries, keys, values, gate and up are separate weights.
One class serves training (packed documents), generation (cache, left padding), tensor parallelism (`group`) and a
stage of a pipeline (`layers`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F

from llmctl.model.cache import KVCache
from llmctl.model.config import ModelConfig
from llmctl.model.cross_entropy import chunked_cross_entropy
from llmctl.model.dropout import residual_dropout
from llmctl.model.layers import ALONE, ColumnLinear, Embedding, RMSNorm, RowLinear, TensorGroup, copy_to_group, shard_of
from llmctl.model.rope import rope_angles, rope_frequencies, rotate


@dataclasses.dataclass
class Positions:
    """What every layer needs to know about positions.

    Attributes:
        cos, sin: rotary factors.
        mask: bool [batch, 1, queries, keys], True where a query may look; None means causal.
        cache: keys and values of earlier positions.
        dropout_keys: int64 [batch], one number per sample; None switches dropout off.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    mask: torch.Tensor | None = None
    cache: KVCache | None = None
    dropout_keys: torch.Tensor | None = None


class Attention(nn.Module):
    """Grouped-query attention with rotary positions; heads are split over the tensor-parallel group."""

    def __init__(self, config: ModelConfig, layer: int, group: TensorGroup) -> None:
        super().__init__()
        width, head = config.hidden_size, config.head_size
        self.layer, self.head_size, self.group = layer, head, group
        self.heads, self.kv_heads = config.num_heads // group.size, config.kv_heads // group.size
        std, bias = config.init_std, config.qkv_bias
        self.q_proj = ColumnLinear(width, config.num_heads * head, std, group, bias)
        self.k_proj = ColumnLinear(width, config.kv_heads * head, std, group, bias)
        self.v_proj = ColumnLinear(width, config.kv_heads * head, std, group, bias)
        self.o_proj = RowLinear(config.num_heads * head, width, std / (2 * config.num_layers) ** 0.5, group)
        self.q_norm = RMSNorm(head, config.norm_eps, group) if config.qk_norm else None
        self.k_norm = RMSNorm(head, config.norm_eps, group) if config.qk_norm else None

    def forward(self, hidden: torch.Tensor, positions: Positions) -> torch.Tensor:
        """Map [batch, queries, width] to the same shape."""
        batch, length, _ = hidden.shape
        hidden = copy_to_group(hidden, self.group)
        queries = self.q_proj(hidden).view(batch, length, self.heads, self.head_size)
        keys = self.k_proj(hidden).view(batch, length, self.kv_heads, self.head_size)
        values = self.v_proj(hidden).view(batch, length, self.kv_heads, self.head_size).transpose(1, 2)
        if self.q_norm is not None and self.k_norm is not None:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        queries = rotate(queries.transpose(1, 2), positions.cos, positions.sin)
        keys = rotate(keys.transpose(1, 2), positions.cos, positions.sin)
        if positions.cache is not None:
            keys, values = positions.cache.update(self.layer, keys.to(values.dtype), values)
        attended = F.scaled_dot_product_attention(
            queries.to(values.dtype),
            keys.to(values.dtype),
            values,
            attn_mask=positions.mask,
            is_causal=positions.mask is None,
            enable_gqa=self.heads != self.kv_heads,
        )
        out: torch.Tensor = self.o_proj(attended.transpose(1, 2).reshape(batch, length, -1))
        return out


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) · up(x)) (Shazeer 2020)."""

    def __init__(self, config: ModelConfig, group: TensorGroup) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.ffn_hidden_size
        self.group = group
        self.gate_proj = ColumnLinear(width, inner, config.init_std, group)
        self.up_proj = ColumnLinear(width, inner, config.init_std, group)
        self.down_proj = RowLinear(inner, width, config.init_std / (2 * config.num_layers) ** 0.5, group)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map [..., width] to the same shape."""
        hidden = copy_to_group(hidden, self.group)
        out: torch.Tensor = self.down_proj(F.silu(self.gate_proj(hidden)) * self.up_proj(hidden))
        return out


class DecoderLayer(nn.Module):
    """One layer of the decoder."""

    def __init__(self, config: ModelConfig, layer: int, group: TensorGroup) -> None:
        super().__init__()
        self.layer, self.dropout = layer, config.dropout
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = Attention(config, layer, group)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = FeedForward(config, group)

    def forward(self, hidden: torch.Tensor, positions: Positions) -> torch.Tensor:
        """Map [batch, positions, width] to the same shape."""
        keys = positions.dropout_keys
        attended = self.self_attn(self.input_layernorm(hidden), positions)
        hidden = hidden + residual_dropout(attended, keys, 2 * self.layer, self.dropout)
        fed = self.mlp(self.post_attention_layernorm(hidden))
        return hidden + residual_dropout(fed, keys, 2 * self.layer + 1, self.dropout)


class Head(nn.Module):
    """The output layer; its rows may be split over the tensor-parallel group, and be those of the embedding."""

    def __init__(self, config: ModelConfig, group: TensorGroup, weight: nn.Parameter | None) -> None:
        super().__init__()
        self.vocab_size, self.group = config.vocab_size, group
        if weight is None:
            weight = Embedding(config.vocab_size, config.hidden_size, config.init_std, group).weight
        self.weight = weight

    def forward(self, hidden: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Return logits [..., vocabulary], or with `labels` [...] their summed negative log-likelihood in nats."""
        if labels is None:
            # Split rows: each process gets the columns of its own share.
            return F.linear(copy_to_group(hidden, self.group), self.weight)
        start = shard_of(self.weight).start
        return chunked_cross_entropy(
            hidden, self.weight, labels, start=start, vocab_size=self.vocab_size, group=self.group
        )


class Transformer(nn.Module):
    """The decoder, or the part of it that one process of a tensor- and pipeline-parallel run holds.

    Args:
        config: the shape; `vocab_size` must be set.
        group: the tensor-parallel group.
        layers: the layers of this pipeline stage; the first stage has the embedding, the last the head.
        seed: of the initial values; None leaves them uninitialised, to be loaded.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        group: TensorGroup = ALONE,
        layers: range | None = None,
        seed: int | None = 0,
    ) -> None:
        super().__init__()
        self.config, self.group = config, group
        layers = range(config.num_layers) if layers is None else layers
        self.is_first, self.is_last = layers.start == 0, layers.stop == config.num_layers
        self.checkpoint_layers = False
        tied = config.tied_embeddings
        self.embed_tokens = None
        if self.is_first or (self.is_last and tied):
            self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, config.init_std, group)
        # Keys are global layer numbers, so that names do not depend on the stage.
        self.layers = nn.ModuleDict({str(layer): DecoderLayer(config, layer, group) for layer in layers})
        self.norm = RMSNorm(config.hidden_size, config.norm_eps) if self.is_last else None
        self.lm_head = None
        if self.is_last:
            shared = self.embed_tokens.weight if tied and self.embed_tokens is not None else None
            self.lm_head = Head(config, group, shared)
        self.frequencies: torch.Tensor
        self.register_buffer("frequencies", rope_frequencies(config), persistent=False)
        if seed is not None:
            self.initialize(seed)

    def logical_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield (name in the full model, parameter), tied weights once, under the embedding's name."""
        yield from self.named_parameters(remove_duplicate=True)

    def _apply(self, fn: Any, recurse: bool = True) -> Transformer:
        # Rotary frequencies stay float32 whatever the module is cast to: in bf16 positions beyond 256 would blur.
        super()._apply(fn, recurse)
        device = next((parameter.device for parameter in self.parameters()), self.frequencies.device)
        self.frequencies = rope_frequencies(self.config).to(device)
        return self

    @torch.no_grad()
    def initialize(self, seed: int) -> None:
        """Set the initial values: this process's slices of the full tensors."""
        for name, parameter in self.logical_parameters():
            parameter.copy_(shard_of(parameter).initial(seed, name, parameter.shape))

    def forward(
        self,
        input_ids: torch.Tensor,
        *,
        position_ids: torch.Tensor | None = None,
        document_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        cache: KVCache | None = None,
        dropout_keys: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return final hidden states [batch, positions, width], normalised and ready for `logits`.

        Args:
            input_ids: int64 [batch, positions]; on a later pipeline stage the hidden states of the one before.
            position_ids: int64 [batch, positions]; counted from the mask, the cache or zero where not given.
            document_ids: int64 [batch, positions]; a position sees only its own document. Negative marks padding.
            attention_mask: bool [batch, keys], False at padding (on the left), over cached and new positions.
            cache: earlier keys and values; the new ones are added.
            dropout_keys: int64 [batch], one number per sample; None switches dropout off.
        """
        past = cache.length if cache is not None else 0
        length = input_ids.shape[1]
        if position_ids is None:
            position_ids = _count_positions(attention_mask, past, length, input_ids.device)
        hidden = self.embed_tokens(input_ids) if self.is_first and self.embed_tokens is not None else input_ids
        dtype = hidden.dtype
        cos, sin = rope_angles(self.frequencies, position_ids, dtype)
        mask = attention_pattern(length, past, document_ids, attention_mask, input_ids.device)
        positions = Positions(cos, sin, mask, cache, dropout_keys if self.training else None)
        for layer in self.layers.values():
            if self.checkpoint_layers and self.training and torch.is_grad_enabled():
                # preserve_rng_state: dropout here does not read the generator.
                hidden = torch.utils.checkpoint.checkpoint(
                    layer, hidden, positions, use_reentrant=False, preserve_rng_state=False
                )
            else:
                hidden = layer(hidden, positions)
        if cache is not None:
            cache.advance(length)
        return self.norm(hidden) if self.norm is not None else hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [..., vocabulary] of hidden states [..., width] (this process's columns if split)."""
        assert self.lm_head is not None
        out: torch.Tensor = self.lm_head(hidden)
        return out

    def negative_log_likelihood(self, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the summed negative log-likelihood in nats of `labels` (−100 does not count), a scalar.

        The logits of the whole batch never exist at once.
        """
        assert self.lm_head is not None
        out: torch.Tensor = self.lm_head(hidden, labels)
        return out


def _count_positions(attention_mask: torch.Tensor | None, past: int, length: int, device: torch.device) -> torch.Tensor:
    if attention_mask is None:
        return torch.arange(past, past + length, device=device).unsqueeze(0)
    return (attention_mask.long().cumsum(-1) - 1).clamp_min(0)[:, -length:]


def attention_pattern(
    length: int,
    past: int,
    document_ids: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    device: torch.device,
) -> torch.Tensor | None:
    """Return which keys each query may look at, bool [batch or 1, 1, queries, keys], or None for plain causal.

    Every query may look at itself, so that padding does not yield NaN.
    """
    if document_ids is None and attention_mask is None and past == 0:
        return None
    queries = torch.arange(past, past + length, device=device).unsqueeze(1)
    keys = torch.arange(past + length, device=device).unsqueeze(0)
    mask = (keys <= queries).unsqueeze(0)
    if document_ids is not None:
        mask = mask & (document_ids.unsqueeze(2) == document_ids.unsqueeze(1))
    if attention_mask is not None:
        mask = mask & attention_mask[:, : past + length].bool().unsqueeze(1)
        mask = mask | (keys == queries).unsqueeze(0)
    return mask.unsqueeze(1)

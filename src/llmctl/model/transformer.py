"""An explicit Llama-style decoder; its parameters have the names of transformers' classes.

`RMSNorm → attention → + → RMSNorm → SwiGLU → +` per layer; queries, keys, values, gate and up are separate weights.
One class serves training (packed documents), generation (cache, left padding), tensor parallelism (`group`) and a
stage of a pipeline (`layers`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F

from llmctl.errors import UserError
from llmctl.model.cache import KVCache
from llmctl.model.collectives import ALONE, TensorGroup, copy_to_group, into_split, join_positions, saving_shards
from llmctl.model.config import ModelConfig
from llmctl.model.cross_entropy import chunked_cross_entropy
from llmctl.model.dropout import residual_dropout
from llmctl.model.layers import ColumnLinear, Embedding, RMSNorm, RowLinear, shard_of
from llmctl.model.rope import rope_angles, rope_frequencies, rotate


@dataclasses.dataclass
class Positions:
    """What every layer needs to know about positions.

    Attributes:
        cos, sin: rotary factors.
        mask: bool [batch, 1, queries, keys], True where a query may look; None means causal.
        cache: keys and values of earlier positions.
        dropout_keys: int64 [batch], one number per sample; None switches dropout off.
        first_position: number of the first position of this process's hidden states (sequence parallelism).
        recompute: which activations are computed again in the backward pass: ``none``, ``selective`` (what attention
            computes from queries, keys and values) or ``full`` (whole layers).
    """

    cos: torch.Tensor
    sin: torch.Tensor
    mask: torch.Tensor | None = None
    cache: KVCache | None = None
    dropout_keys: torch.Tensor | None = None
    first_position: int = 0
    recompute: str = "none"


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
        """Map [batch, queries, width] to the same shape (with sequence parallelism: this process's positions)."""
        hidden = into_split(hidden, self.group)
        batch, length, _ = hidden.shape
        with saving_shards(hidden, self.group, positions.recompute != "full"):
            queries = self.q_proj(hidden).view(batch, length, self.heads, self.head_size)
            keys = self.k_proj(hidden).view(batch, length, self.kv_heads, self.head_size)
            values = self.v_proj(hidden).view(batch, length, self.kv_heads, self.head_size).transpose(1, 2)
        if positions.recompute == "selective" and positions.cache is None:
            attended = _again(self._attend, queries, keys, values, positions)
        else:
            attended = self._attend(queries, keys, values, positions)
        out: torch.Tensor = self.o_proj(attended.transpose(1, 2).reshape(batch, length, -1))
        return out

    def _attend(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, positions: Positions
    ) -> torch.Tensor:
        """Return [batch, heads, queries, head_size]."""
        if self.q_norm is not None and self.k_norm is not None:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        queries = rotate(queries.transpose(1, 2), positions.cos, positions.sin)
        keys = rotate(keys.transpose(1, 2), positions.cos, positions.sin)
        if positions.cache is not None:
            keys, values = positions.cache.update(self.layer, keys.to(values.dtype), values)
        return F.scaled_dot_product_attention(
            queries.to(values.dtype),
            keys.to(values.dtype),
            values,
            attn_mask=positions.mask,
            is_causal=positions.mask is None,
            enable_gqa=self.heads != self.kv_heads,
        )


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) · up(x)) (Shazeer 2020)."""

    def __init__(self, config: ModelConfig, group: TensorGroup) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.ffn_hidden_size
        self.group = group
        self.gate_proj = ColumnLinear(width, inner, config.init_std, group)
        self.up_proj = ColumnLinear(width, inner, config.init_std, group)
        self.down_proj = RowLinear(inner, width, config.init_std / (2 * config.num_layers) ** 0.5, group)

    def forward(self, hidden: torch.Tensor, recompute: str = "none") -> torch.Tensor:
        """Map [batch, positions, width] to the same shape."""
        hidden = into_split(hidden, self.group)
        with saving_shards(hidden, self.group, recompute != "full"):
            gate, up = self.gate_proj(hidden), self.up_proj(hidden)
        out: torch.Tensor = self.down_proj(F.silu(gate) * up)
        return out


class DecoderLayer(nn.Module):
    """One layer of the decoder."""

    def __init__(self, config: ModelConfig, layer: int, group: TensorGroup) -> None:
        super().__init__()
        self.layer, self.dropout = layer, config.dropout
        over = group if group.splits_sequence else ALONE
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps, over)
        self.self_attn = Attention(config, layer, group)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps, over)
        self.mlp = FeedForward(config, group)

    def forward(self, hidden: torch.Tensor, positions: Positions) -> torch.Tensor:
        """Map [batch, positions, width] to the same shape."""
        keys, first, site = positions.dropout_keys, positions.first_position, 2 * self.layer
        attended = self.self_attn(self.input_layernorm(hidden), positions)
        hidden = hidden + residual_dropout(attended, keys, site, self.dropout, first)
        fed = self.mlp(self.post_attention_layernorm(hidden), positions.recompute)
        return hidden + residual_dropout(fed, keys, site + 1, self.dropout, first)


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
        layers: the layers of this pipeline stage, or of each of its virtual stages; the first stage of all has the
            embedding, the last the head.
        seed: of the initial values; None leaves them uninitialised, to be loaded.

    Attributes:
        chunk: number of the virtual stage that `forward` computes.
        recompute: see `Positions`.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        group: TensorGroup = ALONE,
        layers: range | Sequence[range] | None = None,
        seed: int | None = 0,
    ) -> None:
        super().__init__()
        self.config, self.group = config, group
        layers = range(config.num_layers) if layers is None else layers
        self.chunks = (layers,) if isinstance(layers, range) else tuple(layers)
        self.chunk, self.recompute = 0, "none"
        self.is_first, self.is_last = self.chunks[0].start == 0, self.chunks[-1].stop == config.num_layers
        tied = config.tied_embeddings
        self.embed_tokens = None
        if self.is_first or (self.is_last and tied):
            self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, config.init_std, group)
        # Keys are global layer numbers, so that names do not depend on the stage.
        self.layers = nn.ModuleDict(
            {str(layer): DecoderLayer(config, layer, group) for chunk in self.chunks for layer in chunk}
        )
        over = group if group.splits_sequence else ALONE
        self.norm = RMSNorm(config.hidden_size, config.norm_eps, over) if self.is_last else None
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
        mine = self.chunks[self.chunk]
        is_first, is_last = mine.start == 0, mine.stop == self.config.num_layers
        hidden = input_ids
        if is_first and self.embed_tokens is not None:
            if self.group.splits_sequence and input_ids.shape[1] % self.group.size:
                raise UserError(
                    f"{input_ids.shape[1]} positions cannot be split over tp {self.group.size}",
                    "switch sequence_parallel off, or take a seq_len that divides",
                )
            hidden = self.embed_tokens(input_ids)
        length = hidden.shape[1] * (self.group.size if self.group.splits_sequence else 1)
        past = cache.length if cache is not None else 0
        if position_ids is None:
            position_ids = _count_positions(attention_mask, past, length, input_ids.device)
        cos, sin = rope_angles(self.frequencies, position_ids, hidden.dtype)
        recompute = self.recompute if self.training and torch.is_grad_enabled() else "none"
        positions = Positions(
            cos,
            sin,
            attention_pattern(length, past, document_ids, attention_mask, input_ids.device),
            cache,
            dropout_keys if self.training else None,
            self.group.rank * hidden.shape[1] if self.group.splits_sequence else 0,
            recompute,
        )
        for number in mine:
            layer = self.layers[str(number)]
            hidden = _again(layer, hidden, positions) if recompute == "full" else layer(hidden, positions)
        if cache is not None:
            cache.advance(length)
        if not is_last or self.norm is None:
            return hidden
        return join_positions(self.norm(hidden), self.group)

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


def _again(function: Any, *arguments: Any) -> torch.Tensor:
    """Call a function whose activations are computed again in the backward pass."""
    # preserve_rng_state: dropout here does not read the generator.
    out: torch.Tensor = torch.utils.checkpoint.checkpoint(
        function, *arguments, use_reentrant=False, preserve_rng_state=False
    )
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

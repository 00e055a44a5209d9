"""The shape of a model, as it stands in configurations, checkpoints and exports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from llmctl.config.schema import Opt
from llmctl.errors import UserError

# Kinds of RoPE scaling that `transformer.rope_frequencies` computes.
ROPE_SCALINGS = ("default", "linear", "llama3")


@dataclass
class ModelConfig:
    """A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU."""

    vocab_size: Annotated[int, Opt("Rows of the embedding; 0 takes the tokenizer's.", min=0)] = 0
    num_layers: Annotated[int, Opt("Decoder layers.", min=1)] = 12
    hidden_size: Annotated[int, Opt("Width of the residual stream.", min=1)] = 768
    num_heads: Annotated[int, Opt("Query heads.", min=1)] = 12
    num_kv_heads: Annotated[int, Opt("Key and value heads; 0 takes `num_heads`.", min=0)] = 4
    head_dim: Annotated[int, Opt("Width of one head; 0 takes hidden_size / num_heads.", min=0)] = 0
    ffn_hidden_size: Annotated[int, Opt("Inner width of the feed-forward part.", min=1)] = 2048
    max_seq_len: Annotated[
        int, Opt("Longest sequence that the exported model declares; 0 takes the training `seq_len`.", min=0)
    ] = 0
    rope_theta: Annotated[float, Opt("Base of the rotary frequencies.", min=1)] = 10000.0
    rope_scaling: Annotated[
        dict[str, Any] | None,
        Opt("Rotary scaling in transformers' words, e.g. {rope_type: linear, factor: 2.0}."),
    ] = None
    norm_eps: Annotated[float, Opt("Added to the mean square in RMSNorm.", min=0)] = 1e-5
    tied_embeddings: Annotated[bool, Opt("Use the embedding as the output layer too.")] = True
    qk_norm: Annotated[bool, Opt("Normalise queries and keys per head (Qwen3).")] = False
    qkv_bias: Annotated[bool, Opt("Add a bias to queries, keys and values (Qwen2).")] = False
    init_std: Annotated[
        float, Opt("Standard deviation of initial weights; output projections get it divided by √(2·layers).", min=0)
    ] = 0.02
    dropout: Annotated[float, Opt("Dropout on the residual path, keyed by seed, sample and layer.", min=0, max=0.9)] = (
        0.0
    )

    @property
    def kv_heads(self) -> int:
        """Return the number of key and value heads."""
        return self.num_kv_heads or self.num_heads

    @property
    def head_size(self) -> int:
        """Return the width of one head."""
        return self.head_dim or self.hidden_size // self.num_heads

    def validate(self) -> None:
        """Refuse shapes that do not fit together.

        Raises:
            UserError: names the key that does not divide.
        """
        if not self.head_dim and self.hidden_size % self.num_heads:
            raise UserError(
                f"`model.hidden_size` {self.hidden_size} is not a multiple of `model.num_heads` {self.num_heads}",
                f"take hidden_size {_nearest_multiple(self.hidden_size, self.num_heads)}, or set model.head_dim",
            )
        if self.head_size % 2:
            raise UserError(
                f"the heads are {self.head_size} wide, and rotary positions need an even width",
                "choose an even model.hidden_size / model.num_heads",
            )
        if self.num_heads % self.kv_heads:
            fitting = [count for count in range(1, self.num_heads + 1) if self.num_heads % count == 0]
            raise UserError(
                f"`model.num_heads` {self.num_heads} is not a multiple of `model.num_kv_heads` {self.kv_heads}",
                f"num_kv_heads can be {', '.join(map(str, fitting))}",
            )
        kind = rope_type(self.rope_scaling)
        if kind not in ROPE_SCALINGS:
            raise UserError(
                f"`model.rope_scaling` of type `{kind}` is not supported", f"supported: {', '.join(ROPE_SCALINGS)}"
            )
        if kind != "default" and "factor" not in (self.rope_scaling or {}):
            raise UserError("`model.rope_scaling` has no `factor`", "write {rope_type: linear, factor: 2.0}")

    def num_parameters(self) -> int:
        """Return the number of parameters, tied embeddings counted once."""
        hidden, head = self.hidden_size, self.head_size
        attention = hidden * head * (2 * self.num_heads + 2 * self.kv_heads)
        attention += head * (self.num_heads + 2 * self.kv_heads) if self.qkv_bias else 0
        attention += 2 * head if self.qk_norm else 0
        layer = attention + 3 * hidden * self.ffn_hidden_size + 2 * hidden
        embeddings = self.vocab_size * hidden * (1 if self.tied_embeddings else 2)
        return self.num_layers * layer + embeddings + hidden

    def flops_per_token(self, seq_len: int) -> float:
        """Return model FLOPs of one training token: 6 per matrix weight, plus 6·layers·seq_len·width of attention.

        The attention term counts the causal half only (Korthikanti et al. 2022 count all of it).
        """
        matrices = self.num_parameters() - self.vocab_size * self.hidden_size * (0 if self.tied_embeddings else 1)
        return 6.0 * matrices + 6.0 * self.num_layers * seq_len * self.num_heads * self.head_size


def rope_type(scaling: dict[str, Any] | None) -> str:
    """Return the kind of a RoPE scaling mapping; older checkpoints call the key ``type``."""
    scaling = scaling or {}
    return str(scaling.get("rope_type", scaling.get("type", "default")))


def _nearest_multiple(value: int, of: int) -> int:
    return max(of, round(value / of) * of)

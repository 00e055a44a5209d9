"""The shape of a model: its parameters and FLOPs.

Two families are described by the same keys. GPT style (`gated_mlp: false`): LayerNorm, biases, learned positions,
dropout. Llama style (`gated_mlp: true`): RMSNorm, no biases, rotary positions. Each of those can be set by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from llmctl.config.schema import Opt
from llmctl.errors import UserError

MODEL_FLOPS_FORMULA = (
    "Korthikanti et al. 2022, eq. 7: 3 × (2·matrix weights + 4·layers·seq_len·heads·head_dim + 2·hidden·vocab) per "
    "token; 72·B·L·s·h²·(1 + s/6h + V/12hL) for a GPT with 4h feed-forward width"
)


@dataclass
class ModelShape:
    """What the planner must know about a transformer decoder (MODEL.yaml)."""

    num_layers: Annotated[int, Opt("Decoder layers.", min=1)]
    hidden_size: Annotated[int, Opt("Width of the residual stream.", min=1)]
    num_heads: Annotated[int, Opt("Query heads.", min=1)]
    vocab_size: Annotated[int, Opt("Rows of the embedding.", min=1)]
    num_kv_heads: Annotated[int, Opt("Key and value heads; 0 takes `num_heads`.", min=0)] = 0
    head_dim: Annotated[int, Opt("Width of one head; 0 takes hidden_size / num_heads.", min=0)] = 0
    ffn_hidden_size: Annotated[
        int, Opt("Inner width of the feed-forward part; 0 takes 4·hidden, or 8/3 of it where gated.", min=0)
    ] = 0
    gated_mlp: Annotated[bool, Opt("SwiGLU: three feed-forward matrices, not two.")] = True
    seq_len: Annotated[int, Opt("Tokens of one sequence.", min=1)] = 2048
    tied_embeddings: Annotated[bool, Opt("Use the embedding as the output layer too.")] = True
    biases: Annotated[bool | None, Opt("Biases in layers and norms; default: where the MLP is not gated.")] = None
    learned_positions: Annotated[
        bool | None, Opt("A learned vector for each position; default: where the MLP is not gated.")
    ] = None
    dropout: Annotated[bool | None, Opt("Dropout masks are kept; default: where the MLP is not gated.")] = None
    qkv_bias: Annotated[bool, Opt("A bias for queries, keys and values alone (Qwen2).")] = False
    qk_norm: Annotated[bool, Opt("Queries and keys are normalised per head (Qwen3).")] = False

    @property
    def kv_heads(self) -> int:
        """Return the number of key and value heads."""
        return self.num_kv_heads or self.num_heads

    @property
    def head_size(self) -> int:
        """Return the width of one head."""
        return self.head_dim or self.hidden_size // self.num_heads

    @property
    def ffn_size(self) -> int:
        """Return the inner width of the feed-forward part."""
        if self.ffn_hidden_size:
            return self.ffn_hidden_size
        return -(-self.hidden_size * 8 // 3 // 64) * 64 if self.gated_mlp else 4 * self.hidden_size

    @property
    def query_size(self) -> int:
        """Return the width of all query heads together."""
        return self.num_heads * self.head_size

    @property
    def kv_size(self) -> int:
        """Return the width of all key (or value) heads together."""
        return self.kv_heads * self.head_size

    @property
    def has_biases(self) -> bool:
        """Tell whether every linear layer and norm has a bias."""
        return (not self.gated_mlp) if self.biases is None else self.biases

    @property
    def has_positions(self) -> bool:
        """Tell whether positions have learned vectors."""
        return (not self.gated_mlp) if self.learned_positions is None else self.learned_positions

    @property
    def has_dropout(self) -> bool:
        """Tell whether dropout masks are kept for the backward pass."""
        return (not self.gated_mlp) if self.dropout is None else self.dropout

    def validate(self) -> None:
        """Refuse shapes that do not fit together.

        Raises:
            UserError: names the key that does not divide.
        """
        if not self.head_dim and self.hidden_size % self.num_heads:
            near = max(self.num_heads, round(self.hidden_size / self.num_heads) * self.num_heads)
            raise UserError(
                f"`hidden_size` {self.hidden_size} is not a multiple of `num_heads` {self.num_heads}",
                f"take hidden_size {near}, or set head_dim",
            )
        if self.num_heads % self.kv_heads:
            fitting = [count for count in range(1, self.num_heads + 1) if self.num_heads % count == 0]
            raise UserError(
                f"`num_heads` {self.num_heads} is not a multiple of `num_kv_heads` {self.kv_heads}",
                f"num_kv_heads can be {', '.join(map(str, fitting))}",
            )

    # -- parameters

    @property
    def layer_matrices(self) -> int:
        """Return the weights of one layer's matrices, which tensor parallelism splits."""
        attention = self.hidden_size * (2 * self.query_size + 2 * self.kv_size)
        return attention + (3 if self.gated_mlp else 2) * self.hidden_size * self.ffn_size

    @property
    def layer_split_vectors(self) -> int:
        """Return the biases of one layer that are split with their matrix's columns."""
        qkv = self.query_size + 2 * self.kv_size
        if not self.has_biases:
            return qkv if self.qkv_bias else 0
        return qkv + (2 if self.gated_mlp else 1) * self.ffn_size

    @property
    def layer_whole_vectors(self) -> int:
        """Return the norms and biases of one layer that every tensor-parallel rank holds whole."""
        norms = 2 * self.norm_size
        output_biases = 2 * self.hidden_size if self.has_biases else 0
        return norms + output_biases + (2 * self.head_size if self.qk_norm else 0)

    @property
    def norm_size(self) -> int:
        """Return the parameters of one norm."""
        return self.hidden_size * (2 if self.has_biases else 1)

    @property
    def layer_parameters(self) -> int:
        """Return the parameters of one layer."""
        return self.layer_matrices + self.layer_split_vectors + self.layer_whole_vectors

    @property
    def position_parameters(self) -> int:
        """Return the learned position vectors."""
        return self.seq_len * self.hidden_size if self.has_positions else 0

    @property
    def num_parameters(self) -> int:
        """Return all parameters, tied embeddings counted once.

        12·l·h²·(1 + 13/(12h) + (V + s)/(12·l·h)) of Narayanan et al. 2021 (eq. 2) for a GPT, plus the final norm.
        """
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)
        return self.num_layers * self.layer_parameters + embeddings + self.position_parameters + self.norm_size

    # -- FLOPs of one sequence, forward

    @property
    def layer_matrix_flops(self) -> float:
        """Return forward FLOPs of one layer's weight matrices for one sequence."""
        return 2.0 * self.seq_len * self.layer_matrices

    @property
    def layer_attention_flops(self) -> float:
        """Return forward FLOPs of QKᵀ and PV of one layer for one sequence, the masked half counted too."""
        return 4.0 * self.seq_len**2 * self.query_size

    @property
    def logit_flops(self) -> float:
        """Return forward FLOPs of the output layer for one sequence."""
        return 2.0 * self.seq_len * self.hidden_size * self.vocab_size

    def model_flops(self, sequences: int) -> float:
        """Return FLOPs that a step of `sequences` needs, recomputation left out (see `MODEL_FLOPS_FORMULA`)."""
        layers = self.num_layers * (self.layer_matrix_flops + self.layer_attention_flops)
        return 3.0 * sequences * (layers + self.logit_flops)

    def hardware_flops(self, sequences: int, recompute: str, attention: str = "core") -> float:
        """Return FLOPs that a step computes, recomputation counted.

        ``full`` adds one forward pass of the layers: 96·B·s·l·h²·(1 + s/6h + V/16lh) for a GPT (Narayanan et al.
        2021, eq. 3). ``selective`` counts attention twice: 72·B·L·s·h²·(1 + s/3h + V/12hL) (Korthikanti et al. 2022,
        eq. 8; that is the published convention, although one more forward pass would be a third of it).
        """
        flops = self.model_flops(sequences)
        if recompute == "full":
            flops += sequences * self.num_layers * (self.layer_matrix_flops + self.layer_attention_flops)
        elif recompute == "selective" and attention == "core":
            flops += 3.0 * sequences * self.num_layers * self.layer_attention_flops
        return flops

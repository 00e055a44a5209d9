"""Keys and values of earlier positions, for generation."""

from __future__ import annotations

import torch

from llmctl.model.config import ModelConfig


class KVCache:
    """Keys and values of every layer, [batch, kv_heads, max_len, head_size] each, filled from the left.

    Rows of different length are left-padded by the caller and told apart by `attention_mask`.
    """

    def __init__(
        self,
        config: ModelConfig,
        batch: int,
        max_len: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (config.num_layers, batch, config.kv_heads, max_len, config.head_size)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.length = 0

    @property
    def max_len(self) -> int:
        """Return the number of positions that fit."""
        return self.keys.shape[3]

    def update(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the keys and values of new positions; return those of all positions so far.

        Args:
            keys, values: [batch, kv_heads, new, head_size].
        """
        stop = self.length + keys.shape[2]
        self.keys[layer, :, :, self.length : stop] = keys
        self.values[layer, :, :, self.length : stop] = values
        return self.keys[layer, :, :, :stop], self.values[layer, :, :, :stop]

    def advance(self, count: int) -> None:
        """Count `count` new positions, once every layer has stored them."""
        self.length += count

    def select(self, rows: torch.Tensor) -> None:
        """Keep only the given rows of the batch (finished rows can be dropped), int64 [rows]."""
        self.keys = self.keys[:, rows].contiguous()
        self.values = self.values[:, rows].contiguous()

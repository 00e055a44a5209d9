"""Rotary positions (Su et al. 2021), with the frequencies and scalings of transformers."""

from __future__ import annotations

import math

import torch

from llmctl.model.config import ModelConfig, rope_type


def rope_frequencies(config: ModelConfig) -> torch.Tensor:
    """Return the angular frequency of each pair of dimensions, float32 [head_size / 2]."""
    exponents = torch.arange(0, config.head_size, 2, dtype=torch.int64).float() / config.head_size
    frequencies = 1.0 / (config.rope_theta**exponents)
    scaling, kind = config.rope_scaling or {}, rope_type(config.rope_scaling)
    if kind == "linear":
        return frequencies / float(scaling["factor"])
    if kind == "llama3":
        return _llama3(frequencies, scaling)
    return frequencies


def _llama3(frequencies: torch.Tensor, scaling: dict) -> torch.Tensor:
    """Slow down long wavelengths only, with a smooth passage between (Llama 3.1)."""
    factor = float(scaling["factor"])
    low, high = float(scaling.get("low_freq_factor", 1.0)), float(scaling.get("high_freq_factor", 4.0))
    original = float(scaling.get("original_max_position_embeddings", 8192))
    wavelengths = 2 * math.pi / frequencies
    smooth = (original / wavelengths - low) / (high - low)
    blended = (1 - smooth) * frequencies / factor + smooth * frequencies
    slowed = torch.where(wavelengths > original / low, frequencies / factor, frequencies)
    between = (wavelengths <= original / low) & (wavelengths >= original / high)
    return torch.where(between, blended, slowed)


def rope_angles(frequencies: torch.Tensor, position_ids: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Return (cos, sin) [batch or 1, 1, positions, head_size] for positions [batch or 1, positions]."""
    angles = position_ids.unsqueeze(-1).float() * frequencies
    angles = torch.cat((angles, angles), dim=-1).unsqueeze(1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate queries or keys [batch, heads, positions, head_size] by their positions (half-split layout)."""
    half = states.shape[-1] // 2
    rotated = torch.cat((-states[..., half:], states[..., :half]), dim=-1)
    return (states * cos + rotated * sin).to(states.dtype)

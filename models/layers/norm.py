"""Normalization layers."""

from __future__ import annotations

from torch import nn

from moetraffic.patterns import ModelShape

EPSILON = 1e-6
"""Of RMS norms, as Qwen, DeepSeek and T5 have it (Mixtral: 1e-5)."""


def rms(width: int) -> nn.RMSNorm:
    """``x / sqrt(mean(x^2) + eps) * weight`` (Zhang, Sennrich, arXiv 1910.07467)."""
    return nn.RMSNorm(width, eps=EPSILON)


def norm(shape: ModelShape) -> nn.Module:
    """The normalization layer that the model shape selects."""
    if shape.norm == "rms":
        return rms(shape.hidden)
    return nn.LayerNorm(shape.hidden, bias=shape.norm_bias)

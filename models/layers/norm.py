"""Normalization layers."""

from __future__ import annotations

from torch import nn

from moetraffic.patterns import ModelShape

EPSILON = 1e-6
"""Of RMS norms, as Qwen, DeepSeek and T5 have it (Mixtral: 1e-5)."""


def rms(width: int) -> nn.RMSNorm:
    """Create an RMS norm, ``x / sqrt(mean(x^2) + eps) * weight`` (arXiv 1910.07467)."""
    return nn.RMSNorm(width, eps=EPSILON)


def norm(shape: ModelShape) -> nn.Module:
    """Create the normalization layer of a model shape (RMS norm or layer norm)."""
    if shape.norm == "rms":
        return rms(shape.hidden)
    return nn.LayerNorm(shape.hidden, bias=shape.norm_bias)

"""Attention layers (multi-head, grouped-query, cross, latent) and normalization."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from moetraffic.patterns import ModelShape

from .positions import rotated

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


class Attention(nn.Module):
    """Multi-head attention with optional grouped query heads.

    With ``causal`` a token sees only itself and those before it; with ``cross`` keys
    and values come from elsewhere, and positions play no part.  The number of heads
    here is what the width of the projections says, so that a slice of the matrices by
    heads is this rank's share of the layer.  T5 leaves out the scaling of scores by
    ``1/sqrt(d)`` and begins with smaller queries; here all scale.

    References
    ----------
    Vaswani et al., arXiv 1706.03762, section 3.2; grouped heads: Ainslie et al.,
    arXiv 2305.13245; norms of query and key: Qwen3, arXiv 2505.09388, section 2.
    """

    column_parallel = ("q", "k", "v")
    row_parallel = ("out",)

    def __init__(
        self, shape: ModelShape, *, causal: bool = True, cross: bool = False
    ) -> None:
        super().__init__()
        h, d = shape.hidden, shape.head_width
        self.head_width = d
        self.causal = causal and not cross
        self.rotary_base = shape.rotary_base
        self.rotary = shape.positions == "rotary" and not cross
        biased = shape.bias or shape.qkv_bias
        self.q = nn.Linear(h, shape.heads * d, bias=biased)
        self.k = nn.Linear(h, shape.groups * d, bias=biased)
        self.v = nn.Linear(h, shape.groups * d, bias=biased)
        self.out = nn.Linear(shape.heads * d, h, bias=shape.bias)
        if shape.qk_norm:
            self.q_norm, self.k_norm = rms(d), rms(d)
        self.normed = shape.qk_norm

    def forward(
        self, x: Tensor, *, memory: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """Apply self- or cross-attention to ``[B, S, h]`` token vectors.

        In cross-attention ``memory`` is ``[B, M, h]``, what is asked; None is ``x``
        itself.  ``bias`` is ``[heads, S, S]`` to add to the scores, its causality
        included.
        """
        asked = x if memory is None else memory
        q, k, v = self._heads(self.q(x)), self._heads(self.k(asked)), self.v(asked)
        if self.normed:
            q, k = _normed(self.q_norm, q), _normed(self.k_norm, k)
        if self.rotary:
            q, k = rotated(q, self.rotary_base), rotated(k, self.rotary_base)
        return _attend(q, k, self._heads(v), self.out, causal=self.causal, bias=bias)

    def _heads(self, y: Tensor) -> Tensor:
        """Split ``[B, S, heads d]`` by heads into ``[B, heads, S, d]``."""
        return y.view(*y.shape[:2], -1, self.head_width).transpose(1, 2)


class LatentAttention(nn.Module):
    """DeepSeek's multi-head latent attention.

    A head's query and key have a part that knows no position and a rotated part; the
    key's rotated part is the same for all heads.  No matrix has a bias.  The shape has
    a ``kv_rank``; its ``query_rank`` 0 leaves the query uncompressed.

    References
    ----------
    DeepSeek-V2, arXiv 2405.04434, section 2.1 and equations 9 to 19; its Lite variant
    has no compressed query (appendix B.1).  Left out: the extension of rotary
    positions to long sequences (YaRN), which has no parameters.
    """

    column_parallel = ("q", "kv")
    row_parallel = ("out",)

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        h, self.plain, self.rope = shape.hidden, shape.head_width, shape.rope_size
        self.rank, self.value = shape.kv_rank, shape.value_width
        self.rotary_base = shape.rotary_base
        self.compressed = shape.query_rank > 0
        if self.compressed:
            self.q_down = nn.Linear(h, shape.query_rank, bias=False)
            self.q_norm = rms(shape.query_rank)
        self.q = nn.Linear(
            shape.query_rank or h, shape.heads * (self.plain + self.rope), bias=False
        )
        self.kv_down = nn.Linear(h, self.rank + self.rope, bias=False)
        self.kv_norm = rms(self.rank)
        self.kv = nn.Linear(
            self.rank, shape.heads * (self.plain + self.value), bias=False
        )
        self.out = nn.Linear(shape.heads * self.value, h, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply latent attention to ``[B, S, h]`` token vectors."""
        b, s, _ = x.shape
        # Step 1: queries [B, heads, S, plain + rope].
        asking = _normed(self.q_norm, self.q_down(x)) if self.compressed else x
        q = self.q(asking).view(b, s, -1, self.plain + self.rope).transpose(1, 2)
        plain_q, turned_q = q.split([self.plain, self.rope], -1)
        # Step 2: keys and values from the latent vector, the rotated key beside it.
        latent, turned_k = self.kv_down(x).split([self.rank, self.rope], -1)
        kv = self.kv(_normed(self.kv_norm, latent))
        kv = kv.view(b, s, -1, self.plain + self.value).transpose(1, 2)
        plain_k, v = kv.split([self.plain, self.value], -1)
        # Step 3: rotate, and attend.
        turned_q = rotated(turned_q, self.rotary_base)
        turned_k = rotated(turned_k.unsqueeze(1), self.rotary_base)
        q = torch.cat([plain_q, turned_q], -1)
        k = torch.cat([plain_k, turned_k.expand(-1, plain_k.shape[1], -1, -1)], -1)
        return _attend(q, k, v, self.out, causal=True)


def _normed(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    # under autocast x is of lower precision than the norm's weight
    y: Tensor = norm(x.to(norm.weight.dtype))
    return y.to(x.dtype)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: nn.Module,
    *,
    causal: bool,
    bias: Tensor | None = None,
) -> Tensor:
    """Compute scaled dot-product attention with grouped keys and values."""
    share = q.shape[1] // k.shape[1]
    if share > 1:
        k, v = (y.repeat_interleave(share, dim=1) for y in (k, v))
    y = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=None if bias is None else bias.to(q.dtype),
        is_causal=causal and bias is None,
    )
    done: Tensor = out(y.transpose(1, 2).flatten(2))
    return done

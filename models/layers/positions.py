"""Position encodings: sinusoidal, rotary and relative."""

from __future__ import annotations

from math import log

import torch
from torch import Tensor, nn

from moetraffic.workload.model import RELATIVE_BUCKETS

FARTHEST = 128
"""Distances from here on share T5's last bucket."""


def sinusoids(length: int, width: int, *, device: torch.device) -> Tensor:
    """Compute the sinusoidal position encoding of a sequence.

    It is ``[length, width]`` float32: ``sin(p / 10000^(2i/width))`` in the first half
    of each row, the cosines in the second.

    References
    ----------
    Vaswani et al., arXiv 1706.03762, section 3.5 (which interleaves the two).
    """
    angles = _angles(length, width + width % 2, 10_000.0, device)
    return torch.cat([angles.sin(), angles.cos()], -1)[:, :width]


def rotated(x: Tensor, base: float) -> Tensor:
    """Apply rotary position embeddings to queries or keys.

    ``x`` is ``[B, heads, S, d]`` float, d even; place s is turned by
    ``s base^(-2i/d)``.  Number i of a head is paired with number i + d/2, as in
    transformers' Llama; pairing neighbors instead is the same model with its rows in
    another order.

    References
    ----------
    Su et al., "RoFormer", arXiv 2104.09864, equation 15.
    """
    # angles of thousands need float32 whatever x is
    angles = _angles(x.shape[-2], x.shape[-1], base, x.device)
    dtype = torch.promote_types(x.dtype, torch.float32)
    cosine, sine = angles.cos().to(dtype), angles.sin().to(dtype)
    a, b = x.to(dtype).chunk(2, -1)
    turned = torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)
    return turned.to(x.dtype)


def _angles(length: int, width: int, base: float, device: torch.device) -> Tensor:
    """Compute the angles, position times frequency, ``[length, width / 2]`` float32."""
    places = torch.arange(length, device=device, dtype=torch.float32)
    powers = torch.arange(0, width, 2, device=device, dtype=torch.float32) / width
    return places.unsqueeze(1) * torch.exp(-log(base) * powers)


class RelativeBias(nn.Module):
    """T5's relative position bias: one value per head and distance bucket.

    With ``causal`` a token sees only those before it; otherwise half of the buckets are
    for those behind.

    References
    ----------
    Raffel et al., arXiv 1910.10683, section 2.1; the buckets are
    ``T5Attention._relative_position_bucket`` of transformers, modeling_t5.py.
    """

    def __init__(self, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.table = nn.Embedding(RELATIVE_BUCKETS, heads)

    def forward(self, length: int) -> Tensor:
        """Compute the ``[heads, S, S]`` bias of attention scores (rows are queries).

        Keys that a causal query must not see have minus infinity.
        """
        places = torch.arange(length, device=self.table.weight.device)
        distance = places.unsqueeze(0) - places.unsqueeze(1)  # key less query
        bias: Tensor = self.table(buckets(distance, causal=self.causal))
        bias = bias.permute(2, 0, 1)
        if self.causal:
            bias = bias.masked_fill(distance > 0, float("-inf"))
        return bias


def buckets(distance: Tensor, *, causal: bool) -> Tensor:
    """Map distances to T5's buckets, of logarithmically growing size, int64.

    A distance is the key's position less the query's.  With ``causal``, keys behind the
    query share bucket 0, since no query attends to them.
    """
    count, first = RELATIVE_BUCKETS, torch.zeros_like(distance)
    if causal:
        away = (-distance).clamp(min=0)
    else:
        count //= 2
        first = (distance > 0) * count
        away = distance.abs()
    near = count // 2
    # far distances: as many buckets, their limits in equal ratios up to FARTHEST
    ratio = (away.clamp(min=1).float() / near).log() / log(FARTHEST / near)
    far = (near + (ratio * (count - near)).long()).clamp(max=count - 1)
    return first + torch.where(away < near, away, far)

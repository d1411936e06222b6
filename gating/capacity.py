"""Expert capacity, and the token copies within it.

Switch, arXiv 2101.03961, section 2.2, equation 3: capacity = tokens / experts x factor.
Earlier tokens are kept, later ones beyond the capacity dropped.  For k > 1 the order is
Megatron-Core's drop policy "position": a token's second choice has the priority of its
first.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import torch
from torch import Tensor


def capacity(factor: float, k: int, tokens: int, experts: int) -> int:
    """Compute the token copies that one expert accepts: ``ceil(factor k T / E)``.

    The factor is its printed decimal value: 1.1 x 10 is 11, where the product of floats
    would be rounded up to 12.

    Examples
    --------
    >>> capacity(1.25, 2, 512, 8), capacity(1.1, 1, 10, 1)
    (160, 11)
    """
    return ceil(Fraction(repr(float(factor))) * k * tokens / experts)


def limit(factor: float | None, k: int, tokens: int, experts: int) -> int | None:
    """Compute the expert capacity, or None (unlimited) without a capacity factor."""
    return None if factor is None else capacity(factor, k, tokens, experts)


def keep(expert: Tensor, experts: int, limit: int) -> Tensor:
    """Select the first ``limit`` token copies of each expert, ``[N]`` bool.

    ``expert`` is ``[N]`` int64, the expert of each copy, highest priority first.
    """
    # Step 1: a copy's position in its expert's queue is its position in the list sorted
    # by expert, minus the position of that expert's first copy.
    order = torch.argsort(expert, stable=True)
    counts = torch.bincount(expert, minlength=experts)
    begins = counts.cumsum(0) - counts
    place_sorted = torch.arange(len(expert), device=expert.device)
    place_sorted = place_sorted - begins[expert[order]]
    # Step 2: restore the original order.
    place = torch.empty_like(place_sorted)
    place[order] = place_sorted
    return place < limit

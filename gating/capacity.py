"""Expert capacity: the number of token copies that an expert processes.

References
----------
Fedus, Zoph, Shazeer, "Switch Transformers", arXiv 2101.03961, section 2.2, equation 3:
capacity = (tokens / experts) x capacity factor; tokens beyond it are dropped, those
that come first in the batch are kept (a running count over the tokens, as in its Mesh
TensorFlow code).  For k > 1 the same order is Megatron-Core's drop policy "position":
a token's second choice has the priority of its first.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import torch
from torch import Tensor


def capacity(factor: float, k: int, tokens: int, experts: int) -> int:
    """Token copies that one expert takes: ``ceil(factor k T / E)``.

    The factor counts as the decimal that it prints as: 1.1 x 10 is 11, not the 12 that
    a product of floats would be rounded up to.

    Parameters
    ----------
    factor
        The capacity factor, above 0; 1 is room for a perfectly balanced routing.
    k, tokens, experts
        Experts of a token k, tokens T of this rank's micro-batch, experts E.

    Examples
    --------
    >>> capacity(1.25, 2, 512, 8)
    160
    >>> capacity(1.1, 1, 10, 1)
    11
    """
    return ceil(Fraction(repr(float(factor))) * k * tokens / experts)


def limit(factor: float | None, k: int, tokens: int, experts: int) -> int | None:
    """The capacity of :func:`capacity`, or None (any number) without a factor."""
    return None if factor is None else capacity(factor, k, tokens, experts)


def keep(expert: Tensor, experts: int, limit: int) -> Tensor:
    """Select the token copies within capacity: the first ``limit`` of each expert.

    Parameters
    ----------
    expert
        ``[N]`` int64, the expert of each copy, highest priority first.
    experts
        Number of experts E.
    limit
        Copies that an expert takes.

    Returns
    -------
    Tensor
        ``[N]`` bool.
    """
    # Step 1: a copy's place in its expert's queue is its place in the list sorted
    # by expert, less where that expert begins.
    order = torch.argsort(expert, stable=True)
    counts = torch.bincount(expert, minlength=experts)
    begins = counts.cumsum(0) - counts
    place_sorted = torch.arange(len(expert), device=expert.device)
    place_sorted = place_sorted - begins[expert[order]]
    # Step 2: back to list order.
    place = torch.empty_like(place_sorted)
    place[order] = place_sorted
    return place < limit

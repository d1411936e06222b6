r"""Change the number of experts by splitting and merging them.

Every expert is split into m like parts, and every g neighbors of these are merged, so
that E m / g experts are there.  The parts of a split expert add up to it in every row.
For k = 1 a merged expert has the sum of its parts; for k > 1 a token that selected
several of them selects it once: its probability is that of any of its parts, and all
are scaled so that tokens select k again.

Parts differ from each other as the captured experts differ: each has the log-weight of
an expert drawn from the same layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Float64, Floating, Int64
from moetraffic.generate.chance import Use, generator

from .shares import probabilities

MOST_VARIANCE = 1.44
"""Largest variance of the logarithms of a part's share between rows."""


@dataclass(frozen=True, kw_only=True)
class Regrouping:
    """E experts split by m, then merged by g; m and g have no common divisor."""

    before: int  # E
    after: int  # E m / g
    k_before: int
    k_after: int

    @property
    def parts(self) -> int:
        """Into how many each expert is split, m."""
        return math.lcm(self.before, self.after) // self.before

    @property
    def merged(self) -> int:
        """Of how many parts one is made, g."""
        return math.lcm(self.before, self.after) // self.after

    @property
    def trivial(self) -> bool:
        """Whether nothing changes."""
        return (self.before, self.k_before) == (self.after, self.k_after)

    def shares(self, shares: Floating, parts: Floating | None) -> Floating:
        """Probability that a token selects each of the new experts, ``[..., E']``.

        Of the ``shares [..., E]`` of the captured experts, whose rows sum to k, and the
        ``parts [..., E, m]`` of each, with the sum 1; None where m is 1.
        """
        if parts is not None:
            shares = (shares[..., None] * parts).reshape(*shares.shape[:-1], -1)
        if self.merged > 1:
            parted = shares.reshape(*shares.shape[:-1], self.after, self.merged)
            if self.k_before == 1:
                shares = parted.sum(axis=-1)
            else:
                # any of the parts, as if they were selected independently
                shares = 1 - np.prod(1 - np.minimum(parted, 1.0), axis=-1)
        if self.k_after == 1:
            return np.asarray(shares / shares.sum(axis=-1, keepdims=True))
        if self.k_after == self.k_before and self.merged == 1:
            return shares
        near = np.clip(shares, 1e-7, 1 - 1e-5)
        return probabilities(np.log(near / (1 - near)), self.k_after)


def followed(seed: int, layers: int, experts: int, parts: int) -> Int64:
    """Draw the captured expert that each part of an expert follows, ``[L, E m]``."""
    rng = generator(seed, Use.SPLIT)
    return rng.integers(0, experts, (layers, experts * parts))


def part_deviation(
    variance: Float64, shares: Float64, parts: int, tokens: int
) -> Float64:
    """Standard deviation of the log-weights of a split expert's parts between rows.

    Parts differ between rows as their expert does (``variance [..., E]`` of its
    log-weights), and by counting its ``shares [..., E]`` of the row's tokens.
    """
    counting = np.log1p(parts / np.maximum(shares * tokens, 1e-9))
    return np.sqrt(np.minimum(variance + counting, MOST_VARIANCE))

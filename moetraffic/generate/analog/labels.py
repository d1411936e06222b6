r"""Labels of the experts: which captured expert a synthetic one follows.

In each layer a permutation :math:`\pi` is drawn with

.. math:: P(\pi) \propto \exp\Big(-\sum_e d_{e, \pi(e)} / \tau
          - \kappa \, |\{e : \pi(e) = e\}|\Big),

where d is the squared distance of two experts' smoothed loads, :math:`\tau` the
exchange and :math:`\kappa` is :data:`KEPT`.  It permutes experts of a rank and whole
sets of neighboring ranks, never single experts of different ranks: routers that select
groups of experts make those of a rank or of neighboring ranks busy together, on which
the bytes of the ports depend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from scipy.ndimage import uniform_filter1d

from moetraffic.arrays import Float64, Int64

SMOOTHED = 25
"""Iterations of the moving average of loads."""

KEPT = 3.0
"""Logarithm of how much less often an expert keeps its label."""

SWEEPS, DRAWS = 10, 7
"""Proposed exchanges of a draw of a permutation, a multiple of the experts; and draws,
of which one is taken: two samples are as correlated as any other two."""


@dataclass(frozen=True, kw_only=True)
class Labels:
    """What decides which labels are exchanged: L layers, E experts."""

    products: Float64  # [L, E, E] of two experts' smoothed loads, summed over time
    levels: tuple[tuple[int, int], ...]  # of labels, see :func:`label_levels`

    @classmethod
    def of(cls, load: Float64, ep: int) -> Labels:
        """Find how the experts of a run are alike.

        Parameters
        ----------
        load
            ``[T, L, E]`` shares of experts.
        ep
            Ranks of a group, which hold as many consecutive experts each.
        """
        smooth = smoothed(load)
        return cls(
            products=np.einsum("tle,tlf->lef", smooth, smooth),
            levels=label_levels(load.shape[2], ep),
        )

    @cached_property
    def apart(self) -> Float64:
        """``[L, E, E]`` d, relative to the mean variance of the smoothed loads."""
        square = np.diagonal(self.products, axis1=1, axis2=2)
        found = square[..., None] + square[:, None] - 2 * self.products
        scale = np.maximum(2 * square.mean(axis=1), 1e-300)
        return np.asarray(found / scale[:, None, None])

    def drawn(self, count: int, exchange: float, rng: np.random.Generator) -> Int64:
        """Draw labels ``[count, L, E]`` in turn, each from those before.

        Of :data:`DRAWS` those of median distance are taken.
        """
        depth, experts = self.products.shape[:2]
        every, layers, apart = np.arange(experts), np.arange(depth)[:, None], self.apart
        order = np.tile(every, (depth, 1))
        found = np.empty((count, depth, experts), np.int64)
        for number in range(count):
            drawn, far = [], []
            for _ in range(DRAWS):
                new = np.empty_like(order)
                for layer, old in enumerate(order):
                    cost = apart[layer][old] / exchange
                    cost[every, old] += KEPT
                    new[layer] = relabeled(cost, old, self.levels, rng)
                drawn.append(new)
                far.append(apart[layers, order, new].sum())
            order = drawn[int(np.argsort(far)[DRAWS // 2])]
            found[number] = order
        return found

    def correlation(self, orders: Int64) -> float:
        """Correlate the smoothed loads under labels ``[n, L, E]``: mean over pairs."""
        depth = np.arange(len(self.products))[:, None]
        total = float(np.trace(self.products, axis1=1, axis2=2).sum())
        found = [self.products[depth, a, b].sum() for a, b in combinations(orders, 2)]
        return float(np.mean(found)) / max(total, 1e-300)


def smoothed(load: Float64) -> Float64:
    """Moving average of loads ``[T, L, E]``, above a balanced load."""
    smooth = uniform_filter1d(load, SMOOTHED, axis=0, mode="nearest")
    return np.asarray(smooth - 1 / load.shape[2])


def correlation(loads: Sequence[Float64]) -> float:
    """Correlate the smoothed loads of pairs of runs, above a balanced load: mean."""
    length = min(len(load) for load in loads)
    smooth = [smoothed(load[:length]).ravel() for load in loads]
    found = [
        float(a @ b) / max(float(np.sqrt((a @ a) * (b @ b))), 1e-300)
        for a, b in combinations(smooth, 2)
    ]
    return float(np.mean(found))


def label_levels(experts: int, ep: int) -> tuple[tuple[int, int], ...]:
    """Blocks of labels that are exchanged: how long, and how many are siblings.

    Experts of a rank, then ranks and ever larger sets of neighboring ranks, by the
    prime factors of their number.

    Examples
    --------
    >>> label_levels(12, 4)
    ((1, 3), (3, 2), (6, 2))
    """
    left, factor = (1 if experts % ep else ep), 2  # spread unevenly: any two experts
    size = experts // left
    found = [(1, size)]
    while left > 1:
        if left % factor:
            factor += 1
        else:
            found.append((size, factor))
            size, left = size * factor, left // factor
    return tuple((size, siblings) for size, siblings in found if siblings > 1)


def relabeled(
    cost: Float64,
    order: Int64,
    levels: tuple[tuple[int, int], ...],
    rng: np.random.Generator,
) -> Int64:
    """Draw a permutation with probability proportional to exp(-cost), by Metropolis.

    Parameters
    ----------
    cost
        ``[E, E]`` of each place e taking f.
    order
        ``[E]`` permutation to begin with.
    levels
        Blocks that are exchanged.
    rng
        Randomness.

    Returns
    -------
    int64 array ``[E]``
        After SWEEPS E proposed exchanges of two blocks.
    """
    found, costs, experts = order.tolist(), cost.tolist(), len(order)
    if not levels:
        return order
    steps = SWEEPS * experts
    blocks = np.array([experts // size for size, _ in levels])
    level = rng.choice(len(levels), steps, p=blocks / blocks.sum())
    size, siblings = np.array(levels)[level].T
    one = rng.integers(blocks[level])
    parent = one - one % siblings
    other = parent + (one + rng.integers(1, siblings)) % siblings
    bars = np.log(1 - rng.random(steps))
    for width, a, b, bar in zip(
        size.tolist(),
        (one * size).tolist(),
        (other * size).tolist(),
        bars.tolist(),
        strict=True,
    ):
        saved = 0.0
        for x, y in zip(range(a, a + width), range(b, b + width), strict=True):
            f, g = found[x], found[y]
            saved += costs[x][f] + costs[y][g] - costs[x][g] - costs[y][f]
        if bar < saved:
            left, right = slice(a, a + width), slice(b, b + width)
            found[left], found[right] = found[right], found[left]
    return np.array(found, np.int64)

r"""Path through a captured run: which iteration comes next, and who is which expert.

A path follows blocks of consecutive captured iterations, all layers and ranks together.
A block begins anywhere near the same time in training, further away from the end of the
last one than half a block: a closer one would repeat iterations that have just been.

*Labels.*  Experts are relabeled once, at the beginning, and again where a path turns
round beyond the end of the run.  In each layer a permutation :math:`\pi` is drawn with

.. math:: P(\pi) \propto \exp\Big(-\sum_e d_{e, \pi(e)} / \tau
          - \kappa \, |\{e : \pi(e) = e\}|\Big),

where d is the squared distance of two experts' smoothed loads, :math:`\tau` the
exchange and :math:`\kappa` is :data:`KEPT`.  It permutes experts of a rank and whole
sets of neighboring ranks, never single experts of different ranks: routers that select
groups of experts make those of a rank or of neighboring ranks busy together, on which
the bytes of the ports depend.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.ndimage import uniform_filter1d

from moetraffic.arrays import Float64, Int64

SMOOTHED = 25
"""Iterations of the moving average of loads."""

BLOCKS = 3
"""Fewest blocks of a captured run: they are shorter in a run of few iterations."""

NEAR, GROWTH = 10, 0.1
"""Iterations within which a block begins, and as a share of those until then."""

KEPT = 3.0
"""Logarithm of how much less often an expert keeps its label."""

SWEEPS, DRAWS = 10, 7
"""Proposed exchanges of a draw of a permutation, a multiple of the experts; and draws,
of which one is taken: two samples are as correlated as any other two."""


@dataclass(frozen=True, kw_only=True)
class PathOptions:
    """Options of a path, which are chosen in a fit."""

    block: int = 40  # mean iterations of a block, half to one and a half times as many
    # 0: the whole run in its order
    exchange: float = 0.0  # tau; 0: experts keep their labels


@dataclass(frozen=True, kw_only=True)
class Labels:
    """What decides which labels are exchanged: L layers, E experts."""

    apart: Float64  # [L, E, E] d, relative to the mean variance of the smoothed loads
    levels: tuple[tuple[int, int], ...]  # of labels, see :func:`label_levels`


@dataclass(frozen=True, kw_only=True)
class AnalogPath:
    """Path of a sample: N iterations, L layers, E experts."""

    iteration: Int64  # [N] captured iteration
    captured: Int64  # [N, L, E] captured expert that a synthetic expert follows

    def shares(self, share: Float64) -> Float64:
        """Loads along the path, ``[N, L, E]``, of captured ones ``[T, L, E]``."""
        found: Float64 = np.take_along_axis(
            share[self.iteration], self.captured, axis=2
        )
        return found


def run_labels(load: Float64, ep: int) -> Labels:
    """Find how far the experts of a run are apart.

    Parameters
    ----------
    load
        ``[T, L, E]`` shares of experts.
    ep
        Ranks of a group, which hold as many consecutive experts each.
    """
    smooth = smoothed(load)
    apart = ((smooth[..., None] - smooth[:, :, None]) ** 2).sum(axis=0)
    scale = 2 * np.square(smooth).sum(axis=0).mean(axis=1)
    return Labels(
        apart=apart / np.maximum(scale, 1e-300)[:, None, None],
        levels=label_levels(load.shape[2], ep),
    )


def smoothed(load: Float64) -> Float64:
    """Moving average of loads ``[T, L, E]``, above a balanced load."""
    smooth = uniform_filter1d(load, SMOOTHED, axis=0, mode="nearest")
    return np.asarray(smooth - 1 / load.shape[2])


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


def analog_path(
    labels: Labels,
    total: int,
    iterations: int,
    options: PathOptions,
    rng: np.random.Generator,
) -> AnalogPath:
    """Draw a path.

    Parameters
    ----------
    labels
        Of a run.
    total
        T, its iterations.
    iterations
        N.  From iteration T on the path stays in the last third of the run.
    options
        Of the path.
    rng
        Randomness.
    """
    depth, experts = labels.apart.shape[:2]
    clock, turns = _clock(total, iterations)
    at = np.empty(iterations, np.int64)
    captured = np.empty((iterations, depth, experts), np.int64)
    order = np.tile(np.arange(experts), (depth, 1))
    mean = max(2, min(options.block, total // BLOCKS)) if options.block else 2 * total
    shortest = mean // 2
    now, follows, turn = 0, 0, -1
    while now < iterations:
        length = int(rng.integers(shortest, mean + shortest + 1))
        # no block reaches beyond the run, where it would repeat the run's end
        end = min(total, iterations) if now < total else iterations
        length = min(length, end - now, total)
        near = max(NEAR, int(GROWTH * clock[now]))
        low, high = np.clip(clock[now] + [-near, near], 0, total - length)
        begins = np.arange(low, high + 1)
        begins = begins[np.abs(begins - follows) > shortest]
        begin = min(follows, total - length)
        if len(begins):
            begin = int(rng.choice(begins))
        if turns[now] > turn and options.exchange > 0:
            order = _relabeled_layers(labels, order, options.exchange, rng)
        turn = turns[now]
        span = slice(now, now + length)
        at[span] = np.arange(begin, begin + length)
        captured[span] = order
        follows = begin + length
        now += length
    return AnalogPath(iteration=at, captured=captured)


def _relabeled_layers(
    labels: Labels, order: Int64, exchange: float, rng: np.random.Generator
) -> Int64:
    """Draw labels of all layers, ``[L, E]``: those of median distance of DRAWS."""
    every = np.arange(order.shape[1])
    drawn, far = [], []
    for _ in range(DRAWS):
        new = np.empty_like(order)
        for layer, old in enumerate(order):
            apart = labels.apart[layer][old]
            cost = apart / exchange
            cost[every, old] += KEPT
            new[layer] = relabeled(cost, old, labels.levels, rng)
            far.append(apart[every, new[layer]].sum())
        drawn.append(new)
    total = np.reshape(far, (DRAWS, -1)).sum(axis=1)
    return drawn[int(np.argsort(total)[DRAWS // 2])]


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


def _clock(total: int, iterations: int) -> tuple[Int64, Int64]:
    """Captured iteration of each, back and forth beyond the end, and turns until it."""
    clock = np.minimum(np.arange(iterations), total - 1)
    tail = max(1, total // 3)
    beyond = np.arange(max(0, iterations - total))
    turn = beyond % (2 * tail)
    clock[total:] = total - 1 - np.minimum(turn, 2 * tail - 1 - turn)
    turns = np.zeros(iterations, np.int64)
    turns[total:] = 1 + beyond // tail
    return clock, turns

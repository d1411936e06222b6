r"""Path through a captured run: which iteration comes next, and who is which expert.

Each layer follows blocks of consecutive captured iterations.  A block begins near the
same time in training, at one of the K candidates whose states are nearest to the state
that would have come next.  At its beginning experts in like states change places: the
expert that goes on as captured expert f did is drawn by a permutation :math:`\pi` with

.. math:: P(\pi) \propto \exp\Big(-\sum_e
          \frac{|z_{\pi(e)} - z_e|^2}{4 \tau \sigma^2}\Big),

where z are means of an expert's angle over the past on three time scales,
:math:`\sigma^2` their variance in time and :math:`\tau` the exchange.  So layers, the
distribution of the loads and their movement stay as captured, while the course of an
expert becomes another one, at times when the captured run, too, could have gone either
way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.ndimage import uniform_filter1d
from scipy.optimize import linear_sum_assignment

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

SCALES = (4, 32, 128)
"""Time constants of the means that describe the state of an expert, in iterations."""

LOCAL = 41
"""Iterations over which the variance of the states is taken."""

CANDIDATES, NEAREST = 16, 4
"""Candidates of a block's beginning that are drawn, and K, of which one is taken."""

SWEEPS = 10
"""Proposed exchanges of a draw of a permutation, a multiple of the experts."""


@dataclass(frozen=True, kw_only=True)
class PathOptions:
    """Options of a path, which are chosen in a fit."""

    block: int = 20  # mean iterations of a block
    growth: float = 0.2  # time window, as a share of the iterations trained until then
    joint: bool = False  # all layers follow the same blocks
    exchange: float = 0.2  # tau: how unlike the experts are that change places
    start: float = 0.0  # tau at the first iteration; 0: experts begin as captured


@dataclass(frozen=True, kw_only=True)
class AnalogPath:
    """Path of a sample: N iterations, L layers, E experts."""

    iteration: Int64  # [N, L] captured iteration of each layer
    clock: Int64  # [N] captured iteration at the same time in training
    captured: Int64  # [N, L, E] captured expert that a synthetic expert follows


def analog_path(
    angle: Float64,
    iterations: int,
    options: PathOptions,
    rng: np.random.Generator,
    *,
    first: int = 0,
) -> AnalogPath:
    """Draw a path.

    Parameters
    ----------
    angle
        ``[T, L, E]`` angles of the states of the run.
    iterations
        N.  From iteration T on the path stays in the last third of the run.
    options
        Of the path.
    rng
        Randomness.
    first
        Iterations trained before the first one captured.
    """
    total, depth, experts = angle.shape
    clock = _clock(total, iterations)
    past = _past(angle)
    variance = _variance(past)
    at = np.empty((iterations, depth), np.int64)
    captured = np.empty((iterations, depth, experts), np.int64)
    layers: Sequence[list[int]] = (
        [list(range(depth))] if options.joint else [[at] for at in range(depth)]
    )
    for group in layers:
        now = 0
        order = np.tile(np.arange(experts), (len(group), 1))
        begin = 0
        if options.start > 0:
            for j, layer in enumerate(group):
                cost = _cost(past[0, layer], past[0, layer], variance[0, layer])
                order[j] = permuted(cost / options.start, order[j], rng)
        while now < iterations:
            length = int(rng.integers(options.block // 2, options.block * 3 // 2 + 1))
            length = min(length, iterations - now, total)
            if now:
                follows = min(begin + 1, total - 1)
                near = max(1, int(options.growth * (first + clock[now])))
                last = total - length
                low, high = (
                    int(np.clip(clock[now] + side, 0, last)) for side in (-near, near)
                )
                drawn = np.unique(rng.integers(low, high + 1, CANDIDATES))
                apart = (past[follows, group] - past[drawn][:, group]) ** 2
                scaled = apart / variance[clock[now], group][:, None]
                nearest = np.argsort(scaled.mean(axis=(1, 2, 3)), kind="stable")
                begin = int(drawn[rng.choice(nearest[:NEAREST])])
                if options.exchange > 0:
                    for j, layer in enumerate(group):
                        before = past[follows, layer][order[j]]
                        cost = _cost(before, past[begin, layer], variance[begin, layer])
                        cost /= options.exchange
                        best = linear_sum_assignment(cost)[1]
                        order[j] = permuted(cost, best, rng)
            span = slice(now, now + length)
            at[span, group] = np.arange(begin, begin + length)[:, None]
            captured[span, group] = order
            begin += length - 1
            now += length
    return AnalogPath(iteration=at, clock=clock, captured=captured)


def permuted(cost: Float64, order: Int64, rng: np.random.Generator) -> Int64:
    """Draw a permutation with probability proportional to exp(-cost), by Metropolis.

    Parameters
    ----------
    cost
        ``[E, E]`` of each place e taking f.
    order
        ``[E]`` permutation to begin with.
    rng
        Randomness.

    Returns
    -------
    int64 array ``[E]``
        After SWEEPS E proposed exchanges of two.
    """
    found = order.copy()
    steps = SWEEPS * len(found)
    pairs = rng.integers(len(found), size=(steps, 2)).tolist()
    bars = np.log(1 - rng.random(steps)).tolist()
    for (a, b), bar in zip(pairs, bars, strict=True):
        f, g = found[a], found[b]
        if bar < cost[a, f] + cost[b, g] - cost[a, g] - cost[b, f]:
            found[a], found[b] = g, f
    return found


def _clock(total: int, iterations: int) -> Int64:
    """Captured iteration of each: as captured, then back and forth at the end."""
    clock = np.minimum(np.arange(iterations), total - 1)
    tail = max(1, total // 3)
    turn = np.arange(max(0, iterations - total)) % (2 * tail)
    clock[total:] = total - 1 - np.minimum(turn, 2 * tail - 1 - turn)
    return clock


def _past(angle: Float64) -> Float64:
    """Exponentially weighted means of the past, ``[T, L, E, scales]``."""
    past = np.repeat(angle[..., None], len(SCALES), axis=3)
    weight = 1 / np.array(SCALES)
    for t in range(1, len(past)):
        past[t] = past[t - 1] + weight * (past[t] - past[t - 1])
    return past


def _variance(past: Float64) -> Float64:
    """Variance in time of the means, averaged over experts, ``[T, L, scales]``."""
    mean, square = (
        uniform_filter1d(x, LOCAL, axis=0, mode="nearest") for x in (past, past**2)
    )
    return np.asarray(np.maximum(square - mean**2, 1e-12).mean(axis=2))


def _cost(before: Float64, after: Float64, variance: Float64) -> Float64:
    """Squared distance of states ``[E, scales]`` over 4 variances, ``[E, E]``."""
    apart = (before[:, None] - after[None]) ** 2
    return np.asarray((apart / (4 * variance)).sum(axis=2))

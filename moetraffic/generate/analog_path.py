r"""Path through a captured run: which iteration comes next, and who is which expert.

A path follows blocks of consecutive captured iterations, all layers together.  A block
begins near the same time in training, at one of the candidates whose states are nearest
to the state that would have come next.  At its beginning experts change places: the
expert that goes on as captured expert f did is drawn by a permutation :math:`\pi` with

.. math:: P(\pi) \propto \exp\Big(-\sum_e
          \frac{|z_{\pi(e)} - z_e|^2}{2 \tau \sigma^2} - \sum_e u_{\pi(e), e}\Big),

where z are means of the angles :math:`\arcsin\sqrt p` of an expert's load p over the
past on three time scales, :math:`\sigma^2` their variance in time, :math:`\tau \ge 1`
the exchange and u how unlike the documents of two experts are.  So all that does not
depend on the experts' numbers stays as captured within a block, while the course of an
expert becomes another one.

*Documents of experts.*  Some routers send the same ranks' documents to the same experts
for a whole run; reruns share this, and with it which experts of a rank are busy
together.  C are the correlations of the experts' counts over ranks, and u is the
squared distance of two experts' correlations with the others, in units of its mean over
pairs, times :data:`ALIKE` and the share of the variance of C that its first and its
last third of the run have in common.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.ndimage import uniform_filter1d
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

SCALES = (1, 4, 32)
"""Time constants of the means that describe the state of an expert, in iterations."""

LOCAL = 41
"""Iterations over which the variance of the states is taken."""

BLOCK = 20
"""Mean iterations of a block, which has half to one and a half times as many."""

CANDIDATES, NEAREST = 16, 4
"""Candidates of a block's beginning that are drawn, and those of which one is taken."""

ALIKE = 5.0
"""Logarithm of how much less often experts of unlike documents change places."""

SWEEPS = 10
"""Proposed exchanges of a draw of a permutation, a multiple of the experts."""


@dataclass(frozen=True, kw_only=True)
class PathOptions:
    """Options of a path, which are chosen in a fit."""

    growth: float = 0.2  # time window, as a share of the iterations trained until then
    exchange: float = 1.0  # tau: how unlike the experts are that change places
    start: float = 0.0  # tau at the first iteration; 0: experts begin as captured


@dataclass(frozen=True, kw_only=True)
class RunStates:
    """States of a run: T iterations, L layers, E experts, S time scales."""

    past: Float64  # [T, L, E, S] means of the angle
    variance: Float64  # [T, L, S] of the means in time, mean over experts
    unlike: Float64  # [L, E, E] u: cost of experts of unlike documents

    def cost(self, before: int, begin: int, order: Int64, tau: float) -> Float64:
        """Cost of each expert going on as each captured one, ``[L, E, E]``.

        Parameters
        ----------
        before, begin
            Captured iteration that would have come next, and that comes.
        order
            ``[L, E]`` captured expert that each synthetic one has followed.
        tau
            Exchange.
        """
        z = np.take_along_axis(self.past[before], order[..., None], axis=1)
        apart = (z[:, :, None] - self.past[begin][:, None]) ** 2
        scaled = (apart / self.variance[begin][:, None, None]).sum(axis=3)
        unlike = np.take_along_axis(self.unlike, order[..., None], axis=1)
        return np.asarray(scaled / (2 * tau) + unlike)


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


def run_states(counts: Int32) -> RunStates:
    """Describe the states of a run of token copies ``[T, L, Q, E]``."""
    load = counts.sum(axis=2) / counts[0, 0].sum()
    past = np.repeat(np.arcsin(np.sqrt(load.clip(0, 1)))[..., None], len(SCALES), 3)
    weight = 1 / np.array(SCALES)
    for t in range(1, len(past)):
        past[t] = past[t - 1] + weight * (past[t] - past[t - 1])
    mean, square = (
        uniform_filter1d(x, LOCAL, axis=0, mode="nearest") for x in (past, past**2)
    )
    return RunStates(
        past=past,
        variance=np.maximum(square - mean**2, 1e-12).mean(axis=2),
        unlike=np.stack([_unlike(counts[:, at]) for at in range(counts.shape[1])]),
    )


def analog_path(
    states: RunStates,
    iterations: int,
    options: PathOptions,
    rng: np.random.Generator,
    *,
    first: int = 0,
) -> AnalogPath:
    """Draw a path.

    Parameters
    ----------
    states
        Of a run of T iterations.
    iterations
        N.  From iteration T on the path stays in the last third of the run.
    options
        Of the path.
    rng
        Randomness.
    first
        Iterations trained before the first one captured.
    """
    past, variance = states.past, states.variance
    total, depth, experts = past.shape[:3]
    clock = _clock(total, iterations)
    at = np.empty(iterations, np.int64)
    captured = np.empty((iterations, depth, experts), np.int64)
    order = np.tile(np.arange(experts), (depth, 1))
    now = begin = follows = 0
    while now < iterations:
        length = int(rng.integers(BLOCK // 2, BLOCK * 3 // 2 + 1))
        length = min(length, iterations - now, total)
        if now:
            near = max(1, int(options.growth * (first + clock[now])))
            low, high = np.clip(clock[now] + [-near, near], 0, total - length)
            drawn = np.unique(rng.integers(low, high + 1, CANDIDATES))
            apart = (past[follows] - past[drawn]) ** 2 / variance[clock[now], :, None]
            nearest = np.argsort(apart.mean(axis=(1, 2, 3)), kind="stable")
            begin = int(drawn[rng.choice(nearest[:NEAREST])])
        tau = options.exchange if now else options.start
        if tau > 0:
            cost = states.cost(follows, begin, order, tau)
            for layer in range(depth):
                best = linear_sum_assignment(cost[layer])[1]
                order[layer] = permuted(cost[layer], best, rng)
        span = slice(now, now + length)
        at[span] = np.arange(begin, begin + length)
        captured[span] = order
        follows = min(begin + length, total - 1)
        now += length
    return AnalogPath(iteration=at, captured=captured)


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
    found, costs = order.tolist(), cost.tolist()
    steps = SWEEPS * len(found)
    pairs = rng.integers(len(found), size=(steps, 2)).tolist()
    bars = np.log(1 - rng.random(steps)).tolist()
    for (a, b), bar in zip(pairs, bars, strict=True):
        f, g = found[a], found[b]
        if bar < costs[a][f] + costs[b][g] - costs[a][g] - costs[b][f]:
            found[a], found[b] = g, f
    return np.array(found, np.int64)


def _clock(total: int, iterations: int) -> Int64:
    """Captured iteration of each: as captured, then back and forth at the end."""
    clock = np.minimum(np.arange(iterations), total - 1)
    tail = max(1, total // 3)
    turn = np.arange(max(0, iterations - total)) % (2 * tail)
    clock[total:] = total - 1 - np.minimum(turn, 2 * tail - 1 - turn)
    return clock


def _unlike(counts: Int32) -> Float64:
    """Cost of experts of unlike documents, ``[E, E]``, of ``[T, Q, E]`` of a layer."""
    experts, third = counts.shape[2], max(1, len(counts) // 3)
    nothing = np.zeros((experts, experts))
    if experts < 3:
        return nothing
    others = ~np.eye(experts, dtype=bool)
    early, late = (
        _correlations(part)[others] for part in (counts[:third], counts[-third:])
    )
    if not early.std() * late.std() > 0:
        return nothing
    lasting = max(0.0, float(np.corrcoef(early, late)[0, 1])) ** 2
    every = _correlations(counts)
    # correlations with the others: without those of the two, and with themselves
    apart = cdist(every, every, "sqeuclidean") - 2 * (1 - every) ** 2
    apart = np.where(others, apart.clip(0), 0.0)
    return np.asarray(ALIKE * lasting * apart / max(apart[others].mean(), 1e-12))


def _correlations(counts: Int32) -> Float64:
    """Correlate the counts of experts over ranks, ``[E, E]``; 0 where constant."""
    apart = (counts - counts.mean(axis=1, keepdims=True)).reshape(-1, counts.shape[2])
    squared = apart.T @ apart
    scale = np.sqrt(np.maximum(np.diag(squared), 1e-12))
    found = squared / scale / scale[:, None]
    np.fill_diagonal(found, 1.0)
    return np.asarray(found)

r"""Fit the trend of states that start far from their final level.

The logarithm of no copies is none: there states are told by the counts themselves, as
generalized linear models are fitted.  With the probability :math:`\pi` that the trend
of the moment gives an expert, and d its answer to the logarithm of the weight, the
trend misses by :math:`(p - \pi)/d`, of variance :math:`s^2 + c/(dN)`, s the size of the
states' own movement and c the chance of N tokens; each step is weighted least squares,
with tau by Gauss and Newton.  Where there are many copies, what is missed is taken of
their logarithm, which the movement of states does not bend.

References
----------
P. McCullagh, J. A. Nelder, Generalized Linear Models, 2nd ed. (1989), 2.5: the steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .inclusion import inclusion, spread
from .latent import HALF, Seen
from .memories import Memories
from .trend import LONGEST, SLOWEST, Trend, whitened

Float64 = npt.NDArray[np.float64]

STEPS = 40
"""Of least squares; with memories, from where these end, a quarter of them."""

MANY = 10.0
"""Expected copies at which logarithms count for half."""

LEAST_FREE = 0.05
"""Of a layer's experts, the share that moves where one has all the load."""

FARTHEST = 12.0
"""Logarithm that a start is off at most: what is less is never seen."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Missed:
    """What a trend misses of one layer's states."""

    apart: Float64  # [n, E] deviations, their mean by precision 0
    noise: Float64  # [n, E] variance of their error
    precision: Float64  # [n, E] one over the variance of the deviation, noise included
    load: Float64  # [n, E] d, rows with the sum 1


def missed(trend: Trend, look: Seen, layer: int, *, k: int, copies: int) -> Missed:
    """Hold a trend against what was seen.

    Parameters
    ----------
    trend
        Of the layer.
    look
        With the noise of states.
    layer
        Which.
    k, copies
        Experts of a token, tokens of an iteration.
    """
    state, answer = look.state[:, layer], look.answer[:, layer]
    curve = trend.curve(len(state))
    holds = inclusion(np.exp(curve - curve.max(axis=1, keepdims=True)), k)
    d = np.maximum(spread(holds), 1e-12) if k > 1 else holds
    load = d / d.sum(axis=1, keepdims=True)
    many = holds * copies
    many = many / (many + MANY)
    by_logs = state - curve
    by_logs = by_logs - (load * by_logs).sum(axis=1, keepdims=True)
    noise = look.noise[:, layer]
    known = load * many
    own = (known * (by_logs**2 - noise)).sum() / known.sum()
    even = (load**2).sum(axis=1, keepdims=True)
    own = max(float(own / np.maximum(1 - even.mean(), LEAST_FREE)), 1e-6)
    # of states that move, the mean share is not that of the mean state
    holds = holds * (1 + own * (even - load))
    # without what was added for the logarithm's sake
    added = HALF / copies
    seen = look.share[:, layer] * (k + added * holds.shape[1]) - added
    by_counts = (seen - holds) / d
    by_counts -= (load * by_counts).sum(axis=1, keepdims=True)
    apart = many * by_logs + (1 - many) * by_counts
    of_shares = noise * answer**2
    noise = many * noise + (1 - many) * of_shares / d**2
    chance = float(of_shares.sum() / d.sum())
    precision = 1 / (own + chance / d)
    whole = precision.sum(axis=1, keepdims=True)
    apart = apart - (precision * apart).sum(axis=1, keepdims=True) / whole
    return Missed(apart=apart, noise=noise, precision=precision, load=load)


def refined(
    trend: Trend,
    look: Seen,
    layer: int,
    *,
    k: int,
    copies: int,
    memories: Memories | None = None,
) -> Trend:
    """The trend that least squares of counts and logarithms give.

    Parameters
    ----------
    trend
        Where to begin.
    look, layer, k, copies
        As of :func:`missed`.
    memories
        Of what the trend leaves over; None: it is taken for white.
    """
    for _ in range(STEPS if memories is None else STEPS // 4):
        now = missed(trend, look, layer, k=k, copies=copies)
        trend = _step(trend, now, memories)
    return trend


def _step(trend: Trend, now: Missed, memories: Memories | None) -> Trend:
    count, experts = now.apart.shape
    used = slice(0, min(count, LONGEST))
    root = np.sqrt(now.precision[used])
    age = np.arange(count)[used, None] / trend.tau
    faded = np.exp(-age)
    way = trend.start - trend.level
    columns = np.stack(
        [root, root * faded, root * faded * age * way, root * now.apart[used]]
    )
    if memories is not None:
        flat = columns.transpose(1, 0, 2).reshape(columns.shape[1], -1)
        flat = whitened(flat, memories)
        columns = flat.reshape(-1, 4, experts).transpose(1, 0, 2)
    # per expert two ends, for all one tau: that first
    gram = np.einsum("ate,bte->eab", columns, columns)
    ends = gram[:, :2, :2] + 1e-6 * np.eye(2)
    cross, hits = gram[:, :2, 2:3], gram[:, :2, 3:]
    solved = np.linalg.solve(ends, np.concatenate([cross, hits], axis=2))
    known = float((gram[:, 2, 2] - (cross * solved[:, :, :1]).sum(axis=(1, 2))).sum())
    wanted = float((gram[:, 2, 3] - (cross * solved[:, :, 1:]).sum(axis=(1, 2))).sum())
    known = max(known, 1e-9)
    longer = float(np.clip(wanted / known, -0.3, 0.3))
    more = solved[:, :, 1] - longer * solved[:, :, 0]
    more = np.clip(more, -1.0, 1.0)
    tau = min(trend.tau * np.exp(longer), max(2.0, count * SLOWEST))
    level = trend.level + more[:, 0]
    way = np.clip(way + more[:, 1], -FARTHEST, FARTHEST)
    start = level + way
    by_load = now.load.mean(axis=0)
    # the error of tau is that of both ends too
    inverse = np.linalg.inv(ends)
    inverse = inverse + np.einsum("ea,eb->eab", *2 * [solved[:, :, 0]]) / known
    # where next to nothing tells it, any tau will do
    reach = float(np.exp(min(1.96 / np.sqrt(known), 60.0)))
    return replace(
        trend,
        start=start - start @ by_load,
        level=level - level @ by_load,
        tau=tau,
        start_error=np.sqrt(inverse.sum(axis=(1, 2)) * (1 - 1 / experts)),
        level_error=np.sqrt(inverse[:, 0, 0] * (1 - 1 / experts)),
        tau_bounds=(tau / reach, tau * reach),
    )

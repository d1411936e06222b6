r"""Onset of a level: whether levels approach it exponentially, and until when.

A series that persists hides a transient: a fit to all of it explains the transient by
its own motion.  So the motion, an autoregression under white noise, is fitted to the
second half, and what comes before is judged by it:

.. math:: y_t = \mu + a e^{-t/\tau} + x_t + \eta_t.

Kalman's filter turns :math:`x + \eta` into white noise, and :math:`\mu` and :math:`a`
into coefficients of a linear regression.  The statistic is the largest over some
:math:`\tau`, and is simulated under the null hypothesis :math:`a = 0`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import chndtrinc

from moetraffic.analysis.claim import LEVEL
from moetraffic.arrays import Float64

from .motion import Motion, motion

SHORTEST = 32
"""Steps that a motion is fitted to, at least."""

DRAWS = 999
"""Simulated statistics of the null hypothesis."""

RATES = 24
"""Time constants that are tried, from one step to a fourth of the run."""

STARTS = 16
"""Starts that are tried, in geometric sequence, if there is a transient."""

EXAMPLE = 20
"""The steps over the time constant of the transient whose limit is stated."""


@dataclass(frozen=True, kw_only=True)
class Onset:
    """First step from which no transient is seen."""

    begin: int  # 0: none is seen at all
    seen: int  # last of the starts from which one is seen; -1: none
    ended: bool  # whether it ends before the last start that may be tried
    p: float  # of no transient from the first step on
    limit: float  # upper 95% limit of a transient that begins there, root mean square
    # of the columns, over the standard deviation of a level
    fading: float  # its time constant, steps


def onset(
    levels: Float64, *, last: int, without: Float64 | None = None, seed: int = 0
) -> Onset:
    """Find the first step from which no transient is seen.

    ``levels``: ``[n, D]``, step first.  ``last``: Last start that is tried; none is
    beyond the middle.  ``without``: Frequencies that are left out, as of
    :func:`.motion.motion`.
    """
    n = len(levels)
    late = motion(levels[-max(n // 2, min(SHORTEST, n)) :], without=without, seed=seed)
    p, limit = _transient(levels, late, seed)
    begin, seen, ended, last = 0, -1, True, max(min(last, n // 2), 0)
    first = p
    if p < LEVEL:
        spaced = np.geomspace(1, max(last, 1), STARTS)
        starts = [0, *np.unique(np.rint(spaced).astype(np.int64)).tolist()]
        found = [
            (p, limit),
            *(_transient(levels[at:], late, seed) for at in starts[1:]),
        ]
        number = max(i for i, (p, _) in enumerate(found) if p < LEVEL)
        seen, ended = starts[number], number + 1 < len(starts) and last > 0
        if ended:
            begin, limit = starts[number + 1], found[number + 1][1]
    return Onset(
        begin=begin,
        seen=seen,
        ended=ended,
        p=first,
        limit=limit,
        fading=(n - begin) / EXAMPLE,
    )


def _transient(levels: Float64, late: Motion, seed: int) -> tuple[float, float]:
    """Compute the p-value of no transient, and the upper limit of one."""
    n, wide = levels.shape
    taus = np.append(np.geomspace(1.0, n / 4, RATES), n / EXAMPLE)
    waves = np.exp(-np.arange(n)[:, None] / taus)
    white = _whitened(np.hstack([levels, np.ones((n, 1)), waves]), late)
    # the final value is a regressor of its own
    constant = white[:, wide]
    white -= np.outer(constant, constant @ white) / (constant @ constant)
    values, waves = white[:, :wide], white[:, wide + 1 :]
    noise = float((values[-late.steps :] ** 2).mean())
    if noise <= 0:
        return 1.0, 0.0
    size = np.sqrt((waves**2).sum(axis=0))
    unit = waves / size
    power = ((unit.T @ values) ** 2).mean(axis=1) / noise  # 1 is expected
    columns = max(1, int(late.columns))
    scale, vectors = np.linalg.eigh(unit[:, :-1].T @ unit[:, :-1])
    root = np.sqrt(np.maximum(scale, 0))
    rng = np.random.default_rng(seed)
    drawn = rng.normal(size=(DRAWS, columns, len(root))) * root @ vectors.T
    null = (drawn**2).mean(axis=1).max(axis=1)
    p = float((1 + (null >= power[:-1].max()).sum()) / (1 + DRAWS))
    # a power below the expected one is luck, and no sign that there is nothing
    most = float(chndtrinc(columns * max(power[-1], 1), columns, 0.05)) / columns
    spread = float(levels[-late.steps :].std(axis=0).mean())
    return p, float(np.sqrt(most * noise)) / float(size[-1]) / spread


def _whitened(series: Float64, motion: Motion) -> Float64:
    """Turn series ``[n, ...]`` of a motion into white noise, by Kalman's filter.

    What is deterministic goes through the same filter.
    """
    white = np.empty_like(series)
    state = np.zeros(series.shape[1])
    variance = motion.kappa / (1 - motion.phi**2)  # over that of the white noise
    for t, now in enumerate(series):
        total = variance + 1
        error = now - state
        white[t] = error / np.sqrt(total)
        state = motion.phi * (state + variance / total * error)
        variance = motion.phi**2 * variance / total + motion.kappa
    return white

r"""Onset of a level: the step from which what is left of a transient is small.

A series that persists hides a transient: a fit to all of it explains the transient by
its own motion.  So the motion, an autoregression under white noise, is fitted to the
second half, and what comes before is judged by it:

.. math:: y_t = \mu + a e^{-t/\tau} + x_t + \eta_t.

Kalman's filter turns :math:`x + \eta` into white noise, and :math:`\mu` and :math:`a`
into coefficients of a linear regression.  That no transient is seen is no evidence that
there is none: the level begins where a transient of one standard deviation is rejected,
whatever its time constant, by the upper limits of :math:`a`.
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

SMALL = 1.0
"""What may be left of a transient where a level begins: root mean square of the columns
over the standard deviation of a step about its level."""

DRAWS = 999
"""Simulated statistics of the null hypothesis that there is no transient."""

RATES = 24
"""Time constants that are tried, from one step to a fourth of the run."""

FASTER = (4.0, 16.0)
"""How many times faster are the transients that are allowed beside one that is seen."""

SEEN = LEVEL / 5
"""Significance of a transient, which is one of several statements about a level."""

FADED = 0.1
"""What is left, by the best fit, where a transient that is seen moves levels no more;
in the unit of :data:`SMALL`."""


@dataclass(frozen=True, kw_only=True)
class Onset:
    """First step from which a transient of :data:`SMALL` or more is rejected."""

    begin: int  # index of the step; the number of steps where there is none
    p: float  # of no transient at all
    faded: int  # step from which a transient that is seen is below FADED; 0: none is

    @property
    def seen(self) -> bool:
        """Whether a transient is seen."""
        return self.p < SEEN


def onset(levels: Float64, *, without: Float64 | None = None, seed: int = 0) -> Onset:
    """Find the first step from which a transient of :data:`SMALL` is rejected.

    ``levels``: ``[n, D]``, step first.  ``without``: Frequencies that are left out, as
    of :func:`.motion.motion`.
    """
    n, wide = levels.shape
    late = motion(levels[-max(n // 2, min(SHORTEST, n)) :], without=without, seed=seed)
    if not np.ptp(levels[-late.steps :], axis=0).any():  # a level without noise
        begin = np.flatnonzero((levels != levels[-1]).any(axis=1)).max(initial=-1) + 1
        return Onset(begin=int(begin), p=1.0, faded=0)
    taus = np.geomspace(1.0, n / 4, RATES)
    waves = np.exp(-np.outer(np.arange(n), np.outer((1, *FASTER), 1 / taus)))
    white = _whitened(np.hstack([levels, np.ones((n, 1)), waves]), late)
    # the final value is a regressor of its own
    constant = white[:, wide]
    white -= np.outer(constant, constant @ white) / (constant @ constant)
    values, regressors = white[:, :wide], white[:, wide + 1 :]
    noise = float((values[-late.steps :] ** 2).mean())
    # Step 1: whether there is a transient, by the largest power.
    columns = max(1, int(late.columns))
    size, unit = _normed(regressors[:, :RATES])
    power = ((unit.T @ values) ** 2).mean(axis=1) / noise  # 1 is expected
    scale, vectors = np.linalg.eigh(unit.T @ unit)
    root = np.sqrt(np.maximum(scale, 0))
    rng = np.random.default_rng(seed)
    drawn = rng.normal(size=(DRAWS, columns, len(root))) * root @ vectors.T
    null = (drawn**2).mean(axis=1).max(axis=1)
    p = float((1 + (null >= power.max()).sum()) / (1 + DRAWS))
    # Step 2: the step from which the best fit of a transient is negligible.
    spread = float(levels[-late.steps :].std(axis=0).mean())
    best, faded = int(power.argmax()), 0.0
    if p < SEEN:
        height = np.sqrt(max(power[best] - 1, 0.0) * noise) / size[best] / spread
        faded = taus[best] * np.log(max(height / FADED, 1.0))
        # what fades faster beside it is none of a time constant's
        by_rate = regressors.reshape(n, 1 + len(FASTER), RATES)
        alone = [_without(of[:, 0], of[:, 1:]) for of in np.moveaxis(by_rate, 2, 0)]
        size, unit = _normed(np.stack(alone, axis=1))
        power = ((unit.T @ values) ** 2).mean(axis=1) / noise
    # Step 3: upper limits of each time constant's transient, and of what is left of it.
    # A power below the expected one is luck, and no sign that there is nothing.
    most = chndtrinc(columns * np.maximum(power, 1), columns, LEVEL) / columns
    height = np.sqrt(most * noise) / size / spread
    left = (waves[:, :RATES] * height).max(axis=1)
    small = np.append(np.flatnonzero(left < SMALL), n)
    return Onset(begin=int(small[0]), p=p, faded=int(np.ceil(faded)))


def _normed(series: Float64) -> tuple[Float64, Float64]:
    """Return the lengths of columns, and the columns of length 1."""
    size = np.sqrt((series**2).sum(axis=0))
    return size, series / size


def _without(series: Float64, others: Float64) -> Float64:
    """Return what other series ``[n, m]`` do not explain of one ``[n]``."""
    basis, _ = np.linalg.qr(others)
    rest: Float64 = series - basis @ (basis.T @ series)
    return rest


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

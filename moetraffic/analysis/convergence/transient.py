"""Transient, its half-life, and stage means of curves over training steps.

A curve is ``[T]``, one value a step; NaN marks a step that was not measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from moetraffic.analysis.forecast.accuracy import mean_of_known
from moetraffic.arrays import Float64

NAN = float("nan")

TIMES = 160
"""Time constants that are tried, from half a step to four times the run."""


def stage_means(curve: npt.ArrayLike) -> Float64:
    """Compute the means of the early, middle and late third of a curve.

    Parameters
    ----------
    curve
        ``[T]``.  If T is no multiple of three, the earlier thirds are a step longer.

    Returns
    -------
    float64 array ``[3]``
        Means of what was measured; NaN where nothing was.

    Examples
    --------
    >>> stage_means([1, 1, 2, 2, 5]).tolist()
    [1.0, 2.0, 5.0]
    """
    thirds = np.array_split(np.asarray(curve, dtype=np.float64), 3)
    return np.array([mean_of_known(third) for third in thirds])


@dataclass(frozen=True, kw_only=True)
class Transient:
    """End of a curve's transient, and mean and deviation of its stable part."""

    step: int  # first step of the stable part, an index into the curve
    ended: bool  # False: not by the middle of the run
    mean: float  # of the stable part
    std: float  # population standard deviation in it


def initial_transient(curve: npt.ArrayLike) -> Transient:
    r"""Split a curve into transient and stable part by the MSER rule.

    The rule is MSER, known from the warm-up of simulations: leave out the first d steps
    for which :math:`\sum_{t \ge d} (x_t - \bar x_d)^2 / (T - d)^2` is least, the
    squared standard error of the mean of the rest, with d at most T/2.  If that limit
    itself is the least, the curve is still moving.  A jump in the second half is not
    looked for.

    Parameters
    ----------
    curve
        ``[T]``; NaN are left out.

    Returns
    -------
    Transient
        ``ended`` is False, too, where fewer than four steps were measured.

    References
    ----------
    K. P. White, An effective truncation heuristic for bias reduction in simulation
    output, Simulation 69 (1997) 323.

    Examples
    --------
    >>> found = initial_transient([9, 5, 1, 2, 1, 2, 1, 2, 1, 2])
    >>> found.step, found.ended, round(found.mean, 6)
    (2, True, 1.5)
    """
    x = np.asarray(curve, dtype=np.float64)
    known = np.isfinite(x)
    if not known.any():
        return Transient(step=0, ended=False, mean=NAN, std=NAN)
    # Step 1: for each d, count, mean and squares of what follows, about the total mean.
    center = float(x[known].mean())
    rest = np.where(known, x - center, 0.0)
    n, total, squares = (np.cumsum(each[::-1])[::-1] for each in (known, rest, rest**2))
    held = np.maximum(n, 1)
    deviation = np.maximum(squares - total**2 / held, 0.0)
    # Step 2: minimize the squared standard error over d up to the middle.
    limit = len(x) // 2
    error = np.where(n > 0, deviation / held**2, np.inf)[: limit + 1]
    step = int(np.argmin(error))
    return Transient(
        step=step,
        ended=bool(known.sum() >= 4 and step < limit),
        mean=float(center + total[step] / held[step]),
        std=float(np.sqrt(deviation[step] / held[step])),
    )


def half_life(series: npt.ArrayLike, at: npt.ArrayLike) -> float:
    r"""Compute the half-life of the approach of series to their limits.

    :math:`x_t = \mu_\infty + (\mu_0 - \mu_\infty) e^{-t/\tau}`, with levels of each
    series and a common time constant, by least squares.  For a given :math:`\tau` the
    levels are linear, so that the sum of squares is a function of :math:`\tau` alone.
    Each series counts by the inverse of its residual variance.

    Parameters
    ----------
    series
        ``[T, C]``, step first; steps with a NaN are left out.
    at
        ``[T]`` increasing step numbers, of which the half-life is a number.

    Returns
    -------
    float
        NaN where nothing varies, or the best time constant is at an end of the search.

    References
    ----------
    G. H. Golub and V. Pereyra, SIAM J. Numer. Anal. 10 (1973) 413: separable least
    squares.

    Examples
    --------
    >>> t = np.arange(100)
    >>> noise = 0.01 * np.cos(t * t)[:, None]
    >>> round(half_life(3 + 2 * 0.5 ** (t[:, None] / 10) + noise, t), 1)
    10.0
    """
    x = np.asarray(series, np.float64)
    known = np.isfinite(x).all(axis=1)
    y, t = x[known], np.asarray(at, np.float64)[known]
    y = y[:, np.ptp(y, axis=0) > 0] if len(y) else y
    if len(y) < 6 or not y.shape[1]:
        return NAN
    y, t = y - y.mean(axis=0), t - t[0]
    total = (y**2).sum(axis=0)

    def squares(log_time: float | Float64) -> Float64:
        """Residual sums of squares of each time constant and series."""
        wave = np.exp(-t / np.exp(np.reshape(log_time, (-1, 1))))
        wave -= wave.mean(axis=1, keepdims=True)
        explained = (wave @ y) ** 2 / (wave**2).sum(axis=1, keepdims=True)
        return np.asarray(total - explained, np.float64)

    times = np.linspace(np.log(np.diff(t).min() / 2), np.log(4 * t[-1]), TIMES)
    left = squares(times)
    weight = 1 / np.maximum(left[np.argmin(left @ (1 / total))], 1e-12 * total)
    best = int(np.argmin(left @ weight))
    if best in (0, TIMES - 1):
        return NAN
    found = scipy.optimize.minimize_scalar(
        lambda time: float((squares(time) @ weight)[0]),
        bounds=(times[best - 1], times[best + 1]),
        method="bounded",
    )
    return float(np.exp(found.x) * np.log(2))

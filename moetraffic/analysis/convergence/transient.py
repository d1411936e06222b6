"""Transient and stage means of a curve over training steps.

A curve is ``[T]``, one value a step; NaN marks a step that was not measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.forecast.accuracy import mean_of_known
from moetraffic.arrays import Float64

NAN = float("nan")


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

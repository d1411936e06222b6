"""Transients: first steady step of a curve; means of early, middle and late thirds.

Curves have the step as their first axis, ``[T, ...]``; a NaN is a step that was not
measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


def stage_means(curve: npt.ArrayLike) -> Float64:
    """Compute the means of the early, middle and late third of a curve.

    Parameters
    ----------
    curve
        ``[T, ...]``, step first.  If T is no multiple of three, the earlier thirds are
        a step longer.

    Returns
    -------
    float64 array ``[3, ...]``
        Means of what was measured; NaN where nothing was.

    Examples
    --------
    >>> stage_means([1, 1, 2, 2, 5]).tolist()
    [1.0, 2.0, 5.0]
    """
    x = np.asarray(curve, dtype=np.float64)
    result: Float64 = np.full((3, *x.shape[1:]), np.nan)
    for third, part in enumerate(np.array_split(x, 3)):
        known = np.isfinite(part)
        count = known.sum(axis=0)
        total = np.where(known, part, 0.0).sum(axis=0)
        np.divide(total, count, out=result[third, ...], where=count > 0)
    return result


@dataclass(frozen=True, kw_only=True)
class Transient:
    """End of a curve's transient, and mean and deviation of its stable part."""

    step: Int64  # first step of the stable part, an index into the curve
    settled: Bool  # False: not stable by the middle of the run
    mean: Float64  # of the stable part
    std: Float64  # population standard deviation in it


def settling(curve: npt.ArrayLike) -> Transient:
    r"""Split a curve into transient and stable part by the MSER rule.

    The rule is MSER, known from the warm-up of simulations: leave out the first d steps
    for which :math:`\sum_{t \ge d} (x_t - \bar x_d)^2 / (T - d)^2` is least, the
    squared standard error of the mean of the rest, with d at most T/2.  If that limit
    itself is the least, the curve is still moving.  A jump in the second half is not
    looked for; ask :func:`~moetraffic.analysis.convergence.trends.trend` of the stable
    part.

    Parameters
    ----------
    curve
        ``[T, ...]``, step first; NaN are left out.

    Returns
    -------
    Transient
        ``settled`` is False, too, where fewer than four steps were measured.

    References
    ----------
    K. P. White, An effective truncation heuristic for bias reduction in simulation
    output, Simulation 69 (1997) 323.

    Examples
    --------
    >>> found = settling([9, 5, 1, 2, 1, 2, 1, 2, 1, 2])
    >>> int(found.step), bool(found.settled), round(float(found.mean), 6)
    (2, True, 1.5)
    """
    x = np.asarray(curve, dtype=np.float64)
    known = np.isfinite(x)
    if not x.size:
        empty = np.full(x.shape[1:], np.nan)
        nowhere = np.zeros(x.shape[1:], dtype=np.int64)
        return Transient(
            step=nowhere, settled=nowhere.astype(bool), mean=empty, std=empty
        )
    # Step 1: for each d, count, mean and squares of what follows, about the total mean.
    everywhere = known.sum(axis=0)
    center = np.where(known, x, 0.0).sum(axis=0) / np.maximum(everywhere, 1)
    rest = np.where(known, x - center, 0.0)
    n = np.cumsum(known[::-1], axis=0)[::-1].astype(np.float64)
    total = np.cumsum(rest[::-1], axis=0)[::-1]
    squares = np.cumsum((rest**2)[::-1], axis=0)[::-1]
    held = np.maximum(n, 1)
    deviation = np.maximum(squares - total**2 / held, 0.0)
    # Step 2: minimize the squared standard error over d up to the middle.
    limit = len(x) // 2
    error = np.where(n > 0, deviation / held**2, np.inf)[: limit + 1]
    step = np.argmin(error, axis=0)
    at = step[None]
    count = np.take_along_axis(held, at, axis=0)[0]
    enough = everywhere >= 4
    mean = center + np.take_along_axis(total, at, axis=0)[0] / count
    spread = np.sqrt(np.take_along_axis(deviation, at, axis=0)[0] / count)
    return Transient(
        step=step.astype(np.int64)[()],
        settled=(enough & (step < limit))[()],
        mean=np.where(everywhere > 0, mean, np.nan)[()],
        std=np.where(everywhere > 0, spread, np.nan)[()],
    )

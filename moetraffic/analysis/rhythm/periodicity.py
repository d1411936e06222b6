"""Autocorrelation of series ``[T, ...]``, time first, and the vertex of a peak."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Complex128, Float64
from moetraffic.errors import AnalysisError

FIRST_PEAK = 0.9
"""A peak this close to the highest one counts as high: the first such is the period."""


def autocorrelation(series: npt.ArrayLike, max_lag: int) -> Float64:
    """Compute the autocorrelation of a series up to a maximum lag.

    At each lag it is Pearson's coefficient of the two overlapping parts, each with its
    own mean and variance: what repeats itself exactly has exactly 1 at its period, at
    any lag, where the usual estimator falls off as ``1 - lag/T``.  Where steps are
    unknown (NaN), it is taken of the pairs of steps that are both known.

    Parameters
    ----------
    series
        ``[T, ...]``, time first.
    max_lag
        Largest lag, at most T - 2.

    Returns
    -------
    float64 array ``[max_lag + 1, ...]``
        Between -1 and 1; NaN where one of the parts does not vary, or fewer than two
        pairs are known.

    Raises
    ------
    AnalysisError
        If the series is shorter than ``max_lag + 2``.

    Examples
    --------
    >>> autocorrelation([0, 1, 0, 1, 0, 1], 2).round(6).tolist()
    [1.0, -1.0, 1.0]
    """
    x = np.asarray(series, dtype=np.float64)
    if not 0 <= max_lag <= len(x) - 2:
        raise AnalysisError(
            f"a lag must leave two steps that overlap, but max_lag is {max_lag} of "
            f"{len(x)} steps: choose at most T - 2"
        )
    there = np.isfinite(x)
    count = np.maximum(there.sum(axis=0), 1)
    x = np.where(there, x, 0.0)
    x = (x - x.sum(axis=0) / count) * there
    padded = 1 << (2 * len(x) - 1).bit_length()
    weights = (there.astype(np.float64), x, x**2)
    known, value, square = (np.fft.rfft(each, padded, axis=0) for each in weights)

    def lagged(early: Complex128, late: Complex128) -> Float64:
        """Compute the sum of early[t] late[t + lag] over t at each lag."""
        sums = np.fft.irfft(early.conj() * late, padded, axis=0)
        return np.asarray(sums[: max_lag + 1], np.float64)

    pairs = np.maximum(np.rint(lagged(known, known)), 1.0)
    early, late = lagged(value, known), lagged(known, value)
    covariance = lagged(value, value) - early * late / pairs
    early_spread = lagged(square, known) - early**2 / pairs
    late_spread = lagged(known, square) - late**2 / pairs
    # less is rounding
    varies = np.minimum(early_spread, late_spread) > 1e-10 * (x**2).sum(axis=0)
    varies &= pairs > 1
    variance = np.where(varies, early_spread * late_spread, 1.0)
    correlation: Float64 = np.full_like(covariance, np.nan)
    np.divide(covariance, np.sqrt(variance), out=correlation, where=varies)
    return np.clip(correlation, -1.0, 1.0)


def vertex(values: Float64, at: int) -> tuple[float, float]:
    """Find position and height of the parabola through a maximum and its neighbors."""
    here = float(values[at])
    if not 0 < at < len(values) - 1:
        return float(at), here
    before, after = float(values[at - 1]), float(values[at + 1])
    bend = before - 2 * here + after
    if not bend < 0:  # no maximum
        return float(at), here
    aside = min(0.5, max(-0.5, 0.5 * (before - after) / bend))
    return at + aside, here - 0.25 * (before - after) * aside

r"""Stationarity: KPSS test, and comparison of the means of two halves.

KPSS (D. Kwiatkowski, P. C. B. Phillips, P. Schmidt, Y. Shin, "Testing the null
hypothesis of stationarity against the alternative of a unit root", Journal of
Econometrics 54, 1992): with residuals e from the level, their partial sums
S and the long-run variance s^2 (Bartlett weights, l lags),

.. math:: \eta = T^{-2} \sum_t S_t^2 / s^2(l)

is large where the series wanders.  l is chosen after B. Hobijn, P. H. Franses, M. Ooms,
"Generalizations of the KPSS-test for stationarity", Statistica Neerlandica 58, 2004.
Beside it, the two halves' means are compared with the same kind of variance: a single
change of level in the middle, or a slow trend, shows there with its size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import erfc

from moetraffic.arrays import Float64
from moetraffic.errors import AnalysisError

CRITICAL = (0.347, 0.463, 0.574, 0.739)
"""Critical values at 10, 5, 2.5 and 1% (table 1, around a level)."""

FEWEST = 16
"""Minimum number of steps for a test."""

_NAN = float("nan")


@dataclass(frozen=True, kw_only=True)
class Stationarity:
    """Stationarity tests of a series; NaN where unavailable."""

    steps: int  # T, known values
    kpss: float  # eta
    p: float  # of KPSS, from the table: .1 stands for .1 or more, .01 for .01 or less
    lags: int  # l of the long-run variance
    change: float  # second half's mean over the first's, minus 1
    change_p: float  # probability of such a difference without a change, two-sided


def stationarity(series: npt.ArrayLike) -> Stationarity:
    """Test a series for stationarity by KPSS and by comparison of its halves.

    ``series``: ``[T]``; what is NaN is left out.

    Returns
    -------
    Stationarity
        NaN below :data:`FEWEST` known values.  What does not vary at all is
        stationary: 0, with p .1 and 1.

    Raises
    ------
    AnalysisError
        If the array is no series.
    """
    x = np.asarray(series, np.float64)
    if x.ndim != 1:
        raise AnalysisError(
            f"stationarity is tested of one series [T], but the shape is {x.shape}: "
            "give one series"
        )
    x = x[np.isfinite(x)]
    steps = len(x)
    if steps < FEWEST:
        return Stationarity(
            steps=steps, kpss=_NAN, p=_NAN, lags=0, change=_NAN, change_p=_NAN
        )
    half = steps // 2
    first, second = x[:half], x[steps - half :]
    before, after = float(first.mean()), float(second.mean())
    change = after / before - 1 if before else _NAN
    # rounding is no variation
    if np.ptp(x) <= 1e-12 * np.abs(x).max():
        return Stationarity(
            steps=steps, kpss=0.0, p=0.1, lags=0, change=change, change_p=1.0
        )
    statistic, p, lags = _kpss(x)
    within = np.concatenate((first - before, second - after))
    spread = 0.0
    if within.any():
        # the statistic is the partial sums' mean square over the long-run variance
        sums = float((np.cumsum(within) ** 2).sum()) / len(within) ** 2
        spread = sums / _kpss(within)[0]
    apart = abs(after - before)
    z = apart / (2 * spread / half) ** 0.5 if spread > 0 else np.inf if apart else 0.0
    return Stationarity(
        steps=steps,
        kpss=statistic,
        p=p,
        lags=lags,
        change=change,
        change_p=float(erfc(z / 2**0.5)),
    )


def kpss_statistic(deviations: Float64, lags: int) -> Float64:
    r"""Compute :math:`T^{-2} \sum_t S_t^2 / s^2(l)` of deviations from a level or line.

    Parameters
    ----------
    deviations
        ``[T, ...]``, time first; S are their partial sums.
    lags
        l, of the long-run variance :math:`s^2` with Bartlett weights.

    Returns
    -------
    float64 array ``[...]``
        Its mean is 1/6 for white noise around a level; 0 where nothing varies.

    Examples
    --------
    >>> float(kpss_statistic(np.repeat([-0.5, 0.5], 50), lags=0))
    8.335
    """
    n = len(deviations)
    long_run = (deviations**2).mean(axis=0)
    for lag in range(1, lags + 1):
        weight = 2 * (1 - lag / (lags + 1)) / n
        long_run = long_run + weight * (deviations[lag:] * deviations[:-lag]).sum(0)
    sums = (deviations.cumsum(axis=0) ** 2).sum(axis=0) / n**2
    found: Float64 = np.zeros_like(long_run)
    np.divide(sums, long_run, out=found, where=long_run > 0)
    return found


def _kpss(series: Float64) -> tuple[float, float, int]:
    """Compute the KPSS statistic, p-value, and lags chosen after Hobijn et al.

    As ``statsmodels.tsa.stattools.kpss``, whose import takes longer than an analysis.
    """
    steps = len(series)
    e = series - series.mean()

    def covariance(lag: int) -> float:
        return float(e[lag:] @ e[: steps - lag]) / steps

    # Step 1: lags from the first few covariances.
    few = np.arange(1, int(steps ** (2 / 9)) + 1)
    near = np.array([2 * covariance(int(lag)) for lag in few])
    ratio = float(few @ near) / (covariance(0) + float(near.sum()))
    lags = int(1.1447 * (ratio**2) ** (1 / 3) * steps ** (1 / 3))
    lags = min(lags, steps - 1)
    # Step 2: the partial sums over the long-run variance.
    statistic = float(kpss_statistic(e, lags))
    p = np.interp(statistic, CRITICAL, (0.1, 0.05, 0.025, 0.01))
    return statistic, float(p), lags

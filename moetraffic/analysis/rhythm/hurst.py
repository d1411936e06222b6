r"""Hurst exponent of traffic by the local Whittle estimator: a figure, not a claim.

The spectrum of a series with long memory grows as :math:`f^{1-2H}` toward frequency 0.
H minimizes, over the m lowest Fourier frequencies with periodogram I,

.. math:: R(H) = \log\Big(\frac1m \sum_j f_j^{2H-1} I_j\Big)
          - \frac{2H-1}{m} \sum_j \log f_j

(P. M. Robinson, "Gaussian semiparametric estimation of long range dependence", Annals
of Statistics 23 (1995) 1630).  On-off traffic whose bursts or gaps have tails of index
a between 1 and 2 has H = (3 - a) / 2: W. Willinger, M. S. Taqqu, R. Sherman, D. V.
Wilson, "Self-similarity through high-variability", IEEE/ACM Trans. Networking 5 (1997)
71.

A correlation over tens of steps raises the lowest frequencies as long memory does, and
in runs of thousands of steps no test separates the two, so that there is neither a
claim nor an interval: the asymptotic one contained the truth in half of the runs of
traffic of infinite variance.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64

FEWEST = 16
"""Fewest Fourier frequencies of an estimate."""

SLOWER = 16
"""Steps of the shortest period of the estimate: what happens in steps is no memory."""

_BOUNDS = (0.0, 1.5)  # of H


def hurst_exponent(series: npt.ArrayLike) -> float:
    """Estimate the Hurst exponent of a series with one value a step.

    ``series``: ``[T]``, one value a step, for example the share of the step that is on.

    Returns
    -------
    float
        About 0.5 of independent values, with a standard error of 2 / sqrt(T) at least;
        NaN below 256 steps, or if the series does not vary.

    Examples
    --------
    >>> found = hurst_exponent(np.random.default_rng(0).normal(size=4096))
    >>> bool(0.4 < found < 0.6)
    True
    """
    x = np.asarray(series, np.float64)
    m = len(x) // SLOWER
    x = x - x.mean() if len(x) else x
    if m < FEWEST or not np.abs(x).max() > 1e-12:
        return float("nan")
    f = np.arange(1, m + 1) / len(x)
    return _local_whittle(f, np.abs(np.fft.rfft(x)[1 : m + 1]) ** 2)


def _local_whittle(f: Float64, power: Float64) -> float:
    """Minimize the local Whittle objective over H by golden-section search."""
    log_f = np.log(f)
    log_f = log_f - log_f.mean()
    log_power = np.log(np.maximum(power, power.max() * 1e-300))

    def slope(hurst: float) -> float:
        """Compute the derivative of the objective: it grows with H."""
        each = (2 * hurst - 1) * log_f + log_power
        weight = np.exp(each - each.max())
        return float((weight * log_f).sum())

    low, high = _BOUNDS
    if slope(low) >= 0:
        return low
    if slope(high) <= 0:
        return high
    from scipy.optimize import brentq

    return float(brentq(slope, low, high, xtol=1e-9))

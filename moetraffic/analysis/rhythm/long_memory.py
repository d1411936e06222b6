r"""Long memory: Hurst exponent of traffic by the local Whittle estimator.

The spectrum of a series with long memory grows as :math:`f^{1-2H}` toward frequency 0.
H minimizes, over the m lowest Fourier frequencies with periodogram I,

.. math:: R(H) = \log\Big(\frac1m \sum_j f_j^{2H-1} I_j\Big)
          - \frac{2H-1}{m} \sum_j \log f_j

and is asymptotically normal with variance 1/(4 m): P. M. Robinson, "Gaussian
semiparametric estimation of long range dependence", Annals of Statistics 23 (1995)
1630.  On-off traffic whose bursts or gaps have tails of index a between 1 and 2 has
H = (3 - a) / 2: W. Willinger, M. S. Taqqu, R. Sherman, D. V. Wilson, "Self-similarity
through high-variability", IEEE/ACM Trans. Networking 5 (1997) 71.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

Float64 = npt.NDArray[np.float64]

FEWEST = 16
"""Fewest Fourier frequencies of an estimate."""

SLOWER = 16
"""Steps of the shortest period used: what happens within steps is no memory."""

_BOUNDS = (0.0, 1.5)  # of H
_NAN = float("nan")


@dataclass(frozen=True, kw_only=True)
class LongMemory:
    """Hurst exponent of a series; NaN where it is too short."""

    hurst: float = _NAN  # 0.5 without long memory
    low: float = _NAN  # 95% interval
    high: float = _NAN
    short_range: float = _NAN  # what a first-order autoregression would have shown
    p: float = _NAN  # of that autoregression, one-sided
    frequencies: int = 0  # m


def long_memory(series: npt.ArrayLike) -> LongMemory:
    """Estimate the Hurst exponent of a series with one value a step.

    The null hypothesis is a first-order autoregression with the correlation of
    successive values: its spectrum at the same frequencies gives the exponent that it
    would show.

    Parameters
    ----------
    series
        ``[T]``, one value a step, for example the share of the step that is on.

    Returns
    -------
    LongMemory

    Examples
    --------
    >>> found = long_memory(np.random.default_rng(0).normal(size=4096))
    >>> found.low < 0.5 < found.high
    True
    """
    x = np.asarray(series, np.float64)
    m = len(x) // SLOWER
    x = x - x.mean() if len(x) else x
    if m < FEWEST or not np.abs(x).max() > 1e-12:
        return LongMemory(frequencies=m)
    f = np.arange(1, m + 1) / len(x)
    power = np.abs(np.fft.rfft(x)[1 : m + 1]) ** 2
    phi = float(np.clip((x[1:] * x[:-1]).sum() / (x**2).sum(), -0.99, 0.99))
    shown = 1 / np.abs(1 - phi * np.exp(-2j * np.pi * f)) ** 2
    hurst, short = _local_whittle(f, power), _local_whittle(f, shown)
    error = 0.5 / m**0.5
    return LongMemory(
        hurst=hurst,
        low=hurst - 1.96 * error,
        high=hurst + 1.96 * error,
        short_range=short,
        p=float(ndtr((max(short, 0.5) - hurst) / error)),
        frequencies=m,
    )


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

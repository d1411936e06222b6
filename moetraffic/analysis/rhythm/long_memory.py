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

A correlation over some steps raises the lowest frequencies too.  The null hypothesis is
therefore a first-order autoregression with white noise, fitted by Whittle's likelihood
to the faster frequencies: with long memory the slower ones have more power than it has
there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import gammaincc

Float64 = npt.NDArray[np.float64]

FEWEST = 16
"""Fewest Fourier frequencies of an estimate."""

SLOWER = 16
"""Steps of the shortest period of the estimate: what happens in steps is no memory."""

SLOWEST = 64
"""Steps of the shortest period at which more power is long memory."""

FEWEST_SLOWEST = 8
"""Fewest Fourier frequencies at such periods for a test."""

FASTEST = 4  # steps of the shortest period that the null hypothesis is fitted to

COEFFICIENTS = 1 - np.geomspace(1 / SLOWER, 1, 8)
"""Autoregressive coefficients: correlations over up to 16 steps are short-range."""

MIXTURES = np.linspace(0, 1, 11)
"""Shares of the autoregression in the variance; the rest is white noise."""

_BOUNDS = (0.0, 1.5)  # of H
_NAN = float("nan")


@dataclass(frozen=True, kw_only=True)
class LongMemory:
    """Hurst exponent of a series; NaN where it is too short."""

    hurst: float = _NAN  # 0.5 without long memory
    low: float = _NAN  # 95% interval
    high: float = _NAN
    p: float = _NAN  # of short-range dependence
    frequencies: int = 0  # m


def long_memory(series: npt.ArrayLike) -> LongMemory:
    """Estimate the Hurst exponent of a series with one value a step.

    Parameters
    ----------
    series
        ``[T]``, one value a step, for example the share of the step that is on.  The
        exponent needs 256, the test 512.

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
    power = np.abs(np.fft.rfft(x)[1 : len(x) // FASTEST + 1]) ** 2
    hurst, error = _local_whittle(f, power[:m]), 0.5 / m**0.5
    return LongMemory(
        hurst=hurst,
        low=hurst - 1.96 * error,
        high=hurst + 1.96 * error,
        p=_p_short_range(power, len(x)) if hurst > 0.5 else 1.0,
        frequencies=m,
    )


def _p_short_range(power: Float64, steps: int) -> float:
    """Test the power at the slowest frequencies against that fitted to the others."""
    slow = steps // SLOWEST
    if slow < FEWEST_SLOWEST:
        return _NAN
    turn = np.exp(-2j * np.pi * np.arange(1, len(power) + 1) / steps)
    best, ratio = float("inf"), power
    for phi in COEFFICIENTS.tolist():
        own = (1 - phi) ** 2 / np.abs(1 - phi * turn) ** 2
        for share in MIXTURES.tolist():
            shape = 1 - share + share * own
            scale = float((power[slow:] / shape[slow:]).mean())
            misfit = np.log(scale) + float(np.log(shape[slow:]).mean())
            if misfit < best:
                best, ratio = misfit, power / (scale * shape)
    # each periodogram value over its spectrum is exponential
    return float(gammaincc(slow, ratio[:slow].sum()))


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

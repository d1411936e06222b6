r"""Lomb-Scargle periodogram: period of a series with gaps.

The floating-mean form: at each frequency a sine and a constant are fitted together by
least squares, and the power is the share of the variance that the sine explains,

.. math:: p(f) = \frac{1}{YY D}\,(SS\,YC^2 + CC\,YS^2 - 2\,CS\,YC\,YS),
          \quad D = CC\,SS - CS^2

with the weighted sums of M. Zechmeister, M. Kürster, "The generalized Lomb-Scargle
periodogram", Astronomy & Astrophysics 496, 2009 (equations 5 to 15).  The probability
that noise alone reaches a power is bounded after R. V. Baluev, "Assessing the
statistical significance of periodogram peaks", MNRAS 385, 2008 (equation 6, standard
normalization).

A sine is fitted: a short burst's power spreads over the harmonics, and with several
bursts a period the strongest may be one of them.  See
:func:`moetraffic.analysis.rhythm.periodicity.period` for the other way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from .periodicity import vertex

Float64 = npt.NDArray[np.float64]

OVERSAMPLED = 4
"""Number of frequencies per peak width, 1 over the observed time."""

_LONG = 1 << 18  # steps of a series above which frequencies are not oversampled


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Highest peak of a periodogram; NaN if there is none."""

    period: float  # in the unit of the times
    power: float  # share of the variance, 0 to 1
    false_alarm: float  # probability that noise has as high a peak, an upper bound


def strongest_of_series(
    series: npt.ArrayLike, *, shortest: float = 2.0, longest: float | None = None
) -> Peak:
    """Find the strongest period of a series with gaps, which are NaN.

    The sums are taken by Fourier transforms, since the times are whole steps.

    Parameters
    ----------
    series
        ``[T]``.
    shortest, longest
        In steps.

    Returns
    -------
    Peak
        In steps.
    """
    x = np.asarray(series, np.float64)
    at = np.flatnonzero(np.isfinite(x))
    extent = float(at[-1] - at[0]) if at.size else 0.0
    most = extent / 2 if longest is None else min(longest, extent / 2)
    shortest = max(shortest, 2.0)
    if at.size < 4 or not shortest < most:
        return _NOTHING
    x = x[at[0] : at[-1] + 1]
    there = np.isfinite(x)
    y = np.where(there, x - x[there].mean(), 0.0)
    finer = OVERSAMPLED if len(x) <= _LONG else 1
    padded = 1 << int(np.ceil(np.log2(finer * len(x))))
    turn = np.fft.rfft(there.astype(np.float64), padded) / len(at)
    # e^(-2i w t) at frequency k is the transform at 2k; above the middle it folds back
    twice = 2 * np.arange(len(turn))
    folded = np.where(twice < len(turn), twice, padded - twice)
    double = np.where(twice < len(turn), turn[folded], turn[folded].conj())
    power = _power(
        turn, double, np.fft.rfft(y, padded) / len(at), (y**2).sum() / len(at)
    )
    grid = np.arange(len(turn)) / padded
    fits = (grid >= 1 / most) & (grid <= 1 / shortest)
    grid, power = grid[fits], power[fits]
    if len(grid) < 3 or not np.isfinite(power).any():
        return _NOTHING
    place, height = vertex(power, int(np.nanargmax(power)))
    height = min(1.0, height)
    return Peak(
        period=1 / float(grid[0] + place * (grid[1] - grid[0])),
        power=height,
        false_alarm=_false_alarm(height, float(grid[-1]), at.astype(np.float64)),
    )


_NOTHING = Peak(period=float("nan"), power=float("nan"), false_alarm=float("nan"))


def _power(
    turn: npt.NDArray[np.complex128],
    double: npt.NDArray[np.complex128],
    product: npt.NDArray[np.complex128],
    variance: float,
) -> Float64:
    """Compute the periodogram's p from means of e^(-iwt), e^(-2iwt) and y e^(-iwt)."""
    c, s = turn.real, -turn.imag
    yc, ys = product.real, -product.imag  # y has no mean
    cc = (1 + double.real) / 2 - c * c
    ss = (1 - double.real) / 2 - s * s
    cs = -double.imag / 2 - c * s
    determinant = cc * ss - cs**2
    told = (determinant > 1e-12) & (variance > 0)
    explained = ss * yc**2 + cc * ys**2 - 2 * cs * yc * ys
    power: Float64 = np.full(c.shape, np.nan)
    np.divide(explained, determinant * (variance or 1.0), out=power, where=told)
    return np.clip(power, 0.0, 1.0)


def _false_alarm(power: float, highest: float, at: Float64) -> float:
    """Compute Baluev's bound on the false-alarm probability of a peak."""
    number = len(at)
    if power >= 1:
        return 0.0
    if number < 4:
        return float("nan")
    width = highest * (4 * np.pi * float(at.var())) ** 0.5
    gamma = (2 / (number - 1)) ** 0.5 * np.exp(
        gammaln((number - 1) / 2) - gammaln((number - 2) / 2)
    )
    single = (1 - power) ** ((number - 3) / 2)
    tau = gamma * width * (1 - power) ** ((number - 4) / 2)
    tau *= (0.5 * (number - 1) * power) ** 0.5
    return float(1 - (1 - single) * np.exp(-tau))

"""Periodicity: autocorrelation of series, and power at the harmonics of a period.

Series have the time as their first axis, ``[T, ...]``; bursts are given by their events
as in :mod:`moetraffic.analysis.times.intervals`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.times.intervals import Span, merge_intervals, observed_span
from moetraffic.errors import AnalysisError

Float64 = npt.NDArray[np.float64]
Complex128 = npt.NDArray[np.complex128]

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


def spectral_share(series: npt.ArrayLike, *, period: float) -> Float64:
    """Compute the share of a series' AC power at its fundamental, ``1/period``.

    Taken over the largest whole number of periods from the start.  A sine has 1, a
    square wave .810569 (duty .5, in the limit of fine bins), noise nearly 0.

    Parameters
    ----------
    series
        ``[T, ...]``, time first.
    period
        In steps, above 2.

    Returns
    -------
    float64 array ``[...]``
        Between 0 and 1; NaN where no period fits or the series does not vary.

    Examples
    --------
    >>> import numpy as np
    >>> wave = np.sin(2 * np.pi * np.arange(60) / 20)
    >>> round(float(spectral_share(wave, period=20)), 6)
    1.0
    """
    x = np.asarray(series, dtype=np.float64)
    steps = round(int(len(x) / period + 1e-9) * period) if period > 2 else 0
    x = x[:steps]
    result: Float64 = np.full(x.shape[1:], np.nan)
    if steps:
        x = x - x.mean(axis=0)
        turn = np.exp(-2j * np.pi * np.arange(steps) / period)
        at_fundamental = 2 * np.abs(np.tensordot(turn, x, axes=1) / steps) ** 2
        power = (x**2).mean(axis=0)
        np.divide(at_fundamental, power, out=result, where=power > 0)
    return np.minimum(result, 1.0)[()]


def harmonic_shares(
    start: npt.ArrayLike,
    end: npt.ArrayLike,
    *,
    period_ns: float,
    harmonics: int = 5,
    cycles: int | None = None,
    span: Span | None = None,
) -> Float64:
    r"""Compute the AC power shares of an on-off signal at harmonics ``n / period``.

    With duty d the AC power is :math:`d(1-d)`, and the Fourier coefficient is a sum
    over the ends of the bursts, without any binning.  A square wave has
    :math:`2 \sin^2(\pi n d) / (\pi^2 n^2 d (1-d))` at its n-th harmonic.

    Parameters
    ----------
    start, end
        ``[n]`` integers, ns.
    period_ns
        Period, ns.
    harmonics
        How many, 1 or more; the first is the fundamental.
    cycles
        Periods, 1 or more, over which the wave has to keep its phase: the power is the
        mean over windows of so many.  None: one window, in which a slow drift, or an
        error of the period, loses power.  Few cycles let more noise in.
    span
        (from, to) in ns; None: see :func:`observed_span`.  It is cut to the largest
        whole number of windows.

    Returns
    -------
    float64 array ``[harmonics]``
        Between 0 and 1, together at most 1 where one window is taken; NaN where no
        window fits, or the signal is always on or off.

    Examples
    --------
    >>> shares = harmonic_shares([0, 10, 20], [5, 15, 25], period_ns=10, harmonics=3)
    >>> shares.round(6).tolist()
    [0.810569, 0.0, 0.090063]
    """
    nothing: Float64 = np.full(harmonics, np.nan)
    reach = span or observed_span(start, end)
    if reach is None or not period_ns > 0:
        return nothing
    fitting = int((reach[1] - reach[0]) / period_ns + 1e-9)
    window = max(fitting, 1) if cycles is None else cycles
    number = fitting // window
    if number < 1:
        return nothing
    # Step 1: the bursts inside, on a clock that starts with the span.
    length = number * window * period_ns
    first, last = merge_intervals(start, end)
    begin = np.clip((first - reach[0]).astype(np.float64), 0, length)
    finish = np.clip((last - reach[0]).astype(np.float64), 0, length)
    duty = float((finish - begin).sum()) / length
    if not 0 < duty < 1:
        return nothing
    border = np.arange(number + 1) * (window * period_ns)
    burst = np.searchsorted(begin, border)  # bursts begun before the border
    cut = np.maximum(finish[burst - 1] - border, 0) * (burst > 0)
    shares = []
    for n in range(1, harmonics + 1):
        # Step 2: the Fourier integral up to each border, whole bursts and the cut one.
        turn = -2j * np.pi * n / period_ns
        begun, ended = np.exp(turn * begin) / turn, np.exp(turn * finish) / turn
        passed = np.concatenate(([0], np.cumsum(ended - begun)))
        beyond = np.exp(turn * (border + cut)) - np.exp(turn * border)
        upto = passed[burst] - beyond / turn
        # Step 3: the power, in both of its spectral lines.
        power = 2 * float((np.abs(np.diff(upto) / (window * period_ns)) ** 2).mean())
        shares.append(min(1.0, power / (duty * (1 - duty))))
    return np.array(shares)

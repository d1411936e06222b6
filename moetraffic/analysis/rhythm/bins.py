"""Time bins: on-off series of events, and the time and amount before given times.

Events are given as in :mod:`moetraffic.analysis.times.intervals`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.times.intervals import (
    Span,
    checked_events,
    merge_intervals,
    observed_span,
)
from moetraffic.arrays import Float64
from moetraffic.errors import AnalysisError


def on_off_series(
    start: npt.ArrayLike,
    end: npt.ArrayLike,
    *,
    bin_ns: float,
    span: Span | None = None,
) -> Float64:
    """Compute the share of each time bin in which at least one event is on.

    Parameters
    ----------
    start, end
        ``[n]`` integers, ns.
    span
        (from, to) in ns; None: see :func:`observed_span`.  What is left of it after the
        last whole bin is left out.

    Returns
    -------
    float64 array ``[T]``
        Between 0 and 1; empty where there is no whole bin.

    Raises
    ------
    AnalysisError
        If the bin is not longer than zero.

    Examples
    --------
    >>> on_off_series([0, 10], [5, 12], bin_ns=4, span=(0, 12)).tolist()
    [1.0, 0.25, 0.5]
    """
    edges, origin = _edges(start, end, bin_ns, span)
    if len(edges) < 2:
        return np.zeros(0)
    share: Float64 = np.diff(time_on_until(edges, start, end, origin=origin)) / bin_ns
    return np.clip(share, 0.0, 1.0)


def time_on_until(
    at: npt.ArrayLike, start: npt.ArrayLike, end: npt.ArrayLike, *, origin: int = 0
) -> Float64:
    """Compute the time with at least one event on before given times.

    Parameters
    ----------
    at
        ``[...]`` times, ns from ``origin`` on.
    start, end
        ``[n]`` integers, ns.
    origin
        ns.  Times of a clock that counts from 1970 lose 100 ns as float64; those
        counted from a near origin lose nothing.

    Returns
    -------
    float64 array ``[...]``
        ns.

    Examples
    --------
    >>> time_on_until([0, 7, 11, 20], [0, 10], [5, 12]).tolist()
    [0.0, 5.0, 6.0, 7.0]
    """
    first, last = merge_intervals(start, end)
    times = np.asarray(at, np.float64)
    if not len(first):
        return np.zeros(times.shape)
    # piecewise linear between the starts and ends
    knots = np.stack((first, last), axis=1).ravel() - origin
    passed = np.stack((np.zeros_like(first), last - first), axis=1).ravel().cumsum()
    return np.asarray(np.interp(times, knots, passed), np.float64)


def amount_until(
    at: npt.ArrayLike,
    start: npt.ArrayLike,
    end: npt.ArrayLike,
    size: npt.ArrayLike,
    *,
    origin: int = 0,
) -> Float64:
    """Compute the amount transferred before given times, with events at constant rate.

    Parameters
    ----------
    start, end
        ``[n]`` integers, ns.  An event of no length counts as one of 1 ns.
    size
        ``[n]`` bytes, or any other amount.

    Returns
    -------
    float64 array ``[...]``

    Raises
    ------
    AnalysisError
        If sizes and events differ in number.

    Examples
    --------
    >>> amount_until([1, 3, 9], [0, 2], [4, 4], [8, 2]).tolist()
    [2.0, 7.0, 10.0]
    """
    first, last = checked_events(start, end)
    amount = np.asarray(size, dtype=np.float64)
    if amount.shape != first.shape:
        raise AnalysisError(
            f"every event has one size, but there are {first.size} events and sizes of "
            f"shape {amount.shape}: give one array [n]"
        )
    times = np.asarray(at, np.float64)
    if not first.size:
        return np.zeros(times.shape)
    # The rate changes at starts and ends; what has passed is its integral.
    last = np.maximum(last, first + 1)
    rate = amount / (last - first)
    knots, inverse = np.unique(np.concatenate((first, last)), return_inverse=True)
    change = np.bincount(inverse, np.concatenate((rate, -rate)))
    passed = np.concatenate(([0.0], np.cumsum(np.cumsum(change)[:-1] * np.diff(knots))))
    return np.asarray(np.interp(times, knots - origin, passed), np.float64)


def _edges(
    start: npt.ArrayLike, end: npt.ArrayLike, bin_ns: float, span: Span | None
) -> tuple[Float64, int]:
    """Compute the bin edges, ns from the span's start, and that start."""
    if not bin_ns > 0:
        raise AnalysisError(
            f"a time bin must be longer than 0 ns, but is {bin_ns}: choose a "
            f"fraction of the shortest burst that matters"
        )
    reach = span or observed_span(start, end)
    if reach is None:
        return np.zeros(0), 0
    number = int((reach[1] - reach[0]) / bin_ns + 1e-9)
    return np.arange(number + 1, dtype=np.float64) * float(bin_ns), reach[0]

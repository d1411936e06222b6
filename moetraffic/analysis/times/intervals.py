"""Merge time intervals of events into bursts and gaps.

Events are given as two int64 arrays in nanoseconds, in any order, overlapping or not.
Overlapping events merge into one *burst*; the time between two bursts is a *gap*.

Without a ``span``, the observed span reaches from the first burst's start to the last
burst's start: whole cycles of a burst and a gap.  (Up to the last burst's *end* there
would be one more burst than gaps, which biases duty cycles upward.)  Pass the span if
it is known, such as the start of the first step and the end of the last.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Int64
from moetraffic.errors import AnalysisError

Span = tuple[int, int]

_UNKNOWN = np.iinfo(np.int64).min


def merge_intervals(start: npt.ArrayLike, end: npt.ArrayLike) -> tuple[Int64, Int64]:
    """Merge overlapping and touching events into bursts.

    ``start``, ``end``: ``[n]`` integers, ns.  Events of zero length are excluded.

    Their starts and ends are int64 ``[m]`` ns, in time order, each apart from the next.

    Raises
    ------
    AnalysisError
        If the shapes differ, times are not integers, a time is unknown, or an event
        ends before it starts.

    Examples
    --------
    >>> [a.tolist() for a in merge_intervals([7, 0, 2], [9, 3, 5])]
    [[0, 7], [5, 9]]
    """
    first, last = checked_events(start, end)
    lasting = last > first
    order = np.argsort(first[lasting], kind="stable")
    first, last = first[lasting][order], last[lasting][order]
    if not len(first):
        return first, last
    reached = np.maximum.accumulate(last)
    fresh = np.concatenate(([True], first[1:] > reached[:-1]))
    closing = np.concatenate((fresh[1:], [True]))
    return first[fresh], reached[closing]


def checked_events(start: npt.ArrayLike, end: npt.ArrayLike) -> tuple[Int64, Int64]:
    """Validate event start and end times and return them as int64 ``[n]``."""
    first, last = np.asarray(start), np.asarray(end)
    if first.shape != last.shape or first.ndim != 1:
        raise AnalysisError(
            f"events have one start and one end each, but the shapes are {first.shape} "
            f"and {last.shape}: give two arrays [n]"
        )
    if first.size and not (first.dtype.kind in "iu" and last.dtype.kind in "iu"):
        raise AnalysisError(
            f"times are integers in ns, but have the types {first.dtype} and "
            f"{last.dtype}: convert seconds by rounding to ns"
        )
    first, last = first.astype(np.int64), last.astype(np.int64)
    if (first == _UNKNOWN).any() or (last == _UNKNOWN).any():
        raise AnalysisError(
            f"every event needs a known start and end, but "
            f"{int(((first == _UNKNOWN) | (last == _UNKNOWN)).sum())} of {first.size} "
            f"have none: leave those events out"
        )
    if (last < first).any():
        worst = int(np.argmax(last < first))
        raise AnalysisError(
            f"an event ends after it starts, but event {worst} starts at "
            f"{first[worst]} and ends at {last[worst]} ns: check the arguments' order"
        )
    return first, last


def observed_span(start: npt.ArrayLike, end: npt.ArrayLike) -> Span | None:
    """Return the span from the first burst's start to the last burst's start, ns.

    None with fewer than two bursts: there is no complete cycle.

    Examples
    --------
    >>> observed_span([0, 10, 20], [5, 15, 25])
    (0, 20)
    """
    first, _ = merge_intervals(start, end)
    return (int(first[0]), int(first[-1])) if len(first) > 1 else None


def mean_and_cv(lengths: npt.ArrayLike) -> tuple[float, float]:
    """Compute the mean and the coefficient of variation; NaN if empty.

    Examples
    --------
    >>> mean_and_cv([1, 3])
    (2.0, 0.5)
    """
    values = np.asarray(lengths, dtype=np.float64)
    if not values.size:
        return float("nan"), float("nan")
    mean = float(values.mean())
    return mean, float(values.std()) / mean if mean else float("nan")

"""Step time: quantiles and tail of the lengths of training steps.

All steps count, the slow ones too.  The tail index is that of
:mod:`moetraffic.analysis.skew.tails`: the smaller, the heavier.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.skew.tails import QUANTILES, tail_index
from moetraffic.analysis.times.intervals import Span, mean_and_cv, merge_intervals
from moetraffic.arrays import Int64

TAIL = 0.1
"""Share of the steps, the longest ones, from which the tail index is estimated."""

_NAN = float("nan")


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Distribution of step times; NaN where unavailable."""

    steps: int
    mean_ns: float = _NAN
    cv: float = _NAN  # population standard deviation over mean, of all steps
    p50_ns: float = _NAN
    p90_ns: float = _NAN
    p99_ns: float = _NAN
    max_ns: float = _NAN
    tail_index: float = _NAN  # of the longest 10%; NaN below 100 steps
    tail_index_low: float = _NAN  # 95% interval
    tail_index_high: float = _NAN


def step_time(lengths: npt.ArrayLike) -> StepTime:
    """Compute quantiles, variation and tail index of step times.

    ``lengths``: ``[n]`` ns, longer than zero.

    Examples
    --------
    >>> found = step_time([100, 100, 100, 500])
    >>> found.p50_ns, found.max_ns, round(found.cv, 3)
    (100.0, 500.0, 0.866)
    """
    x = np.asarray(lengths, np.float64)
    if not x.size:
        return StepTime(steps=0)
    mean, cv = mean_and_cv(x)
    p50, p90, p99 = np.quantile(x, QUANTILES).tolist()
    index, low, high = tail_index(np.sort(x), int(TAIL * x.size))
    return StepTime(
        steps=x.size,
        mean_ns=mean,
        cv=cv,
        p50_ns=p50,
        p90_ns=p90,
        p99_ns=p99,
        max_ns=float(x.max()),
        tail_index=index,
        tail_index_low=low,
        tail_index_high=high,
    )


def extent(first: Int64, last: Int64) -> Span | None:
    """Compute the time from the first burst's start to the last one's end, ns."""
    return (int(first[0]), int(last[-1])) if len(first) else None


def step_spans(
    marks: npt.ArrayLike,
    *,
    within: Span | None,
    observed: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
) -> tuple[Int64, Int64, int]:
    """List the steps between marks that were observed from begin to end.

    Parameters
    ----------
    marks
        ``[m]`` integers, ns, where steps begin.
    within
        (from, to) in ns, of which a step must contain a part; None: no step does.
    observed
        Disjoint starts and ends, ns, of the times that were observed, in order; None:
        all.  A step that reaches beyond, as before an evaluation, has no known length.

    Returns
    -------
    begin, end
        int64 ``[n]`` ns.
    left_out
        Number of other steps in ``within``, whose length is unknown.

    Examples
    --------
    >>> marks, seen = [0, 10, 20, 90, 100], ([0, 90], [30, 110])
    >>> begin, end, left_out = step_spans(marks, within=(12, 95), observed=seen)
    >>> begin.tolist(), end.tolist(), left_out
    ([10, 90], [20, 100], 1)
    """
    borders = np.unique(np.asarray(marks, np.int64))
    begin, end = borders[:-1], borders[1:]
    if within is None:
        return begin[:0], end[:0], 0
    inside = (end > within[0]) & (begin < within[1])
    number = int(inside.sum())
    if observed is not None:
        first, last = merge_intervals(*observed)
        part = np.searchsorted(first, begin, side="right") - 1
        inside &= part >= 0
        inside[inside] &= end[inside] <= last[part[inside]]
    begin, end = begin[inside], end[inside]
    return begin, end, number - len(begin)

"""Cycles: cut bursts into periods, and compare successive cycles.

A cycle is the traffic of one iteration.  Without marks of iteration starts, a cycle
begins with the burst after its longest gap.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.times.intervals import merge_intervals
from moetraffic.arrays import Float64, Int64

from .bins import time_on_until

USUAL = (0.5, 1.5)
"""Range of usual cycle lengths in periods; others are pauses or merged cycles."""

PARTS = 64
"""Number of equal parts of a cycle in which its shape is described."""

_NAN = float("nan")


def _none() -> Float64:
    return np.zeros(0)


@dataclass(frozen=True, kw_only=True)
class Cycles:
    """Cycles of a sequence of bursts; NaN with fewer than two."""

    length_ns: Float64 = field(
        default_factory=_none
    )  # [n] of each cycle of usual length, in time order
    likeness: float = _NAN  # correlation of a cycle's shape with the next one's
    bursts: int = 0  # the most common number of bursts
    regular: float = _NAN  # share of the cycles with that number
    position: Float64 = field(
        default_factory=_none
    )  # [bursts] mean start, as a share of the mean length
    position_jitter: Float64 = field(
        default_factory=_none
    )  # [bursts] standard deviation of that


def cycles(
    start: npt.ArrayLike,
    end: npt.ArrayLike,
    *,
    period_ns: float,
    marks: npt.ArrayLike | None = None,
) -> Cycles:
    """Split bursts into cycles and compute the correlation of successive cycles.

    The positions are of the cycles that have as many bursts as most have: in others
    nothing tells which burst is missing, or which is new.

    A cycle's shape is how much of each of its :data:`PARTS` equal parts was on, so that
    longer and shorter cycles are laid over each other: where iterations wander in
    length but do the same, the autocorrelation at any lag is weak and the likeness near
    1.

    Parameters
    ----------
    start, end
        ``[n]`` integers, ns, of events.
    period_ns
        Period, ns; with marks NaN will do, and the median of their distances is taken.
    marks
        ``[m]`` ns, where cycles begin, of the events' clock.  None: found among the
        bursts; the first of a cycle then stands at 0 without jitter.

    Examples
    --------
    >>> found = cycles([0, 20, 100, 120, 200, 220], [10, 30, 110, 130, 210, 230],
    ...                period_ns=100)
    >>> found.length_ns.tolist(), found.bursts, found.position.tolist()
    ([100.0, 100.0], 2, [0.0, 0.2])
    """
    first, last = merge_intervals(start, end)
    borders = np.unique(np.asarray(() if marks is None else marks, np.int64))
    if marks is not None and len(borders) > 1:
        period_ns = float(np.median(np.diff(borders)))
    if not len(first) or not period_ns > 0:
        return Cycles()
    if marks is None:
        borders = cycle_starts(first, last, period_ns=period_ns)
    lengths = np.diff(borders).astype(np.float64)
    usual = (lengths > USUAL[0] * period_ns) & (lengths < USUAL[1] * period_ns)
    if usual.sum() < 2:
        return Cycles()
    origin = int(borders[0])
    parts = (borders[:-1, None] - origin) + lengths[:, None] * (
        np.arange(PARTS + 1) / PARTS
    )
    shape = np.diff(time_on_until(parts, first, last, origin=origin), axis=1)
    shape = shape / lengths[:, None] * PARTS
    follows = usual[:-1] & usual[1:]
    # Which bursts begin in which cycle, and how many are the rule.
    upto = np.searchsorted(first, borders)
    number = np.diff(upto)
    counts = np.bincount(number[usual])
    rule = int(np.argmax(counts))
    alike = np.flatnonzero(usual & (number == rule))
    mean = float(lengths[usual].mean())
    at = first[upto[alike][:, None] + np.arange(rule)] - borders[alike][:, None]
    return Cycles(
        length_ns=lengths[usual],
        likeness=_correlation(shape[:-1][follows], shape[1:][follows]),
        bursts=rule,
        regular=len(alike) / int(usual.sum()),
        position=at.mean(axis=0) / mean,
        position_jitter=at.std(axis=0) / mean
        if len(alike) > 1
        else np.full(rule, _NAN),
    )


def _correlation(one: Float64, other: Float64) -> float:
    """Compute Pearson's correlation over all cells; NaN where one is constant."""
    if not one.size:
        return _NAN
    a, b = one - one.mean(), other - other.mean()
    power = float((a**2).sum() * (b**2).sum()) ** 0.5
    return float((a * b).sum()) / power if power > 1e-12 * one.size else _NAN


def cycle_starts(first: Int64, last: Int64, *, period_ns: float) -> Int64:
    """Find the starts of the bursts that begin a cycle, ``[n]`` int64 ns.

    The first is the one after the longest gap of the first two periods; each next one
    is, of those with at least half such a gap before, the nearest to a period later.
    After a pause it begins again with the first such burst.

    ``first``, ``last``: int64 ``[m]`` ns, from
    :func:`moetraffic.analysis.times.intervals.merge_intervals`.
    """
    if len(first) < 2:
        return first.copy()
    gap = first[1:] - last[:-1]  # before burst 1, 2 ...
    early = max(1, int(np.searchsorted(first, first[0] + 2 * period_ns)) - 1)
    longest = int(np.argmax(gap[:early]))
    begins = np.concatenate(([False], 2 * gap >= gap[longest]))
    at = longest + 1
    # the run's first burst begins a cycle too, if it comes a period before
    found = [int(first[at])]
    if abs(first[at] - first[0] - period_ns) < period_ns / 10:
        found.insert(0, int(first[0]))
    while True:
        due = first[at] + period_ns
        low = int(np.searchsorted(first, first[at] + USUAL[0] * period_ns, "right"))
        high = int(np.searchsorted(first, first[at] + USUAL[1] * period_ns))
        if low >= len(first):
            break
        near = np.arange(low, high)
        near = near[begins[near]] if begins[near].any() else near
        if len(near):
            at = int(near[np.argmin(np.abs(first[near] - due))])
        else:
            later = np.flatnonzero(begins[low:])
            if not len(later):
                break
            at = low + int(later[0])
        found.append(int(first[at]))
    return np.array(found, np.int64)

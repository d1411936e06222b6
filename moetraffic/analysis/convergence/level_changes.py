"""Changes of level: jumps of many series at one step.

A jump must stand out of all other steps: where levels move as a random walk, an
autoregression or any other process of stationary Gaussian increments, the change from
a few steps before to a few steps after has the same gamma distribution everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import gammaincc, gammaincinv

from moetraffic.analysis.claim import LEVEL
from moetraffic.arrays import Float64, Int64

from .log_shares import log_shares

MOST = 8
"""Jumps that are looked for."""

WIDER = 2
"""Factor of the longer means in which a jump must be significant as well."""

FEWEST = 3
"""Least number of steps of a level beside a jump."""

ROUNDING = 1e-18
"""Squared change below which levels are equal, in units of their squared steps."""

_SHAPES = np.geomspace(0.25, 64, 200)
_QUANTILES = gammaincinv(_SHAPES[:, None], np.array([0.5, 0.9]))


@dataclass(frozen=True, kw_only=True)
class LevelChange:
    """A jump of the level."""

    index: int  # first step of the new level
    low: int  # 95% interval of the index
    high: int
    p: float  # of increments that are stationary
    jump: Float64  # [D], new level less old


@dataclass(frozen=True, kw_only=True)
class Levels:
    """Levels of counts ``[T, C]``, and their jumps."""

    values: Float64  # [n, D], as of log_shares
    rows: Int64  # [n], of the counts
    changes: tuple[LevelChange, ...]  # in the order of their steps
    p_change: float  # of the largest jump, or of the largest change if none is a jump

    @property
    def changed_at(self) -> Int64:
        """Rows of the counts at which a new level begins, ``[K]``."""
        return self.rows[np.array([each.index for each in self.changes], np.int64)]

    @property
    def last(self) -> int:
        """Row from which the shares keep their last level; 0: no change of level.

        The end of the 95% interval of the last jump.
        """
        return int(self.rows[self.changes[-1].high]) if self.changes else 0


def level_changes(levels: Float64) -> tuple[tuple[LevelChange, ...], float]:
    """Find the jumps of levels, the largest first and the others in what is left.

    ``levels``: ``[T, D]``, step first, columns of similar noise.

    Returns
    -------
    changes
        In the order of their steps.
    p
        Of the largest jump, or of the largest change where none is a jump.
    """
    rest, found = levels, list[LevelChange]()
    first = 1.0
    while len(found) < MOST:
        change = _largest(rest)
        if not found:
            first = 1.0 if change is None else change.p
        near = max(4, len(levels) // 50)
        if (
            change is None
            or change.p >= LEVEL
            or any(abs(change.index - other.index) < near for other in found)
        ):
            break
        found.append(change)
        rest = rest - np.outer(np.arange(len(rest)) >= change.index, change.jump)
    return tuple(sorted(found, key=lambda change: change.index)), first


def levels_of(counts: npt.ArrayLike) -> Levels:
    """Compute the levels of counts, and find their jumps.

    ``counts``: ``[T, C]`` token copies, or bytes in units of a row; step first.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = np.where(np.arange(200)[:, None] < 90, [0.4, 0.3, 0.3], [0.2, 0.3, 0.5])
    >>> found = levels_of(np.array([rng.multinomial(2000, row) for row in p]))
    >>> found.changed_at.tolist(), found.last
    ([90], 90)
    """
    values, rows = log_shares(counts)
    changes, p_change = level_changes(values)
    return Levels(values=values, rows=rows, changes=changes, p_change=p_change)


def _largest(levels: Float64) -> LevelChange | None:
    """Find the step with the largest change, and test whether it stands out."""
    steps = len(levels)
    width = min(max(5, steps // 40), steps // 4)
    if width < 4:
        return None
    change, p = _changes(levels, width)
    if not change.max() > ROUNDING:
        return None
    top = int(change.argmax())
    p_top = float(p[top])
    # a jump persists: it must be significant for means over up to WIDER times as many
    # steps, too (at most 1/20 of the run)
    wide = min(WIDER * width, max(width, steps // 20))
    if wide > width:
        _, lasting = _changes(levels, wide)
        about = np.arange(top, top + 2 * width + 1) - wide  # both are of index + width
        about = about[(about >= 0) & (about < len(lasting))]
        p_top = max(p_top, float(lasting[about].min(initial=1.0)))
    # Step 1: its place: two levels about it, with the least squares.
    begin, end = max(0, top - width), min(steps, top + 3 * width)
    part = levels[begin:end]
    split = np.arange(FEWEST, len(part) - FEWEST + 1)
    left = np.cumsum(part, axis=0)[split - 1] / split[:, None]
    right = (part.sum(axis=0) - left * split[:, None]) / (len(part) - split)[:, None]
    gain = split * (len(part) - split) / len(part) * ((right - left) ** 2).sum(axis=1)
    best = int(gain.argmax())
    jump = right[best] - left[best]
    # Step 2: whether most rows on either side differ: a few odd rows are no level.
    at = begin + int(split[best])
    first, last = max(0, at - width), min(at, steps - width)  # within the run
    beside = levels[first : first + width], levels[last : last + width]
    before, after = (np.median(rows, axis=0) for rows in beside)
    if ((after - before) ** 2).sum() < (jump**2).sum() / 4:
        p_top = 1.0
    # Step 3: whether two levels describe it better than a line does.
    centered = part - part.mean(axis=0)
    time = np.arange(len(part)) - (len(part) - 1) / 2
    sloped = ((time @ centered) ** 2).sum() / (time @ time)
    if sloped >= gain[best]:
        p_top = 1.0
    rest = max((centered**2).sum() - gain[best], 0.0)  # 0, but for rounding
    noise = rest / max(centered.size - 2, 1)
    near = np.flatnonzero(gain >= gain[best] - 3.841 * noise)
    return LevelChange(
        index=at,
        low=begin + int(split[near[0]]),
        high=begin + int(split[near[-1]]),
        p=p_top,
        jump=jump,
    )


def _changes(levels: Float64, width: int) -> tuple[Float64, Float64]:
    """Compute the squared changes of means, and their p-values, corrected for number.

    The first change is that at the step ``width``: of the means of as many steps before
    and after.  Their gamma distribution is fitted by quantiles.
    """
    steps = len(levels)
    sums = np.zeros((steps + 1, levels.shape[1]))
    np.cumsum(levels, axis=0, out=sums[1:])
    mean = (sums[width:] - sums[:-width]) / width  # [steps - width + 1]
    change = ((mean[width:] - mean[:-width]) ** 2).sum(axis=1)
    if not change.max() > 0:
        return change, np.ones(len(change))
    change = np.maximum(change, 1e-12 * change.max())
    middle, upper = np.quantile(change, [0.5, 0.9])
    ratio = np.log(_QUANTILES[:, 1] / _QUANTILES[:, 0])
    fitted = _SHAPES[np.abs(ratio - np.log(upper / middle)).argmin()]
    # windows overlap: the shape is known to within a part of itself, taken off here
    known = 1 + 1.5 * np.sqrt(width / steps)
    shape = int(np.abs(_SHAPES - fitted / known).argmin())
    unit = middle / _QUANTILES[shape, 0]
    return change, np.minimum(1, len(change) * gammaincc(_SHAPES[shape], change / unit))

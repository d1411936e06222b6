"""Convert timestamps of each rank's local clock to the clock of rank 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Int64

from .model import UNKNOWN_TIME


def to_common(clocks: npt.NDArray[Any], ranks: Int64, times: Int64) -> Int64:
    """Convert timestamps to rank 0's clock by interpolating each rank's clock offset.

    ``clocks`` are knots of type CLOCK, ``ranks`` ``[n, W]`` world ranks, ``times``
    ``[n, W]`` int64 ns of the rank's own clock.  Outside its knots a rank keeps the
    nearest offset.  Without any knots all ranks share one clock; where only some ranks
    have knots, the times of the others but rank 0 are unknown.
    """
    out = times.copy()
    if len(clocks):
        out[(ranks != 0) & ~np.isin(ranks, clocks["rank"])] = UNKNOWN_TIME
    for rank in np.unique(clocks["rank"]):
        knots = np.sort(clocks[clocks["rank"] == rank], order="local_ns")
        mine = (ranks == rank) & (times != UNKNOWN_TIME)
        # relative to the first knot: float64 holds the differences exactly
        base = knots["local_ns"][0]
        offset = np.interp(
            (times[mine] - base).astype(float),
            (knots["local_ns"] - base).astype(float),
            (knots["offset_ns"] - knots["offset_ns"][0]).astype(float),
        )
        out[mine] += np.rint(offset).astype(np.int64) + knots["offset_ns"][0]
    return out


def earliest(times: Int64, axis: int) -> Int64:
    """Return the first known time along an axis; UNKNOWN_TIME where none is known."""
    latest = np.iinfo(np.int64).max
    first = np.where(times == UNKNOWN_TIME, latest, times).min(axis=axis)
    return np.where(first == latest, UNKNOWN_TIME, first)


def error_ns(clocks: npt.NDArray[Any]) -> int:
    """Return the largest clock offset error in ns; 0 if all ranks share one clock."""
    return int(clocks["error_ns"].max()) if len(clocks) else 0

"""What a collective moves: the conventions in which its bandwidth is told.

``size`` is nccl-tests': the buffer of a rank for all-reduce, broadcast, reduce and
send-receive; the *whole* array for all-gather (what a rank ends up with),
reduce-scatter (what it begins with), gather and scatter (what the root holds), and
all-to-all (what a rank sends, its own part included).  Then

    algbw = size / time
    busbw = wire / time,  wire = factor(n) size

with ``wire`` the bytes that the busiest link must carry each way, whatever the
algorithm.  An uneven all-to-all has no factor of n: its size is the largest row or
column sum of its matrix, its wire the largest without the diagonal.

References
----------
NVIDIA, nccl-tests, doc/PERFORMANCE.md, "Bandwidth"; src/gather.cu, src/scatter.cu,
src/alltoall.cu and src/sendrecv.cu for those that the page does not list.
Thakur, Rabenseifner, Gropp, Int. J. High Perform. Comput. Appl. 19 (2005) 49: rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64, Int64
from moetraffic.patterns.rules import choose

UNEVEN = "all_to_all_v"
"""An all-to-all whose bytes a pair are a matrix."""


@dataclass(frozen=True, kw_only=True)
class Convention:
    """How a collective of n ranks is counted."""

    factor: Callable[[Float64], Float64]  # wire bytes of a byte of its size
    steps: Callable[[Float64], Float64]  # rounds one after the other, on a ring


def _share(n: Float64) -> Float64:
    return (n - 1) / n


def _rounds(n: Float64) -> Float64:
    return n - 1


def _one(n: Float64) -> Float64:
    return np.ones_like(n)


COLLECTIVES: Mapping[str, Convention] = {
    "all_reduce": Convention(factor=lambda n: 2 * _share(n), steps=lambda n: 2 * n - 2),
    "all_gather": Convention(factor=_share, steps=_rounds),
    "reduce_scatter": Convention(factor=_share, steps=_rounds),
    "all_to_all": Convention(factor=_share, steps=_rounds),
    UNEVEN: Convention(factor=_share, steps=_rounds),
    "gather": Convention(factor=_share, steps=_rounds),
    "scatter": Convention(factor=_share, steps=_rounds),
    "broadcast": Convention(factor=_one, steps=_rounds),
    "reduce": Convention(factor=_one, steps=_rounds),
    "send_recv": Convention(factor=_one, steps=_one),
}
"""By name; the factor of an uneven all-to-all is that of an even one."""


def convention(collective: str) -> Convention:
    """The convention of a collective.

    Raises
    ------
    LayoutError
        If there is none of that name.
    """
    choose("a collective", collective, COLLECTIVES)
    return COLLECTIVES[collective]


def wire_bytes(
    collective: str, ranks: npt.ArrayLike, size_bytes: npt.ArrayLike
) -> Float64:
    """Bytes that the busiest link must carry each way.

    Parameters
    ----------
    collective
        One of COLLECTIVES.
    ranks, size_bytes
        Numbers n and bytes; arrays are broadcast against each other.

    Examples
    --------
    >>> float(wire_bytes("all_reduce", 8, 1000)), float(wire_bytes("broadcast", 8, 10))
    (1750.0, 10.0)
    """
    n = np.asarray(ranks, np.float64)
    size = np.asarray(size_bytes, np.float64)
    return np.asarray(convention(collective).factor(n) * size, np.float64)


def steps(collective: str, ranks: npt.ArrayLike) -> Float64:
    """Rounds that must follow each other on a ring, by which latency is counted.

    Examples
    --------
    >>> float(steps("all_reduce", 8)), float(steps("send_recv", 8))
    (14.0, 1.0)
    """
    return convention(collective).steps(np.asarray(ranks, np.float64))


def uneven_bytes(matrix: npt.ArrayLike) -> tuple[int, int]:
    """Size and wire of an uneven all-to-all.

    Parameters
    ----------
    matrix
        ``[n, n]`` bytes, row sends, column receives.

    Returns
    -------
    size, wire
        The largest row or column sum, and the largest without the diagonal.

    Examples
    --------
    >>> uneven_bytes([[5, 1], [3, 0]])
    (8, 3)
    """
    cells = np.asarray(matrix, np.int64)
    off = cells - np.diag(np.diag(cells))

    def busiest(of: Int64) -> int:
        return int(max(of.sum(axis=0).max(initial=0), of.sum(axis=1).max(initial=0)))

    return busiest(cells), busiest(off)

"""Expand traffic matrices to packet sequences of (source, destination) pairs.

A matrix contains amounts per pair but no order.  Measures of a sequence, such as
:mod:`moetraffic.analysis.network.complexity`, therefore need a defined order: matrices
follow each other in time, and within a matrix packets are shuffled, so that only
changes between matrices remain as temporal structure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Int64
from moetraffic.errors import AnalysisError

Read = Callable[[int, int], npt.NDArray[Any]]

ORDER = "random"
"""Order of the packets within a matrix."""

BUDGET = 1 << 18
"""Default maximum number of packets drawn from a trace."""

WINDOWS = 8
"""Default number of contiguous windows that packets are drawn from."""

MATRICES = 64
"""Target number of matrices per window, so that it contains recurrence over time."""

_CELLS = 1 << 20  # cells read at a time


@dataclass(frozen=True, kw_only=True)
class Packets:
    """Packet sequence in time order, with the parameters of its construction."""

    pair: Int64  # [N] cell of each packet, row-major among counted cells
    borders: Int64  # [windows + 1] boundaries of the windows
    pairs: int  # K cells that could send: R(R-1) for ranks
    order: str  # of the packets of a matrix
    packet_size: int  # amount (bytes, token copies) per packet
    matrices: int  # number of matrices with packets in the sequence
    whole: bool  # whether all matrices are included completely


def expand(counts: Int64, *, seed: int = 0) -> Int64:
    """Expand counts per cell to a sequence of cells, one per packet, shuffled.

    ``counts``: ``[n, P]``: packets of each of P cells in each of n matrices.

    The cells of the packets are ``[sum of counts]`` int64.

    Examples
    --------
    >>> expand(np.array([[2, 0, 0], [0, 1, 0]])).tolist()
    [0, 0, 1]
    """
    matrix, cell = np.nonzero(counts)
    of = np.repeat(np.arange(len(matrix)), counts[matrix, cell])
    key = np.random.default_rng(seed).random(len(of))
    return cell[of][np.lexsort((key, matrix[of]))]


def packets(
    read: Read,
    *,
    number: int,
    diagonal: bool = False,
    packet_size: int | None = None,
    budget: int = BUDGET,
    windows: int = WINDOWS,
    seed: int = 0,
) -> Packets:
    """Sample a bounded number of packets from a matrix series in contiguous windows.

    Window i begins at matrix ``i n / windows`` and extends without gaps until its share
    of the budget is used or the next window begins; short series are used completely.
    A cell emits one packet per ``packet_size``, with the remainder carried over to the
    next matrix, so that shares are preserved for any size; the initial carry of a
    window is random.

    Parameters
    ----------
    read
        Function that returns the matrices ``[n, R, C]``, integers, of a half-open range
        of indices in time order.
    number
        Number of matrices.
    diagonal
        Whether rank-local traffic counts, for square matrices; in others every cell
        counts.
    packet_size
        Amount per packet; 1: each byte or token copy is a packet.  None: the
        smallest power of two with which windows of the budget hold
        :data:`MATRICES` matrices, going by the first matrix of each window.
    budget
        Largest number of packets.
    windows
        Number of windows; fewer if there are fewer matrices.
    seed
        Seed of the initial carry of each window and of the order in each matrix.

    Raises
    ------
    AnalysisError
        If amounts are negative or not integers, or an argument is out of range.
    """
    if min(budget, windows, 1 if packet_size is None else packet_size) < 1:
        raise AnalysisError(
            "packets are drawn with a budget, windows and a packet size of at least 1, "
            f"not {budget}, {windows} and {packet_size}: choose larger ones"
        )
    starts = np.unique(np.arange(windows) * number // windows)[:number]

    def cells(first: int, last: int) -> Int64:
        return _cells(read(first, last), diagonal)

    firsts = [cells(int(s), int(s) + 1) for s in starts]
    pairs = (firsts[0] if firsts else cells(0, 0)).shape[1]
    share = max(1, budget // max(1, len(starts)))
    if packet_size is None:
        typical = float(np.mean([f.sum(dtype=np.float64) for f in firsts] or [0.0]))
        wanted = typical * min(MATRICES, max(1.0, number / max(1, len(starts)))) / share
        packet_size = 1 << max(0, int(np.ceil(np.log2(max(wanted, 1.0)))))
    rng = np.random.default_rng(seed)
    taken, seen, whole = [np.zeros(0, np.int64)], 0, True
    for start, stop in pairwise([*starts.tolist(), number]):
        carry = np.asarray(rng.integers(0, packet_size, pairs), np.int64)
        part, used, ended = _window(
            cells, (start, stop), carry, packet_size, share, rng
        )
        taken.append(part)
        seen += used
        whole &= ended
    return Packets(
        pair=np.concatenate(taken),
        borders=np.cumsum([len(part) for part in taken], dtype=np.int64),
        pairs=pairs,
        order=ORDER,
        packet_size=packet_size,
        matrices=seen,
        whole=whole,
    )


def _cells(matrices: npt.NDArray[Any], diagonal: bool) -> Int64:
    """Flatten matrices to the cells that count, ``[n, P]`` int64."""
    if matrices.size and matrices.dtype.kind not in "iub":
        raise AnalysisError(
            f"amounts are integers, but the matrices have the type {matrices.dtype}: "
            "give bytes or token copies"
        )
    rows, columns = matrices.shape[1:]
    flat = matrices.reshape(len(matrices), rows * columns).astype(np.int64)
    if rows == columns and not diagonal:
        flat = flat[:, ~np.eye(rows, dtype=bool).ravel()]
    if (flat < 0).any():
        raise AnalysisError(
            f"amounts are counted from 0 on, but the least is {flat.min()}: check "
            "what the matrices hold"
        )
    return flat


def _window(
    read: Callable[[int, int], Int64],
    span: tuple[int, int],
    carry: Int64,
    packet_size: int,
    share: int,
    rng: np.random.Generator,
) -> tuple[Int64, int, bool]:
    """Sample the packets of one window, its number of matrices, and completeness."""
    parts, have, whole = [np.zeros(0, np.int64)], 0, True
    (at, stop), step = span, max(1, min(MATRICES, _CELLS // max(1, len(carry))))
    start = at
    while at < stop and have < share:
        cells = read(at, min(stop, at + step))
        before = carry + np.cumsum(cells, axis=0) - cells
        counts = (before + cells) // packet_size - before // packet_size
        carry = (carry + cells.sum(axis=0)) % packet_size
        # a block may exceed the budget: keep the matrices within it and one more
        reached = np.cumsum(counts.sum(axis=1))
        wanted = int(np.searchsorted(reached, share - have)) + 1
        counts = counts[:wanted]
        part = expand(counts, seed=int(rng.integers(1 << 31)))
        whole = len(part) <= share - have
        parts.append(part[: share - have])
        have += len(parts[-1])
        at += len(counts)
    return np.concatenate(parts), at - start, at >= stop and whole

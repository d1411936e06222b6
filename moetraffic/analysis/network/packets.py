"""Packets: traffic matrices written out as the sequence of (source, destination).

A matrix says how much went from whom to whom, not in which order.  Measures of a
sequence, such as :mod:`moetraffic.analysis.network.complexity`, therefore need an order
that is stated: matrices follow each other in time, and within a matrix the packets
stand in one of :data:`ORDERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.errors import AnalysisError

Int64 = npt.NDArray[np.int64]
Read = Callable[[int, int], npt.NDArray[Any]]

ORDERS = ("row_major", "round_robin", "proportional", "random")
"""Of the packets of one matrix.

``row_major``: source after source, each sending to one destination after the other.
``round_robin``: of each pair in turn a packet, as long as it has one left.
``proportional``: each pair's packets evenly over the whole matrix: all end together.
``random``: shuffled: only what changes between matrices is left to find.

The first assumes the most structure and the last none: T between these two is what the
matrices alone leave open.
"""

BUDGET = 1 << 18
"""Packets drawn from a trace if nothing else is asked for."""

WINDOWS = 8
"""Contiguous stretches that they are drawn from."""

MATRICES = 64
"""A window should hold so many matrices: else what recurs between them is not in it."""

_CELLS = 1 << 20  # read at a time


@dataclass(frozen=True, kw_only=True)
class Packets:
    """A sequence of packets, in time order, and how it was made."""

    pair: Int64  # [N] cell of each packet, numbered row-major among those that count
    borders: Int64  # [windows + 1] where the windows lie in it
    pairs: int  # K cells that could send: R(R-1) for ranks
    order: str  # one of ORDERS
    quantum: int  # amount (bytes, token copies) a packet stands for
    matrices: int  # of which packets are in it, wholly or in part
    whole: bool  # whether these are all matrices, each to its end


def expand(counts: npt.ArrayLike, *, order: str = "random", seed: int = 0) -> Int64:
    """Write counts out as a sequence of cells.

    Parameters
    ----------
    counts
        ``[n, P]`` integers: packets of each of P cells in each of n matrices.
    order
        One of :data:`ORDERS`.
    seed
        Of the order "random".

    Returns
    -------
    ndarray
        ``[sum of counts]`` int64: the cell of each packet.

    Raises
    ------
    AnalysisError
        If there is no such order, or a count is negative.

    Examples
    --------
    >>> counts = [[3, 0, 1], [1, 1, 0]]
    >>> expand(counts, order="row_major").tolist()
    [0, 0, 0, 2, 0, 1]
    >>> expand(counts, order="round_robin").tolist()
    [0, 2, 0, 0, 0, 1]
    >>> expand(counts, order="proportional").tolist()
    [0, 0, 2, 0, 0, 1]
    """
    if order not in ORDERS:
        raise AnalysisError(
            f"packets of a matrix stand in one of the orders {', '.join(ORDERS)}, not "
            f"{order!r}: choose one"
        )
    amount = np.asarray(counts, dtype=np.int64)
    if amount.ndim != 2 or (amount < 0).any():
        raise AnalysisError(
            f"packets are counted from 0 on in an array [n, P], but the shape is "
            f"{amount.shape} and the least is {amount.min(initial=0)}: give counts"
        )
    matrix, cell = np.nonzero(amount)
    each = amount[matrix, cell]
    of = np.repeat(np.arange(len(each)), each)
    if order == "row_major":
        return cell[of]
    number = np.arange(len(of)) - (np.cumsum(each) - each)[of]
    if order == "round_robin":
        key = number.astype(np.float64)
    elif order == "proportional":
        key = (number + 0.5) / each[of]
    else:
        key = np.random.default_rng(seed).random(len(of))
    return cell[of][np.lexsort((cell[of], key, matrix[of]))]


def packets(
    matrices: npt.ArrayLike | Read,
    *,
    number: int | None = None,
    diagonal: bool = False,
    order: str = "random",
    quantum: int | None = None,
    budget: int = BUDGET,
    windows: int = WINDOWS,
    seed: int = 0,
) -> Packets:
    """Draw packets from a series of matrices, at most so many, in contiguous windows.

    Window i begins at matrix ``i n / windows`` and goes on, without leaving anything
    out, until it has its part of the budget or meets the next: short series are taken
    whole.  A cell sends a packet whenever it has sent another quantum, counted on from
    one matrix to the next, so that shares are kept however large the quantum is; where
    it stands at a window's start is drawn at random.

    Parameters
    ----------
    matrices
        ``[n, R, C]`` integers, in time order; or a function that gives those from a
        first to before a last, and then their ``number`` n.
    number
        n, where a function is given.
    diagonal
        Whether what a rank sends itself counts.  Only of square matrices; in others
        every cell counts.
    order
        One of :data:`ORDERS`.
    quantum
        Amount a packet stands for; 1 makes each byte or token copy one.  None: the
        smallest power of two with which windows of the budget hold
        :data:`MATRICES` matrices, going by the first matrix of each window.
    budget
        Largest number of packets.
    windows
        How many, fewer where there are not so many matrices.
    seed
        Of the carry at each window's start, and of the order "random".

    Returns
    -------
    Packets

    Raises
    ------
    AnalysisError
        If amounts are negative or not integers, or an argument is out of range.
    """
    read, length = _reader(matrices, number)
    if min(budget, windows, 1 if quantum is None else quantum) < 1:
        raise AnalysisError(
            f"packets are drawn with a budget, windows and a quantum of at least 1, "
            f"not {budget}, {windows} and {quantum}: choose larger ones"
        )
    starts = np.unique(np.arange(windows) * length // windows)[:length]
    firsts = [_cells(read(int(s), int(s) + 1), diagonal) for s in starts]
    pairs = (firsts[0] if firsts else _cells(read(0, 0), diagonal)).shape[1]
    share = max(1, budget // max(1, len(starts)))
    if quantum is None:
        typical = float(np.mean([f.sum(dtype=np.float64) for f in firsts] or [0.0]))
        wanted = typical * min(MATRICES, max(1.0, length / max(1, len(starts)))) / share
        quantum = 1 << max(0, int(np.ceil(np.log2(max(wanted, 1.0)))))
    rng = np.random.default_rng(seed)
    taken, borders, seen, whole = [], [0], 0, True
    for start, stop in pairwise([*starts.tolist(), length]):
        part, used, ended = _window(
            read, (start, stop), pairs, diagonal, order, quantum, share, rng
        )
        taken.append(part)
        borders.append(borders[-1] + len(part))
        seen += used
        whole &= ended
    return Packets(
        pair=np.concatenate(taken) if taken else np.zeros(0, np.int64),
        borders=np.array(borders, np.int64),
        pairs=pairs,
        order=order,
        quantum=quantum,
        matrices=seen,
        whole=whole,
    )


def _reader(matrices: npt.ArrayLike | Read, number: int | None) -> tuple[Read, int]:
    if callable(matrices):
        if number is None:
            raise AnalysisError(
                "a function that reads matrices does not tell how many there are: "
                "give number"
            )
        return matrices, number
    array = np.asarray(matrices)
    if array.ndim != 3:
        raise AnalysisError(
            f"packets are drawn from matrices [n, R, C], but the shape is "
            f"{array.shape}: give three axes"
        )
    return lambda first, last: array[first:last], len(array)


def _cells(matrices: npt.NDArray[Any], diagonal: bool) -> Int64:
    """The cells that count, ``[n, P]`` int64."""
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
    read: Read,
    reach: tuple[int, int],
    pairs: int,
    diagonal: bool,
    order: str,
    quantum: int,
    share: int,
    rng: np.random.Generator,
) -> tuple[Int64, int, bool]:
    """Packets from one matrix on, of how many matrices, and whether those are all."""
    parts: list[Int64] = []
    (start, stop), have = reach, 0
    carry = np.asarray(rng.integers(0, quantum, pairs), np.int64)
    step = max(1, min(MATRICES, _CELLS // max(1, pairs)))
    at = start
    while at < stop and have < share:
        cells = _cells(read(at, min(stop, at + step)), diagonal)
        before = carry + np.cumsum(cells, axis=0) - cells
        counts = (before + cells) // quantum - before // quantum
        carry = (carry + cells.sum(axis=0)) % quantum
        # a block may hold far more than is wanted: whole matrices that are, and one
        reached = np.cumsum(counts.sum(axis=1))
        wanted = int(np.searchsorted(reached, share - have)) + 1
        counts = counts[:wanted]
        part = expand(counts, order=order, seed=int(rng.integers(1 << 31)))
        parts.append(part[: share - have])
        have += len(parts[-1])
        at += len(counts)
    pair = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    complete = at >= stop and (not parts or len(parts[-1]) == len(part))
    return pair, at - start, complete

r"""Skew of many count matrices in one pass: all that follows from a few sums.

Of each matrix of counts n the pass takes the total N, the cells above zero, the
largest, the sum of squared deviations, :math:`\sum n \log_2 n`, row and column sums,
and how often each count occurs.  Entropy, CV, Jain, Gini, max/mean, MaxVio, sparsity,
bottleneck, line efficiency, the entropies of the marginals and with them mutual
information follow in closed form:

.. math:: H = \log_2 N - \tfrac1N \sum n \log_2 n, \qquad
          G = \frac1{KN} \sum_{i<j} |n_i - n_j|
            = \frac1{KN} \sum_{t \ge 0} F(t) (K - F(t))

with F(t) the number of the K cells that are at most t, found without sorting.

The pass runs compiled (numba) where that is installed and worth its compilation, and
else in numpy.  Results are equal **to the last bit** whichever ran, in however many
threads, whether matrices come as int32 or int64, one by one or all at once.  They agree
with :mod:`moetraffic.analysis.skew.measures`, which takes any array and axis, to 1e-12.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from moetraffic import machine_code
from moetraffic.errors import AnalysisError

from . import numpy_pass as plain
from .logarithms import logarithm
from .measures import LN2, ratio

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Sweep = Callable[..., None]

WAYS = ("auto", "numba", "numpy")

PATIENCE = 1 << 23
"""Cells that numpy counts in a process before compiling seems to be worth its seconds.

Waiting until as much time was spent as compiling takes costs at most twice the best."""

SLICE_BYTES = 1 << 23
"""Of matrices that a thread takes at a time, compiled."""

NUMPY_BYTES = 1 << 21
"""Likewise in numpy, whose steps each take memory."""

SORTED_CELLS = 1 << 20
"""Of matrices whose cells are sorted at a time."""


@dataclass(frozen=True, kw_only=True)
class MatrixStatistics:
    """Skew of N matrices of A rows and B columns.

    Rows send and columns receive.  What cannot be said of a matrix whose cells are all
    zero is NaN.  Entropies are in bits.
    """

    cells: int  # K, of a matrix: A B, or R (R - 1) without its diagonal
    total: Int64  # [N] sum of the counts
    nonzero: Int64  # [N] cells above zero
    largest: Int64  # [N]
    sent: Int64  # [N, A] row sums
    received: Int64  # [N, B] column sums
    entropy: Float64  # [N] of the cells
    source_entropy: Float64  # [N] of the row sums
    destination_entropy: Float64  # [N] of the column sums
    cv_squared: Float64  # [N]
    gini: Float64  # [N]; NaN where it was not asked for

    @property
    def normalized_entropy(self) -> Float64:
        """``[N]`` entropy over log2 K; NaN of a single cell."""
        most = float(np.log2(self.cells)) if self.cells > 1 else float("nan")
        return self.entropy / most

    @property
    def corrected_entropy(self) -> Float64:
        """``[N]`` entropy with the Miller-Madow correction; of token counts only."""
        return self.entropy + ratio(self.nonzero - 1, 2 * LN2 * self.total)

    @property
    def cv(self) -> Float64:
        """``[N]`` population standard deviation over mean."""
        return np.asarray(np.sqrt(self.cv_squared))

    @property
    def jain(self) -> Float64:
        """``[N]`` ``1 / (1 + CV^2)``."""
        return 1.0 / (1.0 + self.cv_squared)

    @property
    def max_over_mean(self) -> Float64:
        """``[N]`` largest over mean cell."""
        return ratio(self.largest.astype(np.float64) * self.cells, self.total)

    @property
    def max_violation(self) -> Float64:
        """``[N]`` MaxVio, largest over mean cell less 1."""
        return self.max_over_mean - 1.0

    @property
    def sparsity(self) -> Float64:
        """``[N]`` share of cells that are zero."""
        nothing = np.full(len(self.total), float("nan"))
        return 1.0 - self.nonzero / self.cells if self.cells else nothing

    @property
    def bottleneck(self) -> Int64:
        """``[N]`` largest row or column sum."""
        if not self.cells:
            return np.zeros(len(self.total), np.int64)
        rows, columns = self.sent.max(axis=1), self.received.max(axis=1)
        return np.asarray(np.maximum(rows, columns), np.int64)

    @property
    def line_efficiency(self) -> Float64:
        """``[N]`` total over what is sent when all lines are as full as the fullest.

        ``sum D / (R max line)``; where A and B differ, rows and columns are each
        compared with their own number, and the less efficient counts.
        """
        if not self.cells:
            return np.full(len(self.total), np.nan)
        rows = self.sent.max(axis=1).astype(np.float64) * self.sent.shape[1]
        columns = self.received.max(axis=1).astype(np.float64) * self.received.shape[1]
        return ratio(self.total, np.maximum(rows, columns))

    @property
    def mutual_information(self) -> Float64:
        """``[N]`` bits that source and destination tell of each other."""
        shared = self.source_entropy + self.destination_entropy - self.entropy
        return np.maximum(shared, 0.0)

    @property
    def conditional_entropy(self) -> Float64:
        """``[N]`` entropy of the destination where the source is known."""
        return np.maximum(self.entropy - self.source_entropy, 0.0)


def matrix_statistics(
    counts: npt.ArrayLike,
    *,
    diagonal: bool = True,
    gini: bool = True,
    unit: int = 1,
    threads: int = 2,
    way: str = "auto",
) -> MatrixStatistics:
    """Skew of each of many matrices.

    Parameters
    ----------
    counts
        ``[N, A, B]`` or ``[A, B]`` integers, fastest as int32 or int64 in C order:
        token copies or bytes that row sends to column.
    diagonal
        False leaves the diagonal of square matrices out.
    gini
        Compute the Gini coefficient.  It is free for counts below 8,192; where one is
        greater, the matrix's cells must be sorted, which takes longer than the rest.
    unit
        Of which all counts are whole multiples, as bytes are of a row's: statistics are
        then as fast as those of the rows.  Totals stay in the unit of ``counts``.
    threads
        That share the matrices.
    way
        "numba", "numpy", or "auto": numba where it is installed and so many cells have
        come in this process that compiling, a few seconds unless it was kept from an
        earlier process, is worth it.

    Raises
    ------
    AnalysisError
        If counts are negative, not integers, no multiples of the unit or too large to
        be added up in 64 bits,
        if the diagonal of something that is not square is to be left out, or if numba
        is asked for and not installed.

    Examples
    --------
    >>> found = matrix_statistics([[[0, 4], [4, 0]], [[1, 2], [3, 4]]])
    >>> found.entropy.round(6).tolist(), found.gini.tolist()
    ([1.0, 1.846439], [0.5, 0.25])
    """
    stack = _stack(counts, diagonal)
    if not 1 <= unit < 2**31:
        raise AnalysisError(
            f"counts are multiples of a unit from 1 on, not of {unit}: give the bytes "
            f"of a row, or leave it out"
        )
    number, height, width = stack.shape
    cells = height * (width if diagonal else width - 1)
    whole = np.zeros((number, 5), np.int64)
    sums = np.zeros((number, 4))
    sent = np.zeros((number, height), np.int64)
    received = np.zeros((number, width), np.int64)
    differences = np.full(number, np.nan)
    if stack.size:
        one = _sweep(way, stack)

        def take(first: int, last: int) -> None:
            part = np.require(stack[first:last], requirements=["C", "A"])
            if unit > 1:
                part = _divided(part, unit)
            mine = whole[first:last]
            one(
                part,
                diagonal,
                mine,
                sums[first:last],
                sent[first:last],
                received[first:last],
            )
            if gini and cells and not (mine[:, 4] < 0).any():
                differences[first:last] = _differences(part, diagonal, mine)

        at_once = NUMPY_BYTES if one is plain.sweep else SLICE_BYTES
        # what was divided is still near when it is counted
        size = max(1, at_once // (8 if unit > 1 else 1) // stack[0].nbytes)
        edges = [*range(0, number, size), number]
        if threads > 1 and len(edges) > 2:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(take, edges[:-1], edges[1:]))
        else:
            for first, last in pairwise(edges):
                take(first, last)
    _refuse(whole, cells, unit)
    return _conclude(cells, whole, sums, sent, received, differences, unit)


def _stack(counts: npt.ArrayLike, diagonal: bool) -> npt.NDArray[Any]:
    """``[N, A, B]`` int32 or int64, without a copy where there is nothing to change."""
    given = np.asarray(counts)
    if given.ndim not in (2, 3) or given.dtype.kind not in "iu":
        raise AnalysisError(
            f"matrices of counts are [N, A, B] integers, but these are "
            f"{list(given.shape)} of {given.dtype}: use the measures of skew for shares"
        )
    stack = given[None] if given.ndim == 2 else given
    if not diagonal and stack.shape[1] != stack.shape[2]:
        raise AnalysisError(
            f"only a square matrix has a diagonal to leave out, but these are "
            f"{stack.shape[1]} x {stack.shape[2]}: use diagonal=True"
        )
    if stack.dtype.kind == "u" and stack.dtype.itemsize == 8 and stack.size:
        top = int(stack.max())
        if top >= 2**63:
            raise AnalysisError(
                f"counts fit into 63 bits, but the largest is {top}: is it a mark of "
                f"what is unknown"
            )
    narrow = stack.dtype.itemsize < 4 or stack.dtype.newbyteorder("=") == np.int32
    kind = np.dtype(np.int32 if narrow else np.int64)
    return stack if stack.dtype == kind else stack.astype(kind)


def _divided(part: npt.NDArray[Any], unit: int) -> npt.NDArray[Any]:
    """Counts of units."""
    units: npt.NDArray[Any] = part // part.dtype.type(unit)
    if not np.array_equal(units * part.dtype.type(unit), part):
        raise AnalysisError(
            f"counts must be whole multiples of their unit, but some are none of "
            f"{unit}: give the size of a row, or leave the unit out"
        )
    return units


class _Bill:
    """What this process counted or will, and the types that it has compiled for."""

    cells = 0
    ready: ClassVar[set[str]] = set()


def foresee(cells: int) -> None:
    """Say how many cells are going to come: for many, compiling pays from the first.

    Parameters
    ----------
    cells
        Of all matrices together.
    """
    _Bill.cells += cells


def _sweep(way: str, stack: npt.NDArray[Any]) -> Sweep:
    """The pass that this many cells of this type are worth."""
    if way not in WAYS:
        raise AnalysisError(f"ways to count are {', '.join(WAYS)}, not {way!r}")
    here = machine_code.available()
    if way == "numba" and not here:
        raise AnalysisError(
            "compiled statistics need numba, which is not installed: install "
            "moetraffic[fast], or leave the way to auto"
        )
    kind = stack.dtype.name
    if way == "auto" and here:
        _Bill.cells += stack.size
    worth = _Bill.cells >= PATIENCE or kind in _Bill.ready
    if way == "numpy" or not here or (way == "auto" and not worth):
        return plain.sweep
    from . import compiled_pass

    _Bill.ready.add(kind)
    return compiled_pass.sweep(kind)


def _differences(part: npt.NDArray[Any], diagonal: bool, whole: Int64) -> Float64:
    """Sum over all pairs of cells of their difference, ``[n]``; sorted where needed."""
    found = whole[:, 3].astype(np.float64)
    left = np.flatnonzero(whole[:, 3] < 0)
    number = part.shape[1] * part.shape[2]
    at_once = max(1, SORTED_CELLS // number)
    for first in range(0, len(left), at_once):
        some = left[first : first + at_once]
        laid = part[some].reshape(len(some), number)
        if not diagonal:
            laid = np.delete(laid, np.arange(part.shape[1]) * (part.shape[1] + 1), 1)
        laid = np.sort(laid, axis=1).astype(np.int64)
        cells = laid.shape[1]
        weights = 2 * np.arange(1, cells + 1) - cells - 1
        exact = whole[some, 2] < 2**62 // cells**2
        found[some[exact]] = (laid[exact] * weights).sum(axis=1)
        if not exact.all():
            products = laid[~exact].astype(np.float64) * weights
            found[some[~exact]] = products.sum(axis=1)
    return found


def _refuse(whole: Int64, cells: int, unit: int) -> None:
    """Counts that are negative, or whose sum may not fit."""
    if (whole[:, 4] < 0).any():
        raise AnalysisError(
            "counts and bytes are never negative, but some are: remove the marks of "
            "what is unknown"
        )
    most = int(whole[:, 2].max(initial=0)) * unit
    if most > (2**63 - 1) // max(cells, 1):
        raise AnalysisError(
            f"a matrix of {cells} cells up to {most} may add up to more than 64 bits "
            f"hold: count in a larger unit"
        )


def _conclude(
    cells: int,
    whole: Int64,
    sums: Float64,
    sent: Int64,
    received: Int64,
    differences: Float64,
    unit: int,
) -> MatrixStatistics:
    """What follows from the sums."""
    total = whole[:, 0]
    some = total > 0
    number = np.where(some, total, 1).astype(np.float64)
    bits = logarithm(number)

    def entropy(of: Float64, classes: int) -> Float64:
        most = logarithm(np.array([float(max(classes, 1))]))
        found = np.clip(bits - of / number, 0.0, most)
        return np.where(some, found, np.nan)

    return MatrixStatistics(
        cells=cells,
        total=_times(total, unit),
        nonzero=whole[:, 1],
        largest=_times(whole[:, 2], unit),
        sent=_times(sent, unit),
        received=_times(received, unit),
        entropy=entropy(sums[:, 1], cells),
        source_entropy=entropy(sums[:, 2], sent.shape[1]),
        destination_entropy=entropy(sums[:, 3], received.shape[1]),
        cv_squared=ratio(cells * (sums[:, 0] / number), total),
        gini=ratio(differences, total.astype(np.float64) * cells),
    )


def _times(counts: Int64, unit: int) -> Int64:
    """In single counts; large sums are not copied for nothing."""
    return counts if unit == 1 else counts * unit

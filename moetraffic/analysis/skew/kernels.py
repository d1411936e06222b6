r"""Compute skew statistics of many count matrices in one pass.

Of each matrix of counts n the pass takes the total N, the cells above zero, the
largest, the sum of squared deviations, :math:`\sum n \log_2 n`, and row and column
sums.  Entropy, CV, Jain, Gini, max/mean, MaxVio, sparsity, bottleneck, line efficiency,
the entropies of the marginals and with them mutual information follow in closed form:

.. math:: H = \log_2 N - \tfrac1N \sum n \log_2 n, \qquad
          G = \frac1{KN} \sum_{i<j} |n_i - n_j|
            = \frac1{KN} \sum_{t \ge 0} F(t) (K - F(t))

with F(t) the number of the K cells that are at most t.  Small counts are counted by
value: a histogram of each matrix gives all sums at once.  Large counts are sorted.

Results agree with :mod:`moetraffic.analysis.skew.measures`, which takes any array and
axis, to a relative 1e-12; totals, and the numerators of CV and Gini, are exact integers
as long as they fit into 64 bits.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import AnalysisError

from .measures import ratio

SLICE_BYTES = 1 << 24
"""Bytes of matrices, as int64, processed at a time."""

BINS_A_CELL = 2
"""Histogram bins per cell up to which counting by value is faster than sorting."""

THREADS = 2
"""Threads that process slices; two cores already reach the bandwidth of memory."""

EXACT = 2**31
"""Cells times largest count below which every sum here is an exact int64."""


@dataclass(frozen=True, kw_only=True)
class MatrixStatistics:
    """Skew statistics of N matrices of A rows and B columns.

    Rows send and columns receive.  Statistics of a matrix whose cells are all zero are
    NaN where they are undefined.  Entropies are in bits.
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
    gini: Float64  # [N]

    @property
    def normalized_entropy(self) -> Float64:
        """Entropy over log2 K, ``[N]``; NaN of a single cell."""
        most = float(np.log2(self.cells)) if self.cells > 1 else float("nan")
        return self.entropy / most

    @property
    def cv(self) -> Float64:
        """Coefficient of variation: standard deviation over mean, ``[N]``."""
        return np.asarray(np.sqrt(self.cv_squared))

    @property
    def max_over_mean(self) -> Float64:
        """Largest over mean cell, ``[N]``."""
        return ratio(self.largest.astype(np.float64) * self.cells, self.total)

    @property
    def sparsity(self) -> Float64:
        """Share of cells that are zero, ``[N]``."""
        nothing = np.full(len(self.total), float("nan"))
        return 1.0 - self.nonzero / self.cells if self.cells else nothing

    @property
    def bottleneck(self) -> Int64:
        """Largest row or column sum, ``[N]``."""
        if not self.cells:
            return np.zeros(len(self.total), np.int64)
        rows, columns = self.sent.max(axis=1), self.received.max(axis=1)
        return np.asarray(np.maximum(rows, columns), np.int64)

    @property
    def line_efficiency(self) -> Float64:
        """Line efficiency: total over lines times the largest line sum, ``[N]``.

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
        """Mutual information of source and destination, I(S; D), ``[N]``."""
        shared = self.source_entropy + self.destination_entropy - self.entropy
        return np.maximum(shared, 0.0)

    @property
    def conditional_entropy(self) -> Float64:
        """Conditional entropy of destination given source, H(D | S), ``[N]``."""
        return np.maximum(self.entropy - self.source_entropy, 0.0)


def matrix_statistics(
    counts: npt.ArrayLike, *, diagonal: bool = True
) -> MatrixStatistics:
    """Compute the skew statistics of each of many count matrices.

    Parameters
    ----------
    counts
        ``[N, A, B]`` or ``[A, B]`` integers: token copies or bytes that row sends to
        column.
    diagonal
        False leaves the diagonal of square matrices out.

    Raises
    ------
    AnalysisError
        If counts are negative, not integers or too large to be added up in 64 bits, or
        if the diagonal of a matrix that is not square is to be left out.

    Examples
    --------
    >>> found = matrix_statistics([[[0, 4], [4, 0]], [[1, 2], [3, 4]]])
    >>> found.entropy.round(6).tolist(), found.gini.tolist()
    ([1.0, 1.846439], [0.5, 0.25])
    """
    stack = _stack(counts, diagonal)
    number, height, width = stack.shape
    cells = height * (width if diagonal else width - 1)
    # Rows of `whole`: nonzero cells, largest; of `sums`: squared deviations, n log2 n,
    # differences of all pairs of cells.
    whole = np.zeros((2, number), np.int64)
    sums = np.zeros((3, number))
    sent = np.zeros((number, height), np.int64)
    received = np.zeros((number, width), np.int64)
    of_sent, of_received = np.zeros(number), np.zeros(number)
    bins = min(BINS_A_CELL * cells, EXACT // max(cells, 1))
    size = max(1, SLICE_BYTES // max(8, 8 * height * width))

    def sweep(first: int) -> None:
        part = slice(first, first + size)
        values = stack[part]
        low = int(values.min())
        if not diagonal:
            values = values.copy()
            values[:, np.arange(height), np.arange(width)] = 0
        reach = int(values.max()) + 1
        _check_range(low, reach - 1, cells)
        sent[part] = values.sum(axis=2, dtype=np.int64)
        received[part] = values.sum(axis=1, dtype=np.int64)
        way = _by_value if reach <= bins else _by_sorting
        whole[:, part], sums[:, part] = way(values, cells, reach)
        of_sent[part] = _terms(sent[part]).sum(axis=1)
        of_received[part] = _terms(received[part]).sum(axis=1)

    # numpy releases the interpreter's lock
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(sweep, range(0, number if cells else 0, size)))
    total = sent.sum(axis=1)
    return MatrixStatistics(
        cells=cells,
        total=total,
        nonzero=whole[0],
        largest=whole[1],
        sent=sent,
        received=received,
        entropy=_entropy(total, sums[1], cells),
        source_entropy=_entropy(total, of_sent, height),
        destination_entropy=_entropy(total, of_received, width),
        cv_squared=ratio(cells * sums[0] / np.maximum(total, 1), total),
        gini=ratio(sums[2], total.astype(np.float64) * cells),
    )


def _stack(counts: npt.ArrayLike, diagonal: bool) -> npt.NDArray[Any]:
    """Validate count matrices and stack them to ``[N, A, B]``, signed integers."""
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
    if stack.dtype == np.uint64 and stack.size and int(stack.max()) >= 2**63:
        raise AnalysisError(
            f"counts must be below 2^63, but the largest is {stack.max()}: remove "
            f"markers of unknown values"
        )
    return stack.astype(np.int64) if stack.dtype.kind == "u" else stack


def _check_range(low: int, high: int, cells: int) -> None:
    """Reject negative counts, and counts whose sum may not fit into 64 bits."""
    if low < 0:
        raise AnalysisError(
            f"counts and bytes must not be negative, but the smallest is {low}: remove "
            f"markers of unknown values"
        )
    if high > (2**63 - 1) // cells:
        raise AnalysisError(
            f"a matrix of {cells} cells up to {high} may exceed 64 bits in sum: count "
            f"in a larger unit"
        )


def _by_value(
    values: npt.NDArray[Any], cells: int, reach: int
) -> tuple[Int64, Float64]:
    """Compute the sums over each matrix of counts below ``reach`` by histogram."""
    bins = np.array([np.bincount(m.ravel(), minlength=reach) for m in values])
    # a diagonal that is left out was set to 0
    bins[:, 0] -= values[0].size - cells
    count = np.arange(reach)
    below = np.cumsum(bins, axis=1)
    total, squares = bins @ count, bins @ count**2
    largest = reach - 1 - np.argmax(bins[:, ::-1] > 0, axis=1)
    return np.array([cells - bins[:, 0], largest]), np.array(
        [
            _deviation(cells, squares, total),
            bins.astype(np.float64) @ _terms(count),
            (below * (cells - below)).sum(axis=1),
        ]
    )


def _by_sorting(
    values: npt.NDArray[Any], cells: int, reach: int
) -> tuple[Int64, Float64]:
    """Compute the sums over each matrix of any counts by sorting its cells."""
    laid = np.sort(values.reshape(len(values), -1), axis=1)
    # a diagonal that is left out was set to 0, and so sorted to the front
    laid = laid[:, laid.shape[1] - cells :].astype(np.int64)
    total = laid.sum(axis=1)
    weights: npt.NDArray[Any] = 2 * np.arange(1, cells + 1) - cells - 1
    if reach < EXACT // cells:
        deviation = _deviation(cells, (laid**2).sum(axis=1), total)
    else:
        deviation = ((laid - total[:, None] / cells) ** 2).sum(axis=1)
    if reach > 2**62 // cells**2:
        weights = weights.astype(np.float64)
    return np.array([np.count_nonzero(laid, axis=1), laid[:, -1]]), np.array(
        [deviation, _terms(laid).sum(axis=1), (laid * weights).sum(axis=1)]
    )


def _deviation(cells: int, squares: Int64, total: Int64) -> Float64:
    """Compute the sum of squared deviations from the mean."""
    return (cells * squares - total**2) / cells


def _terms(counts: Int64) -> Float64:
    """Compute ``n log2 n`` of counts of any shape; 0 where n is 0."""
    return np.asarray(counts * np.log2(np.maximum(counts, 1)), np.float64)


def _entropy(total: Int64, terms: Float64, classes: int) -> Float64:
    """Compute entropies in bits from totals and sums of n log2 n; NaN if empty."""
    bits = np.log2(np.maximum(total, 1)) - ratio(terms, total)
    return np.clip(bits, 0.0, np.log2(max(classes, 1)))

r"""Measures of many count matrices at once, from one sort of each matrix.

Of a matrix of counts n with K cells and total N:

.. math:: H = \log_2 N - \tfrac1N \sum n \log_2 n, \qquad
          G = \frac1{KN} \sum_i (2i - K - 1) n_{(i)}

The results agree with :mod:`moetraffic.analysis.measures`, which takes any array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64
from moetraffic.errors import AnalysisError

from .measures import ratio

SLICE_BYTES = 1 << 24
"""Bytes of matrices, as int64, that are sorted at a time."""

EXACT = 2**31
"""Cells times largest count below which sums of squares fit into 64 bits."""

MATRIX_MEASURES = (
    *("entropy", "entropy_bits", "max_mean", "cv", "gini", "zero", "line_efficiency"),
)
"""Names of the measures of a matrix."""


def matrix_statistics(
    counts: npt.NDArray[np.integer], *, diagonal: bool = True
) -> dict[str, npt.NDArray[Any]]:
    """Measure each of many count matrices.

    Parameters
    ----------
    counts
        ``[N, A, B]`` integers: token copies or bytes that row sends to column.
    diagonal
        False leaves the diagonal of square matrices out.

    Returns
    -------
    dict
        ``sent`` ``[N, A]`` and ``received`` ``[N, B]`` int64, the sums of rows and
        columns; ``bottleneck`` ``[N]`` int64, the largest of these; and float64
        ``[N]`` of each of :data:`MATRIX_MEASURES`.  ``line_efficiency`` is the total
        over lines times the largest sum of a line, of rows or columns, whichever is
        less; NaN where all cells are zero.

    Examples
    --------
    >>> measured = matrix_statistics(np.array([[[0, 4], [4, 0]], [[1, 2], [3, 4]]]))
    >>> measured["entropy_bits"].round(6).tolist(), measured["gini"].tolist()
    ([1.0, 1.846439], [0.5, 0.25])
    """
    stack = np.asarray(counts)
    if stack.size and int(stack.min()) < 0:
        raise AnalysisError(
            f"counts are never negative, but the smallest is {stack.min()}: remove "
            "marks of unknown values"
        )
    number, height, width = stack.shape
    square = None if diagonal else ~np.eye(height, dtype=bool)
    step = max(1, SLICE_BYTES // max(8, 8 * height * width))
    slices = [
        _measured(stack[first : first + step], square)
        for first in range(0, max(number, 1), step)
    ]
    return {name: np.concatenate([s[name] for s in slices]) for name in slices[0]}


def _measured(
    stack: npt.NDArray[np.integer], mask: npt.NDArray[np.bool_] | None
) -> dict[str, npt.NDArray[Any]]:
    """Measure some matrices; ``mask`` ``[A, B]`` are the cells that count."""
    values = stack if mask is None else stack * mask
    sent, received = values.sum(axis=2, dtype=np.int64), values.sum(1, dtype=np.int64)
    size = int(np.prod(values.shape[1:]))
    laid = values.reshape(len(values), size) if mask is None else stack[:, mask]
    count = laid.shape[1]
    largest = int(laid.max(initial=0))
    if largest < 2**16:  # sorted by radix
        laid = np.sort(laid.astype(np.uint16), axis=1, kind="stable")
    else:
        laid = np.sort(laid, axis=1)
    laid = laid.astype(np.int64)
    total = sent.sum(axis=1)
    if largest < EXACT // max(count, 1):
        squares = count * (laid**2).sum(axis=1) - total**2
        deviation = squares / max(count, 1)
    else:
        mean = total[:, None] / max(count, 1)
        deviation = ((laid - mean) ** 2).sum(axis=1)
    weights = 2 * np.arange(1, count + 1) - count - 1
    differences = laid.astype(np.float64) @ weights.astype(np.float64)
    terms: Float64 = (laid * np.log2(np.maximum(laid, 1))).sum(axis=1)
    bits = np.clip(
        np.log2(np.maximum(total, 1)) - ratio(terms, total),
        0.0,
        np.log2(max(count, 1)),
    )
    rows, columns = (side.max(axis=1, initial=0) for side in (sent, received))
    lines = np.maximum(rows * float(sent.shape[1]), columns * float(received.shape[1]))
    return {
        "sent": sent,
        "received": received,
        "bottleneck": np.maximum(rows, columns),
        "entropy": bits / (np.log2(count) if count > 1 else np.nan),
        "entropy_bits": bits,
        "max_mean": ratio(laid.max(axis=1, initial=0) * float(count), total),
        "cv": np.sqrt(ratio(count * deviation / np.maximum(total, 1), total)),
        "gini": np.maximum(ratio(differences, total * float(count)), 0.0),
        "zero": ratio((laid == 0).sum(axis=1), np.full(len(laid), count)),
        "line_efficiency": ratio(total, lines),
    }

"""The pass over count matrices in numpy; the same sums in the same order as compiled.

Every sum here equals that of :mod:`moetraffic.analysis.skew.compiled_pass` to the last
bit: whole numbers are exact, logarithms are of
:mod:`moetraffic.analysis.skew.logarithms`, and what is not whole is added up in one
order: over a row in eight lanes, element b in lane b % 8, the lanes by pairs, then row
after row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .logarithms import BINS_A_CELL, EXACT, SMALL, SMALL_TERMS, terms

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


def sweep(
    counts: npt.NDArray[Any],
    diagonal: bool,
    whole: Int64,
    sums: Float64,
    sent: Int64,
    received: Int64,
) -> None:
    """All sums of every matrix.

    Parameters
    ----------
    counts
        ``[N, A, B]`` int32 or int64; a few MB at a time.
    diagonal
        False leaves the diagonal out.
    whole
        Out: ``[N, 5]``: total, nonzero cells, largest, the sum of all differences of
        two cells (-1 where not counted) and the smallest, the diagonal in any case.
    sums
        Out: ``[N, 4]``: sum of squared deviations from the mean, sums of n log2 n over
        cells, row sums and column sums.
    sent, received
        Out: row sums ``[N, A]``, column sums ``[N, B]``.
    """
    _, height, width = counts.shape
    values = counts.astype(np.int64)
    low, high = values.min(axis=(1, 2)), values.max(axis=(1, 2))
    cells = height * width
    if not diagonal:
        cells -= height
        values[:, np.arange(height), np.arange(width)] = 0
    sent[:] = values.sum(axis=2)
    received[:] = values.sum(axis=1)
    total = sent.sum(axis=1)
    largest = values.max(axis=(1, 2))
    whole[:, 0] = total
    whole[:, 1] = np.count_nonzero(values, axis=(1, 2))
    whole[:, 2] = largest
    whole[:, 3] = -1
    whole[:, 4] = low
    sums[:, 2] = in_lanes(terms(sent))
    sums[:, 3] = in_lanes(terms(received))
    binned = (low >= 0) & (high < min(SMALL, BINS_A_CELL * cells))
    if binned.any():
        # the diagonal was set to 0 and is no cell
        whole[binned, 3], sums[binned, 1] = _by_bins(values[binned], cells)
    if not binned.all():
        sums[~binned, 1] = _row_after_row(terms(values[~binned]))
    exact = largest < EXACT // max(cells, 1)
    squares = (values[exact] ** 2).sum(axis=(1, 2))
    sums[exact, 0] = (cells * squares - total[exact] ** 2) / max(cells, 1)
    if not exact.all():
        mean = total[~exact].astype(np.float64) / cells
        off = values[~exact] - mean[:, None, None]
        off *= off
        if not diagonal:
            off[:, np.arange(height), np.arange(width)] = 0.0
        sums[~exact, 0] = _row_after_row(off)


def _by_bins(values: Int64, cells: int) -> tuple[Int64, Float64]:
    """Sums of differences and of n log2 n from how often each count occurs."""
    number = len(values)
    reach = int(values.max()) // 8 * 8 + 8
    place = values.reshape(number, -1) + np.arange(number)[:, None] * reach
    often = np.bincount(place.ravel(), minlength=number * reach)
    bins = often.astype(np.int64).reshape(number, reach)
    bins[:, 0] -= values[0].size - cells
    below = np.cumsum(bins, axis=1)
    return (below * (cells - below)).sum(axis=1), in_lanes(bins * SMALL_TERMS[:reach])


def in_lanes(values: Float64) -> Float64:
    """Sum over the last axis in eight lanes, then by pairs."""
    *lead, number = values.shape
    lanes = np.zeros((*lead, 8))
    for first in range(0, number, 8):
        part = values[..., first : first + 8]
        lanes[..., : part.shape[-1]] += part
    by_two = lanes[..., 0::2] + lanes[..., 1::2]
    by_four = by_two[..., 0::2] + by_two[..., 1::2]
    result: Float64 = by_four[..., 0] + by_four[..., 1]
    return result


def _row_after_row(values: Float64) -> Float64:
    """Sum ``[n, A, B]`` over rows in lanes, then one row after another."""
    total = np.zeros(len(values))
    for row in in_lanes(values).T:
        total += row
    return total

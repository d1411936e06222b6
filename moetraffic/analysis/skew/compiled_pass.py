"""The pass over count matrices as machine code, for ``kernels``.

Imported only where numba is there and there is enough to do.  The functions are plain
Python too, slow but the same.  They hold no interpreter lock, so that threads may each
take a part of the matrices; a matrix is always added up in one order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.machine_code import compiled

from .logarithms import BINS_A_CELL, EXACT, INVERSE, LOG, SERIES, SMALL_TERMS

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
UInt32 = npt.NDArray[np.uint32]

numba: Any = import_module("numba")


def _fill_terms(
    counts: npt.NDArray[Any],
    out: Float64,
    table: Float64,
    inverse: Float64,
    log: Float64,
    series: Float64,
) -> None:
    """``n log2 n`` of a row; as :func:`moetraffic.analysis.skew.logarithms.terms`."""
    fraction, one, known = (1 << 52) - 1, 1023 << 52, len(table)
    c1, c2, c3, c4 = series[0], series[1], series[2], series[3]
    c5, c6, c7, c8 = series[4], series[5], series[6], series[7]
    for b in range(len(counts)):
        if 0 <= counts[b] < known:
            out[b] = table[np.uint64(counts[b])]
            continue
        value = np.float64(counts[b])
        bits = value.view(np.int64)
        mantissa = np.int64((bits & fraction) | one).view(np.float64)
        step = np.uint64((bits >> 45) & 127)
        r = mantissa * inverse[step] - 1.0
        s = (((c8 * r + c7) * r + c6) * r + c5) * r
        s = ((((s + c4) * r + c3) * r + c2) * r + c1) * r
        exponent = np.float64((bits >> 52) - 1023)
        out[b] = value * (exponent + (log[step] + s))


fill_terms = compiled(_fill_terms)


def _in_lanes(values: Float64, number: int) -> float:
    """Add up in eight lanes, element b in lane b % 8, then the lanes by pairs.

    There is room for a whole number of eights, and zeros where the elements end.
    """
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
    for b in range(0, number, 8):
        s0 += values[b]
        s1 += values[b + 1]
        s2 += values[b + 2]
        s3 += values[b + 3]
        s4 += values[b + 4]
        s5 += values[b + 5]
        s6 += values[b + 6]
        s7 += values[b + 7]
    return ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))


in_lanes = compiled(_in_lanes)


def _by_bins(
    counts: npt.NDArray[Any],
    diagonal: bool,
    least: int,
    most: int,
    bins: UInt32,
    table: Float64,
) -> tuple[int, int, int, int, float]:
    """Sums of a matrix of cells from ``least`` to ``most``, from how often each occurs.

    Returns
    -------
    tuple
        Cells above zero, the largest, the sum of squares, that of the differences of
        all pairs of cells and that of n log2 n.
    """
    height, width = counts.shape
    cells = height * width if diagonal else height * (width - 1)
    for a in range(height):
        for b in range(width):
            bins[np.uint64(counts[a, b])] += np.uint32(1)
        if not diagonal:
            bins[np.uint64(counts[a, a])] -= np.uint32(1)
    nonzero: Any = cells - np.int64(bins[0])
    # sum of F and of F^2, with F the cells that are at most n, where n goes up
    below: Any = 0
    last = squares = area = squared = 0
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
    for n in range(least // 8 * 8, most + 1, 8):
        o0, o1 = np.int64(bins[n]), np.int64(bins[n + 1])
        o2, o3 = np.int64(bins[n + 2]), np.int64(bins[n + 3])
        o4, o5 = np.int64(bins[n + 4]), np.int64(bins[n + 5])
        o6, o7 = np.int64(bins[n + 6]), np.int64(bins[n + 7])
        if (o0 | o1 | o2 | o3 | o4 | o5 | o6 | o7) == 0:
            area += 8 * below
            squared += 8 * below * below
            continue
        last = n
        s0 += o0 * table[n]
        s1 += o1 * table[n + 1]
        s2 += o2 * table[n + 2]
        s3 += o3 * table[n + 3]
        s4 += o4 * table[n + 4]
        s5 += o5 * table[n + 5]
        s6 += o6 * table[n + 6]
        s7 += o7 * table[n + 7]
        # (n + i)^2 of each, by how many they are, by i and by i^2
        some: Any = ((o0 + o1) + (o2 + o3)) + ((o4 + o5) + (o6 + o7))
        by_i: Any = o1 + 2 * o2 + 3 * o3 + 4 * o4 + 5 * o5 + 6 * o6 + 7 * o7
        by_ii: Any = o1 + 4 * o2 + 9 * o3 + 16 * o4 + 25 * o5 + 36 * o6 + 49 * o7
        squares += n * n * some + 2 * n * by_i + by_ii
        f0 = below + o0
        f1 = f0 + o1
        f2 = f1 + o2
        f3 = f2 + o3
        f4 = f3 + o4
        f5 = f4 + o5
        f6 = f5 + o6
        below = f6 + o7
        area += ((f0 + f1) + (f2 + f3)) + ((f4 + f5) + (f6 + below))
        squared += ((f0 * f0 + f1 * f1) + (f2 * f2 + f3 * f3)) + (
            (f4 * f4 + f5 * f5) + (f6 * f6 + below * below)
        )
    largest = 0
    for n in range(last, last + 8):
        largest = n if bins[n] else largest
    bins[least // 8 * 8 : most // 8 * 8 + 8] = 0
    spread = ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))
    return nonzero, largest, squares, cells * area - squared, spread


by_bins = compiled(_by_bins)


def _by_rows(
    counts: npt.NDArray[Any],
    diagonal: bool,
    kept: Float64,
    table: Float64,
    inverse: Float64,
    log: Float64,
    series: Float64,
) -> tuple[int, int, int, float]:
    """Sums of a matrix of any counts; as :func:`_by_bins` but for the differences."""
    height, width = counts.shape
    nonzero = largest = squares = 0
    spread = 0.0
    for a in range(height):
        for b in range(width):
            n: Any = np.int64(counts[a, b])
            if diagonal or a != b:
                nonzero += n != 0
                largest = max(largest, n)
                squares += n * n
        fill_terms(counts[a], kept, table, inverse, log, series)
        if not diagonal:
            kept[a] = 0.0
        spread += in_lanes(kept, width)
    return nonzero, largest, squares, spread


by_rows = compiled(_by_rows)


def _deviation(
    counts: npt.NDArray[Any], diagonal: bool, mean: float, kept: Float64
) -> float:
    """Sum of squared deviations from the mean, for sums of squares past an int64."""
    height, width = counts.shape
    total = 0.0
    for a in range(height):
        for b in range(width):
            off = np.float64(counts[a, b]) - mean
            kept[b] = off * off
        if not diagonal:
            kept[a] = 0.0
        total += in_lanes(kept, width)
    return total


deviation = compiled(_deviation)


def _sweep(
    counts: npt.NDArray[Any],
    diagonal: bool,
    table: Float64,
    inverse: Float64,
    log: Float64,
    series: Float64,
    whole: Int64,
    sums: Float64,
    sent: Int64,
    received: Int64,
) -> None:
    """All sums of every matrix; each is fetched from memory once.

    Parameters
    ----------
    counts
        ``[N, A, B]`` int32 or int64.
    diagonal
        False leaves the diagonal out.
    table, inverse, log, series
        Of :mod:`moetraffic.analysis.skew.logarithms`.
    whole
        Out: ``[N, 5]``: total, nonzero cells, largest, the sum of all differences of
        two cells (-1 where not counted) and the smallest, the diagonal in any case.
    sums
        Out: ``[N, 4]``: sum of squared deviations from the mean, sums of n log2 n over
        cells, row sums and column sums.
    sent, received
        Out: row sums ``[N, A]``, column sums ``[N, B]``.
    """
    matrices, height, width = counts.shape
    cells = height * width if diagonal else height * (width - 1)
    columns = np.zeros(width, np.int64)
    # room for whole eights, and zeros behind the cells
    kept = np.zeros((width + 7) // 8 * 8, np.float64)
    line = np.zeros((height + 7) // 8 * 8, np.float64)
    bins = np.zeros(len(table), np.uint32)
    for i in range(matrices):
        total = 0
        columns[:] = 0
        low = high = counts[i, 0, 0]
        for a in range(height):
            of_row = 0
            for b in range(width):
                n = counts[i, a, b]
                of_row += n
                low, high = min(low, n), max(high, n)
                columns[b] += n
            if not diagonal:
                of_row -= counts[i, a, a]
                columns[a] -= counts[i, a, a]
            sent[i, a] = of_row
            total += of_row
        differences = -1
        if low >= 0 and high < min(len(table), BINS_A_CELL * cells):
            nonzero, largest, squares, differences, spread = by_bins(
                counts[i], diagonal, low, high, bins, table
            )
        else:
            nonzero, largest, squares, spread = by_rows(
                counts[i], diagonal, kept, table, inverse, log, series
            )
        if cells and largest < EXACT // cells:
            sums[i, 0] = np.float64(cells * squares - total * total) / cells
        elif cells:
            mean = np.float64(total) / cells
            sums[i, 0] = deviation(counts[i], diagonal, mean, kept)
        whole[i, 0] = total
        whole[i, 1] = nonzero
        whole[i, 2] = largest
        whole[i, 3] = differences
        whole[i, 4] = low
        sums[i, 1] = spread
        fill_terms(sent[i], line, table, inverse, log, series)
        sums[i, 2] = in_lanes(line, height)
        for b in range(width):
            received[i, b] = columns[b]
        fill_terms(columns, kept, table, inverse, log, series)
        sums[i, 3] = in_lanes(kept, width)


PARTS = ("fill_terms", "in_lanes", "by_bins", "by_rows", "deviation")


def _compile(signature: Any) -> Any:
    """Machine code of the pass; kept for the next process if there is room on disk."""
    try:
        return compiled(_sweep, [signature])
    except OSError:
        for name in PARTS:
            globals()[name] = compiled(globals()[f"_{name}"], kept=False)
        return compiled(_sweep, [signature], kept=False)


@cache
def sweep(dtype: str) -> Callable[..., None]:
    """Machine code of the pass over counts of one type, "int32" or "int64".

    Only that type is compiled, which takes a second or two unless it was kept from an
    earlier process.  Read-only memory is taken as any other.
    """
    kind = numba.types
    counts = kind.Array(getattr(kind, dtype), 3, "C", readonly=True)
    vector = kind.Array(kind.float64, 1, "C", readonly=True)
    whole, sums = kind.int64[:, ::1], kind.float64[:, ::1]
    flags = kind.boolean
    machine_code = _compile(
        kind.void(
            *(counts, flags, vector, vector, vector, vector),
            *(whole, sums, whole, whole),
        )
    )

    def run(matrices: npt.NDArray[Any], diagonal: bool, *out: npt.NDArray[Any]) -> None:
        machine_code(matrices, diagonal, SMALL_TERMS, INVERSE, LOG, SERIES, *out)

    return run

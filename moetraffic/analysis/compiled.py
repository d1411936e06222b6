"""The pass over count matrices as machine code; see :mod:`moetraffic.analysis.kernel`.

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

from .logarithms import BINS_A_CELL, EXACT, INVERSE, LOG, SERIES, SMALL_TERMS

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
UInt32 = npt.NDArray[np.uint32]

numba: Any = import_module("numba")


def _jit(function: Any, *signature: Any, kept: bool = True) -> Any:
    """Compile, and keep the machine code between processes where a folder lets us."""
    how = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(*signature, cache=kept, **how)(function)
    except RuntimeError:
        if not kept:
            raise
        return _jit(function, *signature, kept=False)  # there is no folder to keep it


def _fill_terms(
    counts: npt.NDArray[Any],
    out: Float64,
    table: Float64,
    inverse: Float64,
    log: Float64,
    series: Float64,
) -> None:
    """``n log2 n`` of a row; as :func:`moetraffic.analysis.logarithms.terms`."""
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


fill_terms = _jit(_fill_terms)


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


in_lanes = _jit(_in_lanes)


def _by_bins(
    counts: npt.NDArray[Any],
    diagonal: bool,
    most: int,
    bins: UInt32,
    table: Float64,
) -> tuple[int, int, int, int, float]:
    """Sums of a matrix whose cells are at most ``most``, from how often each occurs.

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
    below = largest = squares = differences = 0
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
    for first in range(0, most + 1, 8):
        some = np.uint32(0)
        for n in range(first, first + 8):
            some |= bins[n]
        if some == 0:
            differences += 8 * below * (cells - below)
            continue
        s0 += bins[first] * table[first]
        s1 += bins[first + 1] * table[first + 1]
        s2 += bins[first + 2] * table[first + 2]
        s3 += bins[first + 3] * table[first + 3]
        s4 += bins[first + 4] * table[first + 4]
        s5 += bins[first + 5] * table[first + 5]
        s6 += bins[first + 6] * table[first + 6]
        s7 += bins[first + 7] * table[first + 7]
        for n in range(first, first + 8):
            often: Any = np.int64(bins[n])
            bins[n] = 0
            below += often
            # pairs of cells that the step from n to n + 1 lies between
            differences += below * (cells - below)
            squares += often * (n * n)
            largest = n if often else largest
    spread = ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))
    return nonzero, largest, squares, differences, spread


by_bins = _jit(_by_bins)


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


by_rows = _jit(_by_rows)


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


deviation = _jit(_deviation)


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
        Of :mod:`moetraffic.analysis.logarithms`.
    whole
        Out: ``[N, 5]``: total, nonzero cells, largest, the sum of all differences of
        two cells (-1 where not counted) and all bits that are set in any cell.
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
        total = every = 0
        columns[:] = 0
        for a in range(height):
            of_row = 0
            any_bit = counts[i, a, 0]
            for b in range(width):
                n = counts[i, a, b]
                of_row += n
                any_bit |= n
                columns[b] += n
            if not diagonal:
                of_row -= counts[i, a, a]
                columns[a] -= counts[i, a, a]
            bits: Any = np.int64(any_bit)
            every |= bits
            sent[i, a] = of_row
            total += of_row
        differences = -1
        if 0 <= every < min(len(table), BINS_A_CELL * cells):
            nonzero, largest, squares, differences, spread = by_bins(
                counts[i], diagonal, every, bins, table
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
        whole[i, 4] = every
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
        return _jit(_sweep, [signature])
    except OSError:
        for name in PARTS:
            globals()[name] = _jit(globals()[f"_{name}"], kept=False)
        return _jit(_sweep, [signature], kept=False)


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
    compiled = _compile(
        kind.void(
            *(counts, flags, vector, vector, vector, vector),
            *(whole, sums, whole, whole),
        )
    )

    def run(matrices: npt.NDArray[Any], diagonal: bool, *out: npt.NDArray[Any]) -> None:
        compiled(matrices, diagonal, SMALL_TERMS, INVERSE, LOG, SERIES, *out)

    return run

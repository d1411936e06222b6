r"""The terms n log2 n of an entropy, the same to the last bit on every machine.

The logarithms of numpy, of the C library and of compiled code differ in their last
bits, by processor and by how many numbers are asked for at once.  Here a logarithm is
a fixed row of additions and multiplications, which IEEE 754 rounds in one way only:

.. math:: \log_2 (2^e m) = e + \log_2 c + \log_2 (1 + r), \quad r = m / c - 1

with c the mantissa m cut after its first 7 bits, :math:`\log_2 c` from a table and the
rest from eight terms of the series, of which :math:`0 \le r < 2^{-7}` leaves an error
below 1e-17.  Powers of two come out exactly.  (P.-T. P. Tang, Table-driven
implementation of the logarithm function, ACM TOMS 16 (1990) 378.)
"""

from __future__ import annotations

from math import log, log2

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

STEPS = 128  # of the mantissa: 7 bits
INVERSE: Float64 = 1.0 / (1.0 + np.arange(STEPS) / STEPS)
LOG: Float64 = np.array([-log2(inverse) for inverse in INVERSE.tolist()])
SERIES: Float64 = np.array([(-1) ** (j + 1) / (j * log(2)) for j in range(1, 9)])
"""Of log2(1 + r): the coefficients of r, r^2 ... r^8."""

SMALL = 8192
"""Counts below it have their n log2 n in :data:`SMALL_TERMS`."""


def logarithm(values: Float64) -> Float64:
    """log2 of positive numbers, any shape; of 0 it is -1023, harmless in ``0 log 0``.

    Examples
    --------
    >>> logarithm(np.array([1.0, 8.0, 0.25])).tolist()
    [0.0, 3.0, -2.0]
    """
    bits = np.ascontiguousarray(values, np.float64).view(np.int64)
    step = (bits >> 45) & (STEPS - 1)
    mantissa = ((bits & ((1 << 52) - 1)) | (1023 << 52)).view(np.float64)
    r = mantissa * INVERSE[step] - 1.0
    series = SERIES[7] * r
    for coefficient in SERIES[6::-1].tolist():
        series = (series + coefficient) * r
    result: Float64 = ((bits >> 52) - 1023) + (LOG[step] + series)
    return result


def terms(counts: npt.ArrayLike) -> Float64:
    """``n log2 n`` of counts, any shape; 0 where n is 0.

    Examples
    --------
    >>> terms([0, 1, 2, 8]).tolist()
    [0.0, 0.0, 2.0, 24.0]
    """
    values = np.asarray(counts, np.float64)
    result: Float64 = np.where(values > 0, values * logarithm(values), 0.0)
    return result


SMALL_TERMS: Float64 = terms(np.arange(SMALL))
"""``n log2 n`` of n = 0 ... :data:`SMALL` - 1, ``[SMALL]``."""

BINS_A_CELL = 8
"""A matrix's counts are counted by value where there are at most so many bins a cell;
looking through more would cost more than their logarithms."""

EXACT = 2**31
"""Below it, cells times largest count: its square, and so any sum here, is an int64."""

"""Every byte count times a factor, in integers.

A cell whose bytes are a multiple of 16, which NCCL copies at once, is rounded to such a
multiple, another cell to a whole byte: to the nearest, halves up, but not to 0.  The
same is done to a matrix and to its transpose.
"""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import ReplayError
from moetraffic.trace.model import MOST_BYTES

_WRITTEN = re.compile(r"x(\d{1,6}(?:\.\d{1,9})?|\d{1,6}/[1-9]\d{0,5})", re.ASCII)

ALIGNMENT = 16
"""Alignment of buffers that is kept, in bytes."""

LARGEST = 1_000_000
"""Of a factor, and of its parts p and q: products stay in int64."""


def factor_of(text: str) -> Fraction:
    """A factor as people write it: ``x0.1``, ``x2`` or ``x1/8``.

    Examples
    --------
    >>> factor_of("x0.1"), factor_of("x1/8")
    (Fraction(1, 10), Fraction(1, 8))
    """
    found = _WRITTEN.fullmatch(text)
    factor = Fraction(found[1]) if found else Fraction(0)
    if not factor or max(factor.numerator, factor.denominator) > LARGEST:
        raise ReplayError(
            "bytes are scaled by x and a factor above 0, of a numerator and a "
            f"denominator up to {LARGEST}, but --bytes is {text[:40]!r}: give x0.1 for "
            "a tenth, x2 for twice as many"
        )
    return factor


def times(nbytes: Int64, factor: Fraction) -> Int64:
    """Bytes times a factor, to the nearest whole byte or 16 bytes, halves up.

    ``nbytes`` are int64, of any shape, 0 or more; the factor is from :func:`factor_of`.

    Examples
    --------
    >>> times(np.array([0, 5, 15, 8, 1648]), Fraction(1, 10)).tolist()
    [0, 1, 2, 1, 160]
    """
    if factor == 1:
        return nbytes
    p, q = factor.numerator, factor.denominator
    most = int(nbytes.max(initial=0))
    if most * p > MOST_BYTES * q:
        raise ReplayError(
            f"a call sends at most {MOST_BYTES} bytes to a rank, but {most} bytes "
            f"times {factor} are more: lower --bytes"
        )
    unit = np.where(nbytes % ALIGNMENT == 0, ALIGNMENT, 1)
    whole, rest = np.divmod(nbytes // unit, q)
    units = whole * p + (2 * rest * p + q) // (2 * q)
    out: Int64 = np.maximum(units, nbytes > 0) * unit
    return out

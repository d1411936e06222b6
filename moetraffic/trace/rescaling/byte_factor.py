"""Every byte count times a factor, exactly.

The factor is a fraction p/q.  A cell of b bytes becomes the whole number nearest to
b p / q, halves up: ``floor((2 b p + q) / (2 q))``, computed in integers.  It does the
same to a matrix and to its transpose, and is off by half a byte a cell at most, so that
a matrix of W ranks moves p/q of its bytes to within W^2 / 2.
"""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np

from moetraffic.errors import ReplayError
from moetraffic.trace.model import MOST_BYTES, Int64

_WRITTEN = re.compile(r"x?(\d{1,6}(?:\.\d{1,9})?|\d{1,6}/[1-9]\d{0,5})", re.ASCII)

LARGEST = 1_000_000
"""Of a factor, and of its parts p and q: products stay in int64."""


def factor_of(text: str) -> Fraction:
    """A factor as people write it: ``x0.1``, ``x2`` or ``x1/8``.

    Raises
    ------
    ReplayError
        If the text is none, or the factor is 0 or beyond what is exact.

    Examples
    --------
    >>> factor_of("x0.1"), factor_of("1/8")
    (Fraction(1, 10), Fraction(1, 8))
    """
    found = _WRITTEN.fullmatch(text)
    factor = Fraction(found[1]) if found else Fraction(0)
    if not factor or max(factor.numerator, factor.denominator) > LARGEST:
        raise ReplayError(
            "bytes are scaled by a factor above 0 whose numerator and denominator are "
            f"at most {LARGEST}, but --bytes is {text[:40]!r}: give x0.1 for a tenth, "
            "x2 for twice as many"
        )
    return factor


def times(nbytes: Int64, factor: Fraction) -> Int64:
    """Bytes times a factor, to the nearest whole number, halves up.

    Parameters
    ----------
    nbytes
        int64, any shape, 0 or more.
    factor
        From :func:`factor_of`.

    Raises
    ------
    ReplayError
        If that is more than one call can send.

    Examples
    --------
    >>> times(np.array([5, 14, 15, 16]), Fraction(1, 10)).tolist()
    [1, 1, 2, 2]
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
    whole, rest = np.divmod(nbytes, q)
    out: Int64 = whole * p + (2 * rest * p + q) // (2 * q)
    return out

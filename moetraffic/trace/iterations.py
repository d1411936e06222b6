"""Iterations as people write them."""

from __future__ import annotations

import sys

from moetraffic.errors import TraceError


def iteration_range(text: str | None) -> range | None:
    """The iterations that ``A:B`` means: A up to, not with, B; either may be left out.

    Parameters
    ----------
    text
        None for all iterations.

    Raises
    ------
    TraceError
        If the text is no such range.

    Examples
    --------
    >>> iteration_range("10:20")
    range(10, 20)
    """
    if text is None:
        return None
    first, colon, last = text.partition(":")
    if colon and all(not part or part.isdecimal() for part in (first, last)):
        chosen = range(_number(first), _number(last) if last else sys.maxsize)
        if len(chosen):
            return chosen
    raise TraceError(
        f"iterations are A:B with A below B, not {text!r}: 10:20 are iterations 10 to "
        "19, 100: all from 100 on"
    )


def _number(digits: str) -> int:
    """A number that a range can have: whatever lies beyond is beyond every run."""
    significant = digits.lstrip("0")
    if len(significant) > len(str(sys.maxsize)):
        return sys.maxsize
    return min(int(significant or 0), sys.maxsize)

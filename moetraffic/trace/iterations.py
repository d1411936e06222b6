"""Parse iteration ranges such as ``10:20`` and number lists such as ``0,4:8``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import MoetrafficError, TraceError

MOST = 10_000_000
"""Maximum length of a range within a number list."""


def iteration_range(text: str | range | None) -> range | None:
    """Parse ``A:B`` as the half-open iteration range [A, B); both ends are optional.

    None stands for all iterations; a range is returned as it is.

    Examples
    --------
    >>> iteration_range("10:20")
    range(10, 20)
    """
    if text is None or isinstance(text, range):
        return text
    form = re.fullmatch(r"(\d{0,18}):(\d{0,18})", str(text), re.ASCII)
    if form and int(form[1] or 0) < int(form[2] or sys.maxsize):
        return range(int(form[1] or 0), int(form[2] or sys.maxsize))
    raise TraceError(
        f"iterations are A:B with A below B, not {text!r}: 10:20 are iterations 10 to "
        "19, 100: all from 100 on"
    )


def regular_stretch(numbers: Int64) -> tuple[slice, int]:
    """Find the longest part of increasing numbers ``[n]`` without a gap.

    Returns its indices, and the spacing of the numbers: the most frequent one.

    Examples
    --------
    >>> regular_stretch(np.array([0, 5, 15, 20, 25, 40]))
    (slice(2, 5, None), 5)
    """
    if len(numbers) < 2:
        return slice(0, len(numbers)), 1
    spacings, counts = np.unique(np.diff(numbers), return_counts=True)
    spacing = int(spacings[counts.argmax()])
    cuts = np.flatnonzero(np.diff(numbers) != spacing) + 1
    edges = np.concatenate([[0], cuts, [len(numbers)]])
    longest = int(np.diff(edges).argmax())
    return slice(int(edges[longest]), int(edges[longest + 1])), spacing


def listed_numbers(
    text: str, what: str, error: type[MoetrafficError] = TraceError
) -> list[int]:
    """Parse comma-separated numbers; ``A:B`` stands for the half-open range [A, B).

    ``what`` is numbered, in the plural, for the error.  Each number is in the result as
    often as it is listed.

    Examples
    --------
    >>> listed_numbers("0,4:7", "layers")
    [0, 4, 5, 6]
    """
    listed: list[int] = []
    for part in text.split(","):
        form = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", part.strip(), re.ASCII)
        first = int(form[1]) if form else 0
        last = int(form[2] or first + 1) if form else 0
        if not 0 < last - first <= MOST:
            raise error(
                f"{what} are numbers, or A:B for the half-open range [A, B), separated "
                f"by commas, but one is {part.strip()[:40]!r}: 1,4:8 stands for five"
            )
        listed += range(first, last)
    return listed


def numbers(
    given: Iterable[int | str] | int | str | None, what: str
) -> tuple[int, ...] | None:
    """Return the distinct numbers of a list or of ``"1,3:6"``; None stays None."""
    if given is None:
        return None
    parts = [given] if isinstance(given, int | str) else [*given]
    text = ",".join(map(str, parts))
    return tuple(dict.fromkeys(listed_numbers(text, what))) if parts else ()


def layer_numbers(
    given: Iterable[int | str] | int | str | None,
) -> tuple[int, ...] | None:
    """Return the layers of a list or of the text ``1,3:6``; None stands for all."""
    return numbers(given, "layers")


def names(given: Iterable[str] | str) -> tuple[str, ...]:
    """Return the names of a list, or of a text with commas between."""
    return tuple(given.split(",") if isinstance(given, str) else given)

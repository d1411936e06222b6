"""Infer whether a call is forward, backward or recomputed, from autograd functions.

A forward function and its backward have the same sequence number.  A call is backward
if the innermost function around it is, and recomputed if that one is a forward function
within a backward.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable

SLACK = 2  # ns: tolerance for rounding of floating-point microseconds
UNNUMBERED = -1


def direction_and_link(around: Iterable[tuple[int, bool]]) -> tuple[str, int]:
    """Infer a call's direction and autograd sequence number.

    Parameters
    ----------
    around
        Sequence number (-1 for none) and whether it is backward, for each function
        around the call, innermost first.

    >>> direction_and_link([(7, False), (-1, True)])
    ('recompute', 7)
    """
    every = list(around)
    link = next((number for number, _ in every if number >= 0), UNNUMBERED)
    if not any(backward for _, backward in every):
        return "forward", link
    nearest = next(backward for number, backward in every if number >= 0 or backward)
    return ("backward" if nearest else "recompute"), link


class Functions:
    """Time-ordered index of the autograd functions of each thread."""

    def __init__(self) -> None:
        self._kept: dict[int, array[int]] = {}
        self._sorted: dict[int, _Nested] = {}

    def add(
        self, thread: int, start: int, end: int, number: int, backward: bool
    ) -> None:
        """Add an autograd function that ran from ``start`` to ``end``."""
        mine = self._kept.setdefault(thread, array("q"))
        mine.extend((start, end, number, int(backward)))

    def around(self, thread: int, start: int, end: int) -> list[tuple[int, bool]]:
        """Return number and direction of enclosing functions, innermost first."""
        if thread not in self._kept:
            return []
        if thread not in self._sorted:
            self._sorted[thread] = _Nested(self._kept[thread])
        return self._sorted[thread].around(start, end)


class _Nested:
    """Autograd functions of a thread by start time, with their enclosing functions."""

    def __init__(self, kept: array[int]) -> None:
        self._rows = sorted(
            zip(kept[0::4], kept[1::4], kept[2::4], kept[3::4], strict=True),
            key=lambda row: (row[0], -row[1]),
        )
        self._starts = [row[0] for row in self._rows]
        self._outer: list[int] = []
        stack: list[int] = []
        for at, (start, end, _, _) in enumerate(self._rows):
            while stack and not self._within(stack[-1], start, end):
                stack.pop()
            self._outer.append(stack[-1] if stack else -1)
            stack.append(at)

    def _within(self, at: int, start: int, end: int) -> bool:
        begun, ended, _, _ = self._rows[at]
        return begun <= start + SLACK and end <= ended + SLACK

    def around(self, start: int, end: int) -> list[tuple[int, bool]]:
        found = []
        at = bisect_left(self._starts, start + 1) - 1
        while at >= 0:
            if self._within(at, start, end):
                found.append((self._rows[at][2], bool(self._rows[at][3])))
            at = self._outer[at]
        return found

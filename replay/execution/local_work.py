"""Local work between operations, during which ranks do not take one another for lost.

A backend takes a rank for lost that others await for longer than the timeout.  Before
and after an operation, though, ranks compute payloads and expected bytes, some of them
far more than others.  So all ranks meet between operations, and who still works there
tells the others after each chunk of bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from moetraffic.arrays import Bool, Int64
from moetraffic.launch import heartbeat
from moetraffic.replay.backends.backend import Backend
from moetraffic.replay.plan.program import KINDS, Plan
from moetraffic.trace.model import ALL_TO_ALL

from .control import gathered

CHUNK = 1 << 24
"""Bytes that a rank computes without telling the others: some 10 ms."""

_OPERATION_BYTES = 1 << 16  # computed in about the time of an empty operation

Advance = Callable[[int], None]
"""Function that is told a number of computed bytes."""


def advance_alone(nbytes: int) -> None:
    """Compute bytes without telling another rank."""


class LocalWork:
    """Meetings of all ranks, before which each may have work of its own."""

    def __init__(self, backend: Backend, everyone: int, ranks: int) -> None:
        self._backend = backend
        self._everyone = everyone  # index of the group of all ranks
        self._ranks = ranks

    def chunks(self) -> Advance:
        """Return a function for the bytes of one step of work before a meeting.

        It meets the other ranks after each CHUNK, and never in a shorter step.
        """
        total = 0

        def advance(nbytes: int) -> None:
            nonlocal total
            total += nbytes
            if total >= CHUNK:
                total = 0
                self._any_works(True)

        return advance

    def meet(self) -> None:
        """Wait until every rank has done its work and called this function."""
        while self._any_works(False):
            continue

    def _any_works(self, own: bool) -> bool:
        heartbeat.send("step")
        flags = np.array([own])
        return bool(gathered(self._backend, self._everyone, self._ranks, flags).any())


def count_meetings(plan: Plan, chosen: Bool | None = None) -> tuple[Int64, int]:
    """Count the meetings before each operation, ``[n]``, and those of all.

    Ranks run the ``chosen`` operations one by one in :meth:`Plan.checking_order`.  They
    meet before and after an operation for which a rank computes CHUNK bytes or more,
    and in between often enough that no rank is far ahead of another.
    """
    width = np.array([len(g) for g in plan.groups], np.int64)[plan.group]
    to_all = plan.kind == KINDS.index(ALL_TO_ALL)
    nbytes = np.where(to_all, plan.largest_bytes, plan.size * width)
    number, before = 0, np.zeros(len(plan), np.int64)
    since: Counter[int] = Counter()  # bytes of each group since the last meeting
    for operation in np.lexsort((np.arange(len(plan)), plan.iteration)).tolist():
        if chosen is None or chosen[operation]:
            group, size = int(plan.group[operation]), int(nbytes[operation])
            since[group] += size + _OPERATION_BYTES
            if since[group] > CHUNK or size >= CHUNK:
                number += 1
                since = Counter({group: size + _OPERATION_BYTES})
            before[operation] = number
            if size >= CHUNK:
                number += 1
                since.clear()
    return before, number

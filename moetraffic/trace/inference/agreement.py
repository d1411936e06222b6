"""Values of calls that all members of a collective share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.trace.panel import count_equal

from .calls import Calls

NONE = np.iinfo(np.int64).max


def collectives(every: Sequence[Calls]) -> tuple[dict[int, Int64], int]:
    """Number collectives, equal on all members.

    Returns the number of each call by rank, ``[n]``, -1 for other calls; and how many
    collectives there are.
    """
    keys = {}
    for calls in every:
        group = np.array([s.group for s in calls.sites], np.int64)
        sequence = calls.table["sequence"].astype(np.int64)
        key = (group[calls.table["site"]] << 27) + sequence
        # groups that continue each other count separately: the first call of a number
        # is the same on all members, and so is the second
        keys[calls.rank] = np.where(sequence < 0, -1, (count_equal(key) << 43) + key)
    distinct = np.unique(np.concatenate([np.zeros(0, np.int64), *keys.values()]))
    numbers = {
        rank: np.where(key < 0, -1, np.searchsorted(distinct, key))
        for rank, key in keys.items()
    }
    return numbers, len(distinct)


def agree(every: Sequence[Calls], names: Mapping[int, Int64]) -> int:
    """Copy the numbers of names to calls of other members that have none (-1).

    A record that ends early may determine less.  Calls whose members differ are set to
    -1; the result is their number.
    """
    numbers, count = collectives(every)
    # by collective; the last element is that of other calls
    least, most = np.full(count + 1, NONE), np.full(count + 1, -1)
    for calls in every:
        own, place = names[calls.rank], numbers[calls.rank]
        named = (own >= 0) & (place >= 0)
        np.minimum.at(least, place[named], own[named])
        np.maximum.at(most, place[named], own[named])
    differ = (most >= 0) & (least != most)
    for calls in every:
        own, place = names[calls.rank], numbers[calls.rank]
        own[:] = np.where(calls.bare & (own < 0), most[place], own)
        own[differ[place]] = -1
    return int(differ.sum())


def fill_steps(
    every: Sequence[Calls], steps: Mapping[int, Int64]
) -> dict[int, Int64] | None:
    """Give all ranks the step numbers of those that know them.

    ``steps`` are by rank, ``[n]``, where they are known.  None if two members of a
    collective have it in different steps, or a rank shares no collective with others.
    """
    numbers, count = collectives(every)
    shared = np.full(count + 1, -1)  # step of each collective
    numbered: dict[int, Int64] = {}

    def add(rank: int, own: Int64) -> None:
        numbered[rank] = own
        shared[numbers[rank]] = np.where(numbers[rank] < 0, -1, own)

    for rank, own in steps.items():
        theirs = shared[numbers[rank]]
        if ((theirs >= 0) & (theirs != own)).any():
            return None
        add(rank, own)
    waiting = [calls.rank for calls in every if calls.rank not in steps]
    while waiting:
        ready = [rank for rank in waiting if (shared[numbers[rank]] >= 0).any()]
        if not ready:
            return None
        rank = ready[0]
        own = shared[numbers[rank]]
        # calls between the collectives of two steps belong to the later step
        later = np.minimum.accumulate(np.where(own < 0, NONE, own)[::-1])[::-1]
        add(rank, np.minimum(later, own.max()))
        waiting.remove(rank)
    return numbered

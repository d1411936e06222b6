"""Values of calls that all members of a collective share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.trace.panel import count_equal

from .calls import Calls


class Shared:
    """Values of collectives, keyed so that all members of a group can look them up."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Int64, Int64]] = {}

    def values(self, calls: Calls) -> Int64:
        """Return each call's value as set by other members, ``[n]``; -1 for none."""
        values = np.full(len(calls.table), -1, np.int64)
        for group, own, keys in collectives(calls):
            if group in self._known and len(own):
                known, numbers = self._known[group]
                place = np.minimum(np.searchsorted(known, keys), len(known) - 1)
                values[own] = np.where(known[place] == keys, numbers[place], -1)
        return values

    def add(self, calls: Calls, values: Int64) -> None:
        """Add a value for each call, ``[n]``, -1 for none; earlier values are kept."""
        for group, every, all_keys in collectives(calls):
            kept = values[every] >= 0
            own, keys = every[kept], all_keys[kept]
            if len(own):
                known, before = self._known.get(group, (keys[:0], values[:0]))
                joined, first = np.unique(
                    np.concatenate([known, keys]), return_index=True
                )
                self._known[group] = (
                    joined,
                    np.concatenate([before, values[own]])[first],
                )


def collectives(calls: Calls) -> Iterator[tuple[int, Int64, Int64]]:
    """Match a rank's calls with those of the other members of each group.

    Yields
    ------
    group, own, keys
        Number of the group; ``[m]`` indices of the calls; ``[m]`` keys, equal on all
        members.
    """
    of_site = np.array([s.group for s in calls.sites], np.int64)
    group = np.where(calls.table["sequence"] < 0, -1, of_site[calls.table["site"]])
    for number in np.unique(group[group >= 0]).tolist():
        own = np.flatnonzero(group == number)
        sequence = calls.table["sequence"][own].astype(np.int64)
        # groups that continue each other count separately: the first call of a number
        # is the same on all members, and so is the second
        yield number, own, (count_equal(sequence) << 40) + sequence


def agree(every: Sequence[Calls], names: Mapping[int, Int64]) -> int:
    """Copy the numbers of names to calls of other members that have none (-1).

    A record that ends early may determine less.  Calls whose members differ are set to
    -1; the result is their number.
    """
    shared, conflicts = Shared(), Shared()
    differ = 0
    for calls in every:
        own, before = names[calls.rank], shared.values(calls)
        wrong = (before >= 0) & (own >= 0) & (before != own)
        differ += int(wrong.sum())
        shared.add(calls, own)
        conflicts.add(calls, np.where(wrong, 1, -1))
    for calls in every:
        own = names[calls.rank]
        own[:] = np.where(calls.bare & (own < 0), shared.values(calls), own)
        own[conflicts.values(calls) >= 0] = -1
    return differ


def fill_steps(
    every: Sequence[Calls], steps: Mapping[int, Int64]
) -> dict[int, Int64] | None:
    """Give all ranks the step numbers of those that know them.

    ``steps`` are by rank, ``[n]``, where they are known.  None if two members of a
    collective have it in different steps, or a rank shares no collective with others.
    """
    shared, numbered = Shared(), dict[int, Int64]()
    waiting = {calls.rank: calls for calls in every}
    for calls in every:
        if calls.rank in steps:
            own, theirs = steps[calls.rank], shared.values(calls)
            if ((theirs >= 0) & (own >= 0) & (theirs != own)).any():
                return None
            numbered[calls.rank] = own
            shared.add(calls, own)
            del waiting[calls.rank]
    while waiting:
        known = []
        for calls in waiting.values():
            own = shared.values(calls)
            if (own >= 0).any():
                # calls between the collectives of two steps belong to the later step
                later = np.where(own < 0, np.iinfo(np.int64).max, own)[::-1]
                later = np.minimum.accumulate(later)[::-1]
                known.append((calls, np.minimum(later, own.max())))
        if not known:
            return None
        for calls, own in known:
            numbered[calls.rank] = own
            shared.add(calls, own)
            del waiting[calls.rank]
    return numbered

"""Number the steps of all ranks consistently where the program did not mark them.

Each rank's steps are inferred from its own calls.  A collective must be in the same
step on all its members: a rank whose calls are inconclusive, or contradict the others,
adopts the steps of the ranks with which it shares collectives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.trace.panel import count_equal

from .calls import Calls
from .evidence import contradicted
from .period import NumberedSteps, find_steps

Members = tuple[int, ...]
MOST_GROUPS = 1 << 10  # limit of groups that have the same ranks


def number_steps(every: Sequence[Calls]) -> dict[int, NumberedSteps] | None:
    """Infer step numbers of all ranks' calls, equal on all members of a collective.

    None where no rank's calls determine its steps, or ranks that share no collective
    disagree.
    """
    found = {c.rank: find_steps(c) for c in every}
    own = {
        c.rank: steps
        for c in every
        if (steps := found[c.rank]) is not None and not contradicted(c, steps)
    }
    if not own:
        return None
    every_kinds = [s.kinds for s in own.values()]
    # the kinds that most ranks inferred; a prefix counts as agreement
    kinds = max(
        every_kinds, key=lambda k: (sum(_same(k, o) for o in every_kinds), len(k))
    )
    numbered: dict[int, NumberedSteps] = {}
    shared = Shared()
    waiting = {c.rank: c for c in every}
    for calls in every:
        steps = own.get(calls.rank)
        if steps is None or not _same(steps.kinds, kinds):
            continue
        theirs = shared.values(calls)
        if ((theirs >= 0) & (theirs != steps.step)).any():
            continue
        numbered[calls.rank] = steps
        shared.add(calls, steps.step)
        del waiting[calls.rank]
    while waiting:
        taken = [(c, _taken(c, shared)) for c in waiting.values()]
        known = [(c, step) for c, step in taken if step is not None]
        if not known:
            return None
        for calls, step in known:
            last = int(step.max(initial=0)) + 1
            of_other = max(numbered.values(), key=lambda n: len(n.kinds))
            numbered[calls.rank] = NumberedSteps(
                step=step, kinds=of_other.kinds[:last], whole=of_other.whole[:last]
            )
            shared.add(calls, step)
            del waiting[calls.rank]
    return _with_common_kinds(numbered)


def _same(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    """Return whether two ranks have equal step kinds up to the shorter record's end."""
    if len(a) == len(b):
        return a[:-1] == b[:-1]
    short = min(len(a), len(b)) - 1
    return short > 0 and a[:short] == b[:short]


class Shared:
    """Values of collectives, keyed so that all members of a group can look them up."""

    def __init__(self) -> None:
        self._known: dict[Members, tuple[Int64, Int64]] = {}

    def values(self, calls: Calls) -> Int64:
        """Return each call's value as set by other members, ``[n]``; -1 for none."""
        found = np.full(len(calls.table), -1, np.int64)
        for members, mine, keys in collectives(calls):
            if members in self._known and len(mine):
                known, values = self._known[members]
                at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
                found[mine] = np.where(known[at] == keys, values[at], -1)
        return found

    def add(self, calls: Calls, values: Int64) -> None:
        """Add a value for each call, ``[n]``, -1 for none; earlier values are kept."""
        for members, every_one, all_keys in collectives(calls):
            kept = values[every_one] >= 0
            mine, keys = every_one[kept], all_keys[kept]
            if not len(mine):
                continue
            known, before = self._known.get(members, (keys[:0], values[:0]))
            every, first = np.unique(np.concatenate([known, keys]), return_index=True)
            both = np.concatenate([before, values[mine]])
            self._known[members] = (every, both[first])


def collectives(calls: Calls) -> Iterator[tuple[Members, Int64, Int64]]:
    """Match a rank's calls with those of the other members of each group.

    Yields
    ------
    members, mine, keys
        World ranks; ``[m]`` indices of the calls; ``[m]`` keys, equal on all members.
    """
    by_members: dict[Members, list[int]] = {}
    for site, members in enumerate(calls.groups[s.group].ranks for s in calls.sites):
        by_members.setdefault(members, []).append(site)
    counted = calls.table["sequence"] >= 0
    for members, sites in by_members.items():
        mine = np.flatnonzero(counted & np.isin(calls.table["site"], sites))
        number = calls.table["sequence"][mine].astype(np.int64)
        # several groups of the same ranks count separately: the first call of a number
        # is the same on all members, and so is the second
        yield members, mine, number * MOST_GROUPS + count_equal(number)


def _taken(calls: Calls, shared: Shared) -> Int64 | None:
    """Derive a rank's step numbers from other members; None without a shared call."""
    taken = shared.values(calls)
    if not (taken >= 0).any():
        return None
    # calls between collectives of two steps belong to the later step
    backwards = np.where(taken < 0, np.iinfo(np.int64).max, taken)[::-1]
    latest = np.minimum.accumulate(backwards)[::-1]
    return np.asarray(np.minimum(latest, taken.max()), np.int64)


def _with_common_kinds(numbered: dict[int, NumberedSteps]) -> dict[int, NumberedSteps]:
    """Replace the kind of each step by the kind that most ranks inferred."""
    length = max(len(n.kinds) for n in numbered.values())
    kinds = []
    for at in range(length):
        votes = Counter(n.kinds[at] for n in numbered.values() if at < len(n.kinds))
        kinds.append(max(sorted(votes), key=lambda k: (votes[k], k == "train")))
    return {
        rank: replace(n, kinds=tuple(kinds[: len(n.kinds)]))
        for rank, n in numbered.items()
    }

"""The calls of one rank in order, joined over its segments, with marks to compare by.

What two calls sent is compared by 64-bit marks of their splits, one of the bytes and
one of their proportions, so that thousands of calls are compared as columns of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.trace.model import ALL_TO_ALL, ROUTING, Bool, Group, Int64, Site

from .segment import EVENT, Segment

FEW = 8  # row sizes that one kind of call may have and still be told apart by them
CHUNK = 1 << 22  # numbers at a time
MARKS = np.dtype([("sent", "<u8"), ("received", "<u8")])


@dataclass(frozen=True, kw_only=True)
class Calls:
    """The calls of one rank."""

    rank: int
    groups: tuple[Group, ...]
    sites: tuple[Site, ...]  # of all segments; ``group`` indexes ``groups``
    table: npt.NDArray[Any]  # [n] EVENT, ``site`` indexes ``sites``
    segment: Int64  # [n] which of the rank's segments a call is in
    volume: npt.NDArray[Any]  # [n] MARKS of the bytes sent and received
    share: npt.NDArray[Any]  # [n] MARKS of the bytes over their greatest divisor
    size: Int64  # [n] bytes sent and received, all-to-alls only
    even: Bool  # [n] all members are sent and send the same, all-to-alls only

    def of_sites(self, name: str) -> list[Any]:
        """A field of each site."""
        return [getattr(s, name) for s in self.sites]

    def where(self, told: Sequence[object]) -> Bool:
        """The calls whose site has a true value in ``told``, ``[n]``."""
        by_site = np.array([bool(t) for t in told], bool)
        return np.asarray(by_site[self.table["site"]], bool)

    @property
    def ranks_of_group(self) -> list[tuple[int, ...]]:
        """The members of each site's group."""
        return [self.groups[s.group].ranks for s in self.sites]


def gather_calls(mine: Sequence[Segment]) -> Calls:
    """Join a rank's segments.

    Parameters
    ----------
    mine
        The segments of one rank by index, one at least.
    """
    groups: dict[Group, int] = {}
    sites: dict[Site, int] = {}
    parts = []
    for segment in mine:
        members_of = [groups.setdefault(g, len(groups)) for g in segment.groups]
        own = np.array(
            [
                sites.setdefault(replace(s, group=members_of[s.group]), len(sites))
                for s in segment.sites
            ],
            np.int64,
        )
        part = segment.events.copy()
        if len(part):
            part["site"] = own[part["site"]]
        parts.append(part)
    table = np.concatenate(parts) if parts else np.zeros(0, EVENT)
    places = np.repeat(np.arange(len(mine)), [len(p) for p in parts])
    known, members = tuple(sites), tuple(groups)
    volume, share = np.zeros(len(table), MARKS), np.zeros(len(table), MARKS)
    size, even = np.zeros(len(table), np.int64), np.zeros(len(table), bool)
    exchanges = np.array([s.operation == ALL_TO_ALL for s in known], bool)
    width = np.array([len(members[s.group].ranks) for s in known], np.int64)
    for number, segment in enumerate(mine):
        for w, rows in segment.splits.items():
            here = np.flatnonzero(places == number)
            site = table["site"][here]
            here = here[exchanges[site] & (width[site] == w)]
            of_rows = _marks(rows)
            payload = table["payload"][here]
            swapped = table["transposed"][here] == 1
            for target, marks in ((volume, of_rows[0]), (share, of_rows[1])):
                mine_marks = marks[payload]
                target["sent"][here] = np.where(
                    swapped, mine_marks["received"], mine_marks["sent"]
                )
                target["received"][here] = np.where(
                    swapped, mine_marks["sent"], mine_marks["received"]
                )
            size[here], even[here] = of_rows[2][payload], of_rows[3][payload]
    return Calls(
        rank=mine[0].rank,
        groups=members,
        sites=known,
        table=table,
        segment=places,
        volume=volume,
        share=share,
        size=size,
        even=even,
    )


def _marks(rows: Int64) -> tuple[Any, Any, Int64, Bool]:
    """Marks of bytes and of proportions, totals and evenness of ``[m, 2, W]`` splits.

    A mark is the scalar product with fixed random odd numbers modulo 2^64: vectors that
    differ have equal marks with a probability of about 2^-50.
    """
    count, _, width = rows.shape
    weights = np.random.default_rng(width).integers(
        0, np.iinfo(np.uint64).max, width, np.uint64, endpoint=True
    ) | np.uint64(1)
    volume, share = np.zeros(count, MARKS), np.zeros(count, MARKS)
    even = np.zeros(count, bool)
    step = max(1, CHUNK // (2 * width))
    for first in range(0, count, step):
        part = slice(first, first + step)
        numbers = rows[part].astype(np.int64)
        divisor = np.gcd.reduce(numbers.reshape(len(numbers), -1), axis=1)
        told = (
            (volume, numbers),
            (share, numbers // np.maximum(divisor, 1)[:, None, None]),
        )
        for target, values in told:
            marks = (values.astype(np.uint64) * weights).sum(axis=2, dtype=np.uint64)
            target["sent"][part], target["received"][part] = marks[:, 0], marks[:, 1]
        even[part] = (numbers == numbers[:, :1, :1]).all(axis=(1, 2))
    return volume, share, rows.sum(axis=(1, 2)), even


def symbols(calls: Calls) -> Int64:
    """A number for what each call is, whatever it carries, ``[n]``.

    Calls are the same if operation, group, element type, row bytes, direction, peers
    and all that was told of their place are; row bytes do not count where one kind of
    call has many (a capacity that follows the batch).
    """
    kinds: dict[tuple[object, ...], set[int]] = {}
    plain = [replace(s, row_bytes=0) for s in calls.sites]
    for site, bare in zip(calls.sites, plain, strict=True):
        kinds.setdefault((bare,), set()).add(site.row_bytes)
    numbers: dict[Site, int] = {}
    by_site = [
        numbers.setdefault(
            site if len(kinds[(bare,)]) <= FEW else bare,
            len(numbers),
        )
        for site, bare in zip(calls.sites, plain, strict=True)
    ]
    return np.asarray(np.array(by_site, np.int64)[calls.table["site"]], np.int64)


def is_exchange(calls: Calls) -> Bool:
    """Which calls are all-to-alls, ``[n]``."""
    return calls.where([s.operation == ALL_TO_ALL for s in calls.sites])


def is_between_stages(calls: Calls) -> Bool:
    """Which calls are sends and receives, ``[n]``."""
    return calls.where([s.peers != (-1, -1) for s in calls.sites])


def is_backward(calls: Calls) -> Bool:
    """Which calls are made while gradients are computed, recomputation too, ``[n]``."""
    return calls.where([s.direction != "forward" for s in calls.sites])


def is_routing(calls: Calls) -> Bool:
    """Which events are a router's decisions, ``[n]``."""
    return calls.where([s.operation == ROUTING for s in calls.sites])

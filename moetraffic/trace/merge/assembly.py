"""Put the events of all ranks beside each other: what calls are the same occurrence.

A collective is the same occurrence on two ranks if its site and iteration are the
same.  Sites are the same if everything that describes them is, and their groups have
the same ranks.  The count of collectives on a group, which each rank keeps by itself,
must then agree as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.errors import CaptureError
from moetraffic.trace.model import Group, Int32, Int64, Occurrences, Site
from moetraffic.trace.segments.segment import EVENT, Segment

ALIGNED = np.dtype(
    [
        *((name, EVENT[name]) for name in EVENT.names or ()),
        ("rank", "<i4"),
        ("member", "<i4"),  # group rank
        ("segment", "<i4"),
        ("occurrence", "<i8"),
    ]
)


@dataclass(frozen=True, kw_only=True)
class Layouts:
    """Groups and spots of all ranks, and how each segment numbers them.

    A spot is a site before its calls are counted: the n-th call of a spot in an
    iteration is the site with slot n.
    """

    groups: tuple[Group, ...]
    spots: tuple[Site, ...]
    group_of: tuple[Int64, ...]  # by segment: its group number -> the common one
    spot_of: tuple[Int64, ...]  # by segment: its site number -> the common one


@dataclass(frozen=True, kw_only=True)
class Events:
    """All events, sorted by occurrence and member."""

    table: npt.NDArray[Any]  # ALIGNED
    sites: tuple[Site, ...]
    occurrences: Occurrences
    segments: Sequence[Segment]

    def of_site(self, site: int) -> slice:
        """The events of one site."""
        first, last = np.searchsorted(self.table["site"], [site, site + 1])
        return slice(int(first), int(last))

    def sent_and_received(self, site: int, width: int) -> Int64:
        """Bytes sent and received by each event of an all-to-all, ``[n, 2, W]``."""
        mine = self.table[self.of_site(site)]
        out = np.zeros((len(mine), 2, width), np.int64)
        for number in np.unique(mine["segment"]):
            here = mine["segment"] == number
            out[here] = self.segments[number].splits[width][mine["payload"][here]]
        swapped = mine["transposed"] == 1
        out[swapped] = out[swapped][:, ::-1]
        return out

    def routed(self, site: int, experts: int) -> Int32:
        """Token copies routed and dropped by each event of a routing, ``[n, 2, E]``."""
        mine = self.table[self.of_site(site)]
        out = np.zeros((len(mine), 2, experts), np.int32)
        for number in np.unique(mine["segment"]):
            here = mine["segment"] == number
            out[here] = self.segments[number].demand[experts][mine["payload"][here]]
        return out

    def volumes(self, site: int) -> Int64:
        """Bytes of each event of another collective, ``[n]``."""
        return np.asarray(self.table["payload"][self.of_site(site)], np.int64)

    def by_member(self, site: int, width: int, values: npt.NDArray[Any]) -> Any:
        """Put values ``[n, ...]`` of a site's events at ``[occurrence, member, ...]``.

        What no member recorded is zero; presence says so.
        """
        mine = self.table[self.of_site(site)]
        first, last = np.searchsorted(self.occurrences.site, [site, site + 1])
        out = np.zeros((last - first, width, *values.shape[1:]), values.dtype)
        out[mine["occurrence"] - first, mine["member"]] = values
        return out


def gather_layouts(segments: Sequence[Segment]) -> Layouts:
    """Number the groups and spots of all segments in common.

    Groups are the same if their kind and ranks are.
    """
    spots: dict[Site, int] = {}
    group_of, spot_of = [], []
    every = {g for segment in segments for g in segment.groups}
    groups = sorted(every, key=lambda g: (g.kind, g.ranks))
    numbers = {group: number for number, group in enumerate(groups)}
    for segment in segments:
        mine = np.array([numbers[g] for g in segment.groups], np.int64)
        group_of.append(mine)
        named = [replace(s, group=int(mine[s.group])) for s in segment.sites]
        spot_of.append(
            np.array([spots.setdefault(s, len(spots)) for s in named], np.int64)
        )
    return Layouts(
        groups=tuple(groups),
        spots=tuple(spots),
        group_of=tuple(group_of),
        spot_of=tuple(spot_of),
    )


def gather_events(segments: Sequence[Segment], layouts: Layouts) -> Events:
    """Sort the events of all ranks into occurrences.

    Parameters
    ----------
    segments
        By rank, and by index within a rank.
    layouts
        What :func:`gather_layouts` said of them.

    Raises
    ------
    CaptureError
        If a rank says that it ended one iteration twice.
    """
    _refuse_two_captures(segments)
    table = _one_table(segments, layouts)
    slots = _slots(table, layouts.spots)
    pairs, first, site = np.unique(
        table["site"].astype(np.int64) * (int(slots.max(initial=0)) + 1) + slots,
        return_index=True,
        return_inverse=True,
    )
    # sites are numbered in the order in which the ranks came to them first
    rank_of = np.empty(len(pairs), np.int64)
    rank_of[np.argsort(first)] = np.arange(len(pairs))
    sites = [
        replace(layouts.spots[table["site"][at]], slot=int(slots[at]))
        for at in np.sort(first)
    ]
    table["site"] = rank_of[site]
    table = table[np.lexsort((table["member"], table["iteration"], table["site"]))]
    new = np.ones(len(table), bool)
    new[1:] = (table["site"][1:] != table["site"][:-1]) | (
        table["iteration"][1:] != table["iteration"][:-1]
    )
    table["occurrence"] = np.cumsum(new) - 1
    return Events(
        table=table,
        sites=tuple(sites),
        occurrences=Occurrences(
            iteration=table["iteration"][new],
            site=table["site"][new],
            sequence=table["sequence"][new],
        ),
        segments=segments,
    )


def _refuse_two_captures(segments: Sequence[Segment]) -> None:
    for rank in sorted({s.rank for s in segments}):
        mine = [s.steps["iteration"] for s in segments if s.rank == rank]
        ended, count = np.unique(np.concatenate(mine), return_counts=True)
        if (count > 1).any():
            raise CaptureError(
                f"a rank ends an iteration once, but rank {rank} ended iteration "
                f"{ended[count > 1][0]} twice: the folder holds segments of two "
                "captures, merge each by itself"
            )


def _one_table(segments: Sequence[Segment], layouts: Layouts) -> npt.NDArray[Any]:
    """All events in the order of their calls, with the number of their spot."""
    parts = []
    for number, segment in enumerate(segments):
        part = np.zeros(len(segment.events), ALIGNED)
        for name in EVENT.names or ():
            part[name] = segment.events[name]
        local = segment.events["site"]
        members = [segment.groups[s.group].ranks for s in segment.sites]
        member_of = np.array([m.index(segment.rank) for m in members], np.int64)
        part["site"] = layouts.spot_of[number][local]
        part["member"] = member_of[local]
        part["rank"] = segment.rank
        part["segment"] = number
        if number and not _follows(segments[number - 1], segment):
            # the calls before these are lost: which of their spot they are is unknown
            begun = part["iteration"][:1]
            part = part[part["iteration"] != begun]
        parts.append(part)
    return np.concatenate(parts) if parts else np.zeros(0, ALIGNED)


def _follows(before: Segment, segment: Segment) -> bool:
    """Whether the calls of a segment's first iteration are all there."""
    beside = before.rank == segment.rank and before.index + 1 == segment.index
    return beside or not segment.continued


def _slots(table: npt.NDArray[Any], spots: Sequence[Site]) -> Int64:
    """The how-manieth call of its spot in its iteration each event is, ``[n]``.

    Calls whose rows differ in size count together: a micro-batch may be smaller.
    """
    plain: dict[Site, int] = {}
    place_of = np.array(
        [
            plain.setdefault(replace(s, dtype="", row_bytes=0, experts=0), len(plain))
            for s in spots
        ],
        np.int64,
    )
    if not len(table):
        return np.zeros(0, np.int64)
    keys = (place_of[table["site"]], table["iteration"], table["rank"])
    order = np.lexsort(keys)  # stable: the order of the calls is kept
    begins = np.ones(len(table), bool)
    begins[1:] = np.any([k[order][1:] != k[order][:-1] for k in keys], axis=0)
    starts = np.flatnonzero(begins)
    within = np.arange(len(table)) - starts[np.cumsum(begins) - 1]
    slots = np.empty(len(table), np.int64)
    slots[order] = within
    return slots


def out_of_step(events: Events) -> list[str]:
    """Where members count an occurrence as different collectives of their group.

    Sends and receives are not counted by the group and have sequence -1.
    """
    table = events.table
    told = table["sequence"] >= 0
    expected = events.occurrences.sequence[table["occurrence"]]
    wrong = np.flatnonzero(told & (expected != table["sequence"]))
    if not len(wrong):
        return []
    first = table[wrong[0]]
    return [
        f"iteration {first['iteration']}: rank {first['rank']} counts it as collective "
        f"{first['sequence']} of its group, another member as "
        f"{expected[wrong[0]]} ({len(wrong)} such events)"
    ]

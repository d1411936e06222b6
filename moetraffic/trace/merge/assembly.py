"""Assemble the recorded events of all ranks into occurrences of calls.

Events of two ranks belong to one occurrence if their site, call index and iteration are
equal.  The sequence number of the collective on its group, which each rank counts
separately, must then be equal as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.errors import CaptureError
from moetraffic.trace.model import Bool, Int32, Int64, Occurrences, Site
from moetraffic.trace.segments.record import Record, Table
from moetraffic.trace.segments.segment import Segment


@dataclass(frozen=True, kw_only=True)
class Events:
    """Events of all ranks, sorted by occurrence and member rank."""

    table: Table  # [n] RANK_EVENT
    sites: tuple[Site, ...]
    occurrences: Occurrences
    segments: Sequence[Segment]

    def of_site(self, site: int) -> slice:
        """Return the slice of events that belong to a call site."""
        first, last = np.searchsorted(self.table["site"], [site, site + 1])
        return slice(int(first), int(last))

    def sent_and_received(self, site: int, width: int) -> Int64:
        """Return bytes sent and received per all-to-all event, ``[n, 2, W]``."""
        mine = self.table[self.of_site(site)]
        out = np.zeros((len(mine), 2, width), np.int64)
        for number in np.unique(mine["segment"]):
            here = mine["segment"] == number
            out[here] = self.segments[number].splits[width][mine["payload"][here]]
        swapped = mine["transposed"] == 1
        out[swapped] = out[swapped][:, ::-1]
        return out

    def routed(self, site: int, experts: int) -> Int32:
        """Return token copies routed and dropped per routing event, ``[n, 2, E]``."""
        mine = self.table[self.of_site(site)]
        out = np.zeros((len(mine), 2, experts), np.int32)
        for number in np.unique(mine["segment"]):
            here = mine["segment"] == number
            out[here] = self.segments[number].demand[experts][mine["payload"][here]]
        return out

    def volumes(self, site: int) -> Int64:
        """Return the buffer bytes of each event of another collective, ``[n]``."""
        return np.asarray(self.table["payload"][self.of_site(site)], np.int64)

    def by_member(self, site: int, width: int, values: npt.NDArray[Any]) -> Any:
        """Arrange event values ``[n, ...]`` of a site as ``[occurrence, member, ...]``.

        Values that were not recorded are zero; the presence panel marks them as absent.
        """
        mine = self.table[self.of_site(site)]
        first, last = np.searchsorted(self.occurrences.site, [site, site + 1])
        out = np.zeros((last - first, width, *values.shape[1:]), values.dtype)
        out[mine["occurrence"] - first, mine["member"]] = values
        return out


def assemble_events(record: Record) -> Events:
    """Sort the events of all ranks into occurrences of calls.

    Parameters
    ----------
    record
        Events of all ranks, with numbered steps.

    Raises
    ------
    CaptureError
        If a rank ended one iteration twice.
    """
    _validate_one_capture(record)
    table = record.events[_whole_iterations(record)]
    slots = _call_index(table, record.sites)
    pairs, first, site = np.unique(
        table["site"].astype(np.int64) * (int(slots.max(initial=0)) + 1) + slots,
        return_index=True,
        return_inverse=True,
    )
    # sites are numbered by their first event in the table
    rank_of = np.empty(len(pairs), np.int64)
    rank_of[np.argsort(first)] = np.arange(len(pairs))
    sites = [
        replace(record.sites[table["site"][at]], slot=int(slots[at]))
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
        segments=record.segments,
    )


def _validate_one_capture(record: Record) -> None:
    steps = record.steps[["rank", "iteration"]]
    ended, count = np.unique(steps, return_counts=True)
    if (count > 1).any():
        rank, iteration = ended[count > 1][0].tolist()
        raise CaptureError(
            f"a rank ends an iteration once, but rank {rank} ended iteration "
            f"{iteration} twice: the folder holds segments of two captures, merge "
            "each separately"
        )


def _whole_iterations(record: Record) -> Bool:
    """Mask out the events of iterations whose first calls were lost.

    Call indices within such an iteration cannot be determined.
    """
    keep = np.ones(len(record.events), bool)
    edges = np.searchsorted(
        record.events["segment"], np.arange(len(record.segments) + 1)
    )
    for number in (np.flatnonzero(record.continued[1:]) + 1).tolist():
        before, segment = record.segments[number - 1], record.segments[number]
        if (before.rank, before.index + 1) == (segment.rank, segment.index):
            continue
        here = slice(edges[number], edges[number + 1])
        when = record.events["iteration"][here]
        keep[here] = ~np.isin(when, when[:1])
    return keep


def _call_index(table: Table, sites: Sequence[Site]) -> Int64:
    """Number each event among the calls of its site in its iteration, ``[n]``.

    Calls whose rows differ in size are counted together: a micro-batch may be smaller.
    """
    plain: dict[Site, int] = {}
    place_of = np.array(
        [
            plain.setdefault(replace(s, dtype="", row_bytes=0, experts=0), len(plain))
            for s in sites
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
    """Report events whose collective sequence number differs between members.

    Sends and receives are not counted and have sequence -1.
    """
    table = events.table
    counted = table["sequence"] >= 0
    expected = events.occurrences.sequence[table["occurrence"]]
    wrong = np.flatnonzero(counted & (expected != table["sequence"]))
    if not len(wrong):
        return []
    first = table[wrong[0]]
    return [
        f"iteration {first['iteration']}: rank {first['rank']} counts it as collective "
        f"{first['sequence']} of its group, another member as "
        f"{expected[wrong[0]]} ({len(wrong)} such events)"
    ]

"""Per-rank call sequences of a trace, with the bytes of each call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from moetraffic.trace import ALL_TO_ALL, UNKNOWN_TIME, Group, Site, Trace

from .call_selection import AT_ONCE, CallSelection, Int64, by_width

MESSAGE = "send_recv"


@dataclass(frozen=True, kw_only=True, eq=False)
class ProgramCall:
    """One rank's part of a collective call or message."""

    number: int  # index of the call among all exported ones, equal on all members
    iteration: int
    site: Site
    group: Group
    member: int  # group rank of this rank
    bytes: Int64  # [W, W] of an all-to-all, row sends; else [W] buffers of members
    issue_ns: int  # of rank 0's clock, or UNKNOWN_TIME
    end_ns: int

    @property
    def ends(self) -> tuple[int, int]:
        """World ranks that send and receive a message, (-1, -1) where unknown."""
        if min(self.site.peers) < 0:
            return -1, -1
        source, destination = self.site.peers
        return self.group.ranks[source], self.group.ranks[destination]


def programs(
    trace: Trace, chosen: CallSelection
) -> Iterator[tuple[int, list[ProgramCall]]]:
    """Iterate over the calls of each rank in blocks of iterations.

    Parameters
    ----------
    trace
        Any.
    chosen
        The calls to export.

    Yields
    ------
    int, list of ProgramCall
        A rank and its next calls, in issue order.  Each rank is yielded once per block
        of iterations.
    """
    number = np.full(len(trace.occurrences), -1, np.int64)
    number[chosen.occurrences] = np.arange(len(chosen.occurrences))
    when = trace.occurrences.iteration
    orders: dict[int, Int64] = {}
    for rank in range(trace.meta.world):
        order = trace.order(rank)
        orders[rank] = order[number[order] >= 0]
    for first, last in _blocks(trace, chosen.occurrences):
        here = chosen.occurrences[
            (when[chosen.occurrences] >= first) & (when[chosen.occurrences] < last)
        ]
        read = _Read(trace, here)
        for rank, order in orders.items():
            mine = order[(when[order] >= first) & (when[order] < last)]
            calls = [read.call(o, rank, int(number[o])) for o in mine.tolist()]
            yield rank, [c for c in calls if _takes_part(c)]


def _takes_part(call: ProgramCall) -> bool:
    if call.site.operation != MESSAGE or min(call.site.peers) < 0:
        return True
    return call.member in call.site.peers


def _blocks(trace: Trace, occurrences: Int64) -> Iterator[tuple[int, int]]:
    """Yield half-open iteration ranges of blocks that fit into memory."""
    iterations, count = np.unique(
        trace.occurrences.iteration[occurrences], return_counts=True
    )
    widest = max(len(g.ranks) for g in trace.groups)
    step = max(1, AT_ONCE // (int(count.max()) * widest * widest))
    for begin in range(0, len(iterations), step):
        part = iterations[begin : begin + step]
        yield int(part[0]), int(part[-1]) + 1


class _Read:
    """Bytes and times of a block of calls, read at once."""

    def __init__(self, trace: Trace, occurrences: Int64) -> None:
        self._trace = trace
        self._bytes: dict[int, Int64] = {}
        self._times: dict[int, tuple[Int64, Int64]] = {}
        square = np.array([s.operation == ALL_TO_ALL for s in trace.sites], bool)
        for at in by_width(trace, occurrences):
            issue, _, end = trace.times(occurrences[at])
            for n, occurrence in enumerate(occurrences[at].tolist()):
                self._times[occurrence] = issue[n], end[n]
            for asked in (True, False):
                these = occurrences[at]
                these = these[square[trace.occurrences.site[these]] == asked]
                if len(these):
                    told = trace.wire(these) if asked else trace.volume(these)
                    self._bytes |= dict(zip(these.tolist(), told, strict=True))

    def call(self, occurrence: int, rank: int, number: int) -> ProgramCall:
        trace = self._trace
        site = trace.sites[trace.occurrences.site[occurrence]]
        group = trace.groups[site.group]
        member = group.ranks.index(rank)
        issue, end = self._times[occurrence]
        return ProgramCall(
            number=number,
            iteration=int(trace.occurrences.iteration[occurrence]),
            site=site,
            group=group,
            member=member,
            bytes=self._bytes[occurrence],
            issue_ns=int(issue[member]),
            end_ns=int(end[member]),
        )


def lasts(call: ProgramCall) -> int:
    """Return the duration of a rank's call in ns; UNKNOWN_TIME if unknown."""
    if UNKNOWN_TIME in (call.issue_ns, call.end_ns):
        return UNKNOWN_TIME
    return max(0, call.end_ns - call.issue_ns)

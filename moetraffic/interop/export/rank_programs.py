"""Per-rank call sequences of a trace, with the bytes of each call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.trace import UNKNOWN_TIME, Group, Site, Trace

from .call_selection import AT_ONCE, CallSelection, by_width

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

    @property
    def duration_ns(self) -> int:
        """Duration of the rank's part, UNKNOWN_TIME if unknown."""
        if UNKNOWN_TIME in (self.issue_ns, self.end_ns):
            return UNKNOWN_TIME
        return max(0, self.end_ns - self.issue_ns)


def programs(
    trace: Trace, chosen: CallSelection
) -> Iterator[tuple[int, list[ProgramCall]]]:
    """Iterate over the calls of each rank in blocks of iterations.

    Yields
    ------
    int, list of ProgramCall
        A rank and its next calls, in issue order.  Each rank is yielded once per block.
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
        block = _read(trace, here)
        for rank, order in orders.items():
            mine = order[(when[order] >= first) & (when[order] < last)]
            calls = []
            for at in mine.tolist():
                site = trace.sites[trace.occurrences.site[at]]
                member = trace.groups[site.group].ranks.index(rank)
                known = site.operation == MESSAGE and min(site.peers) >= 0
                if known and member not in site.peers:
                    continue  # not this rank's message
                sent, issue, end = block[at]
                calls.append(
                    ProgramCall(
                        number=int(number[at]),
                        iteration=int(when[at]),
                        site=site,
                        group=trace.groups[site.group],
                        member=member,
                        bytes=sent,
                        issue_ns=int(issue[member]),
                        end_ns=int(end[member]),
                    )
                )
            yield rank, calls


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


def _read(trace: Trace, occurrences: Int64) -> dict[int, tuple[Int64, Int64, Int64]]:
    """Read bytes, issue and end times of a block of calls at once, by occurrence."""
    found: dict[int, tuple[Int64, Int64, Int64]] = {}
    for at in by_width(trace, occurrences):
        alike = trace.square[trace.occurrences.site[occurrences[at]]]
        for read, asked in ((trace.wire, alike), (trace.volume, ~alike)):
            these = occurrences[at][asked]
            if len(these):
                issue, _, end = trace.times(these)
                parts = zip(read(these), issue, end, strict=True)
                found |= dict(zip(these.tolist(), parts, strict=True))
    return found

"""Columns of a replay plan under construction, and the program of one rank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moetraffic.replay.scale.rescaling import Scale
from moetraffic.replay.scratch_file import scratch_array
from moetraffic.trace.model import ALL_TO_ALL, Bool, Int32, Int64, Site
from moetraffic.trace.trace import Trace

from .background import BackgroundTraffic
from .issue_order import IssueOrder, dependencies, rank_order
from .program import EXPERTS, KINDS, Int8, Program
from .selection import MESSAGE
from .sizes import buffers

_SQUARE = KINDS.index(ALL_TO_ALL)


class OperationTable:
    """Columns of a replay plan under construction, for n operations."""

    def __init__(
        self,
        trace: Trace,
        occurrence: Int64,
        scale: Scale | None,
        background: BackgroundTraffic | None,
    ) -> None:
        own = [tuple(sorted(g.ranks)) for g in trace.groups]
        kinds = [g.kind or "other" for g in trace.groups]
        sites = list(trace.sites)
        if scale is not None:
            own = list(scale.groups)
        ends = [_ends(trace, s, own, scale) for s in sites]
        iteration = trace.occurrences.iteration[occurrence]
        site = trace.occurrences.site[occurrence]
        if background is not None:
            first, every = len(sites), np.unique(iteration)
            for one in background.operations:
                group = len(own) + one.group
                sites.append(replace(one.site, group=group, operation=one.kind))
                ends.append((one.sender, one.receiver))
            own += background.groups
            kinds += background.group_kinds
            each = np.arange(len(background.operations), dtype=np.int32)
            iteration = np.concatenate([iteration, np.repeat(every, len(each))])
            site = np.concatenate([site, np.tile(first + each, len(every))])
        count = len(iteration)
        self.captured = len(occurrence)  # the other operations are background
        self.groups = tuple(own)
        self.sites = tuple(sites)
        self.iteration = iteration
        self.site = site.astype(np.int32, copy=False)
        self.occurrence = np.full(count, -1, np.int64)
        self.occurrence[: len(occurrence)] = occurrence
        # properties of a site hold for each of its operations
        used = np.unique(self.site)
        group_of = np.array([s.group for s in sites], np.int32)
        number = {name: n for n, name in enumerate(KINDS)}
        kind_of = np.array([number.get(s.operation, 0) for s in sites], np.int8)
        experts = {sites[s].group for s in used if sites[s].operation == ALL_TO_ALL}
        names = [EXPERTS]
        stream_of_group = np.zeros(len(own), np.int8)
        for group in sorted({sites[s].group for s in used} - experts):
            if kinds[group] not in names:
                names.append(kinds[group])
            stream_of_group[group] = names.index(kinds[group])
        self.streams = tuple(names)
        self.kind: Int8 = kind_of[self.site]
        self.group: Int32 = group_of[self.site]
        self.stream: Int8 = stream_of_group[self.group]
        both = np.array(ends, np.int32).reshape(-1, 2)
        self.sender: Int32 = both[self.site, 0]
        self.receiver: Int32 = both[self.site, 1]
        self.width = np.array([len(g) for g in own], np.int64)[self.group]
        self.size = np.zeros(count, np.int64)
        if background is not None:
            added = np.array([o.size for o in background.operations], np.int64)
            self.size[self.captured :] = np.tile(added, len(every))
        self.total_bytes = np.zeros(count, np.int64)
        self.network_bytes = np.zeros(count, np.int64)
        self.bottleneck_bytes = np.zeros(count, np.int64)
        self.largest_bytes = np.zeros(count, np.int64)
        self.checksum = np.zeros(count, np.uint32)

    def of_rank(self, rank: int) -> Bool:
        """Mask of the operations in which a rank takes part, ``[n]`` bool."""
        inside = np.array([rank in g for g in self.groups], bool)[self.group]
        message = self.kind == KINDS.index(MESSAGE)
        ends = (self.sender == rank) | (self.receiver == rank)
        return np.asarray(np.where(message, ends, inside), bool)


def _ends(
    trace: Trace, site: Site, groups: list[tuple[int, ...]], scale: Scale | None
) -> tuple[int, int]:
    """Find sender and receiver, as replay ranks, of a site's operations; -1 for none.

    A trace does not record the root of a broadcast, reduce, gather or scatter: the
    lowest rank of the group is used.
    """
    if site.operation == MESSAGE and min(site.peers) >= 0:
        ranks = [trace.groups[site.group].ranks[p] for p in site.peers]
        one, other = ranks if scale is None else [scale.rank(r) for r in ranks]
        return one, other
    root = min(groups[site.group], default=-1)
    if site.operation in ("broadcast", "scatter"):
        return root, -1
    if site.operation in ("reduce", "gather"):
        return -1, root
    return -1, -1


class ProgramBuilder:
    """Builder of one rank's replay program; all-to-all bytes are added in blocks.

    Parameters
    ----------
    rank
        A rank of the replay.
    table
        Columns of the plan; sizes may still be missing.
    times
        Captured issue times.
    """

    def __init__(self, rank: int, table: OperationTable, times: IssueOrder) -> None:
        mine = np.flatnonzero(table.of_rank(rank))
        captured = mine[mine < table.captured]
        order = np.concatenate(
            [
                rank_order(times, rank, captured, table.iteration),
                mine[mine >= table.captured],
            ]
        )
        # background traffic comes last in its iteration
        order = order[np.argsort(table.iteration[order], kind="stable")]
        self._rank = rank
        self._operation = order
        self._square = table.kind[order] == _SQUARE
        cells = np.where(self._square, table.width[order], 0)
        self._first = np.concatenate([[0], np.cumsum(cells)]).astype(np.int64)
        self._place = np.full(len(table.kind), -1, np.int64)
        self._place[order] = np.arange(len(order))
        self._send = scratch_array(int(self._first[-1]), np.int64)
        self._receive = scratch_array(int(self._first[-1]), np.int64)
        self._sizes = np.zeros((2, len(order)), np.int64)
        self._times = times

    def add_matrices(self, at: Int64, members: Int64, wire: Int64) -> None:
        """Copy this rank's row and column from the byte matrices of some operations."""
        here, member = np.nonzero(members == self._rank)
        place = self._place[at[here]]
        into = self._first[place][:, None] + np.arange(wire.shape[1])
        self._send[into] = wire[here, member, :]
        self._receive[into] = wire[here, :, member]
        self._sizes[0, place] = wire[here, member, :].sum(axis=1)
        self._sizes[1, place] = wire[here, :, member].sum(axis=1)

    def build(self, table: OperationTable) -> Program:
        """Build the rank's program; the sizes of all operations must be known."""
        order, rank = self._operation, self._rank
        kind = table.kind[order]
        for number, name in enumerate(KINDS):
            at = np.flatnonzero(kind == number)
            if number != _SQUARE and len(at):
                of = order[at]
                self._sizes[:, at] = buffers(
                    name,
                    table.size[of],
                    table.width[of],
                    rank,
                    table.sender[of],
                    table.receiver[of],
                )
        message = kind == KINDS.index(MESSAGE)
        stream, group = table.stream[order], table.group[order]
        return Program(
            rank=rank,
            operation=order,
            group=group,
            stream=stream,
            kind=kind,
            send_size=self._sizes[0],
            receive_size=self._sizes[1],
            first=self._first,
            send_bytes=self._send,
            receive_bytes=self._receive,
            **dependencies(
                self._times,
                rank,
                order,
                stream=stream,
                group=group,
                message=message,
                sent=message & (table.sender[order] == rank),
            ),
        )

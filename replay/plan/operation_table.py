"""Operations of a replay plan under construction, in columns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moetraffic.arrays import Bool, Int8, Int32, Int64
from moetraffic.trace.model import ALL_TO_ALL, Site
from moetraffic.trace.trace import Trace

from .background import BackgroundTraffic
from .program import EXPERTS, KINDS
from .selection import MESSAGE


class OperationTable:
    """Columns of a replay plan under construction, for n operations."""

    def __init__(
        self,
        trace: Trace,
        occurrence: Int64,
        background: BackgroundTraffic | None,
    ) -> None:
        own = [tuple(sorted(g.ranks)) for g in trace.groups]
        kinds = [g.kind or "other" for g in trace.groups]
        sites = list(trace.sites)
        ends = [_ends(trace, s) for s in sites]
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
        self.critical = np.zeros(count, bool)  # of the background
        self.place = np.zeros(0)  # [n - captured] of the background
        if background is not None:
            repeat = len(every)
            added = background.operations
            self.critical[self.captured :] = np.tile(
                [o.critical for o in added], repeat
            )
            self.place = np.tile([o.place for o in added], repeat)
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
            self.size[self.captured :] = np.tile([o.size for o in added], len(every))
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


def _ends(trace: Trace, site: Site) -> tuple[int, int]:
    """Find sender and receiver, as world ranks, of a site's operations; -1 for none.

    A trace does not record the root of a broadcast, reduce, gather or scatter: the
    lowest rank of the group is used.
    """
    if site.operation == MESSAGE and min(site.peers) >= 0:
        sender, receiver = (trace.groups[site.group].ranks[p] for p in site.peers)
        return sender, receiver
    root = min(trace.groups[site.group].ranks)
    if site.operation in ("broadcast", "scatter"):
        return root, -1
    if site.operation in ("reduce", "gather"):
        return -1, root
    return -1, -1

"""Plan the replay of a trace, without importing torch.

A plan holds the operations of a trace, or of a part of it, in the order of the trace,
and a *program* for each requested rank: its operations in issue order, with its bytes.
A plan depends on the trace, the scale and the background traffic alone, so all ranks
make the same plan and compare its digest.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from moetraffic.errors import ReplayError
from moetraffic.replay.scale.rescaling import Scale
from moetraffic.trace.model import ALL_TO_ALL, Bool, Int32, Int64, Site
from moetraffic.trace.trace import Trace

from .background import BackgroundTraffic
from .issue_order import read_issue_order
from .program import EXPERTS, KINDS, Int8, Plan
from .program_builder import ProgramBuilder
from .selection import MESSAGE, select_operations
from .sizes import sizes, traffic_bytes, volumes

_BLOCK_BYTES = 8 << 20  # of wire matrices read at a time


def make_plan(
    trace: Trace,
    *,
    world: int | None = None,
    ranks: Collection[int] | None = None,
    iterations: range | None = None,
    layers: Collection[int] | None = None,
    dense: bool = True,
    scale: Scale | None = None,
    background: BackgroundTraffic | None = None,
) -> Plan:
    """Make the replay plan of a trace: its operations, and a program per rank.

    Parameters
    ----------
    trace
        The trace to replay.
    world
        Number of ranks to replay on; None for the number after ``scale``.
    ranks
        Ranks whose programs to make; None for all.
    iterations
        Iterations to replay; None for all.
    layers
        Layers to replay; operations without a layer are always replayed; None for all.
    dense
        Whether to replay operations of the trace other than all-to-alls.
    scale
        Converts ranks and bytes of the trace; None leaves them.
    background
        Dense operations to add to each iteration.

    Raises
    ------
    ReplayError
        If the number of ranks differs from the trace's, there is nothing to replay, or
        the record of an operation's member is missing.
    TraceError
        If the bytes of an all-to-all are unknown, or the file is damaged.
    """
    ranks_of = trace.meta.world if scale is None else scale.world
    _check_world(trace, world, ranks_of)
    selected = select_operations(
        trace, iterations=iterations, layers=layers, dense=dense, scale=scale
    )
    table = _Table(trace, selected.occurrence, scale, background)
    requested = range(ranks_of) if ranks is None else ranks
    times = read_issue_order(trace, selected.occurrence, requested, scale)

    # Step 1: the order of each requested rank, and arrays for its bytes
    builders = {r: ProgramBuilder(r, table, times) for r in requested}

    # Step 2: all matrices and sizes, once
    hashed = hashlib.sha256(_heading(ranks_of, table, scale, background))
    rank_bytes = np.zeros(ranks_of, np.int64)
    for at, wire in _matrices(trace, selected.occurrence, table, scale):
        for part in (table.iteration[at], table.site[at], wire):
            hashed.update(part.astype(part.dtype.newbyteorder("<")).tobytes())
        table.checksum[at] = [zlib.crc32(matrix.tobytes()) for matrix in wire]
        off = wire * ~np.eye(wire.shape[1], dtype=bool)
        table.size[at] = table.total[at] = wire.sum(axis=(1, 2))
        table.network[at] = off.sum(axis=(1, 2))
        table.bottleneck[at] = _largest(off)
        table.largest[at] = _largest(wire)
        members = np.array([table.groups[g] for g in table.group[at]], np.int64)
        np.add.at(rank_bytes, members, wire.sum(axis=2))
        for builder in builders.values():
            builder.add_matrices(at, members, wire)
    dense_at = np.flatnonzero(table.kind != KINDS.index(ALL_TO_ALL))
    padded = _size_dense(trace, selected.occurrence, table, dense_at, scale)
    _sum_dense(table, dense_at, rank_bytes)
    for part in (table.iteration, table.site, table.size, table.sender, table.receiver):
        of = part[dense_at]
        hashed.update(of.astype(of.dtype.newbyteorder("<")).tobytes())
    programs = {r: b.build(table) for r, b in builders.items()}

    return Plan(
        source=trace.name,
        world=ranks_of,
        groups=table.groups,
        streams=table.streams,
        sites=table.sites,
        occurrence=table.occurrence,
        iteration=table.iteration,
        site=table.site,
        kind=table.kind,
        group=table.group,
        stream=table.stream,
        sender=table.sender,
        receiver=table.receiver,
        size=table.size,
        total_bytes=table.total,
        network_bytes=table.network,
        bottleneck_bytes=table.bottleneck,
        largest_bytes=table.largest,
        rank_bytes=rank_bytes,
        checksum=table.checksum,
        digest=hashed.hexdigest(),
        left_out=selected.left_out,
        notes=padded if scale is None else (*scale.describe(), *padded),
        programs=programs,
    )


class _Table:
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
        self.captured = len(
            occurrence
        )  # operations of the trace; the rest is background
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
        self.total, self.network = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.bottleneck = np.zeros(count, np.int64)
        self.largest = np.zeros(count, np.int64)
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


def _matrices(
    trace: Trace, chosen: Int64, table: _Table, scale: Scale | None
) -> Iterator[tuple[Int64, Int64]]:
    """Yield indices and byte matrices ``[b, W, W]`` of all-to-alls, ranks ascending."""
    ascending = [np.argsort(g.ranks) for g in trace.groups]
    width = np.array([len(g.ranks) for g in trace.groups], np.int64)
    square = table.kind[: len(chosen)] == KINDS.index(ALL_TO_ALL)
    group = table.group[: len(chosen)]
    # rescaling may give different sizes to groups of equal size
    key = width[group] if scale is None else group.astype(np.int64)
    for one in np.unique(key[square]).tolist():
        same = np.flatnonzero(square & (key == one))
        size = one if scale is None else int(width[one])
        step = max(1, _BLOCK_BYTES // (8 * size**2))
        for begin in range(0, len(same), step):
            at = same[begin : begin + step]
            wire = trace.wire(chosen[at])
            if wire.min() < 0:
                raise ReplayError(
                    "bytes of an all-to-all cannot be negative, but the smallest in "
                    f"{trace.name} is {int(wire.min())}: capture the run again"
                )
            into = np.array([ascending[g] for g in group[at]], np.int64)
            wire = np.take_along_axis(wire, into[:, :, None], axis=1)
            wire = np.take_along_axis(wire, into[:, None, :], axis=2)
            if scale is not None:
                wire = scale.matrices(one, wire, chosen[at])
            yield at, wire


def _size_dense(
    trace: Trace, chosen: Int64, table: _Table, dense: Int64, scale: Scale | None
) -> tuple[str, ...]:
    """Set the size S of captured dense operations; return notes on padded gathers."""
    captured = dense[dense < len(chosen)]
    unequal = more = 0
    for _, kind, at, nbytes in volumes(trace, chosen[captured], scale):
        size = sizes(kind, nbytes)
        table.size[captured[at]] = size
        if kind in ("all_gather", "gather"):
            over = size * nbytes.shape[1] - nbytes.sum(axis=1)
            unequal += int(np.count_nonzero(over))
            more += int(over.sum())
    if not unequal:
        return ()
    return (
        f"{unequal} gathers of unequal parts are replayed with parts of the largest "
        f"size, {more} bytes more",
    )


def _sum_dense(table: _Table, dense: Int64, rank_bytes: Int64) -> None:
    """Set byte totals of dense operations, and add the bytes that each rank sends."""
    kind, size, width = table.kind[dense], table.size[dense], table.width[dense]
    sender, receiver = table.sender[dense], table.receiver[dense]
    network, busiest, largest = traffic_bytes(kind, size, width, sender == receiver)
    table.network[dense] = table.total[dense] = network
    table.bottleneck[dense], table.largest[dense] = busiest, largest
    rows = np.stack([kind, size, sender, receiver], axis=1).astype("<i8")
    unique, which = np.unique(rows, axis=0, return_inverse=True)
    sums = np.array([zlib.crc32(row.tobytes()) for row in unique], np.uint32)
    if len(unique):
        table.checksum[dense] = sums[which.ravel()]
    of = table.group[dense]
    for group in np.unique(of).tolist():
        members = np.array(table.groups[group], np.int64)
        here = of == group
        by_sender = here & (sender >= 0) & (kind != KINDS.index("broadcast"))
        np.add.at(rank_bytes, sender[by_sender], network[by_sender])
        gathered = here & (kind == KINDS.index("gather"))
        for root in np.unique(receiver[gathered]).tolist():
            part = int(size[gathered & (receiver == root)].sum())
            rank_bytes[members[members != root]] += part
        shared = int(network[here & ~by_sender & ~gathered].sum())
        rank_bytes[members] += shared // len(members)
        rank_bytes[members[: shared % len(members)]] += 1


def _largest(wire: Int64) -> Int64:
    """Compute the largest row or column sum of each byte matrix, ``[b]`` int64."""
    largest: Int64 = np.maximum(
        wire.sum(axis=2).max(axis=1), wire.sum(axis=1).max(axis=1)
    )
    return largest


def _heading(
    world: int, table: _Table, scale: Scale | None, background: BackgroundTraffic | None
) -> bytes:
    sites = [
        (s.group, s.operation, s.phase, s.layer, s.direction, s.slot)
        for s in table.sites
    ]
    changed = (
        scale.identity if scale is not None else "",
        background.identity if background is not None else "",
    )
    return repr((world, table.groups, table.streams, sites, changed)).encode()


def _check_world(trace: Trace, world: int | None, ranks: int) -> None:
    if world is not None and world != ranks:
        raise ReplayError(
            "a trace is replayed on as many ranks as it has, but "
            f"{trace.name} has {ranks} and there are {world}: "
            f"start {ranks} ranks (--nproc {ranks}), or map them with --fold, "
            "--expand, --ranks or --rank-map"
        )

"""Plan the replay of a trace, without importing torch.

A plan holds the operations of a trace, or of a part of it, in the order of the trace,
and a *program* for each requested rank: its operations in issue order, with its bytes.
A plan depends on the trace and the background traffic alone, so all ranks make the same
plan and compare its digest.  Other ranks or bytes than the trace's are another trace:
:func:`moetraffic.trace.what_if.rescale.rescale`.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Collection
from dataclasses import fields

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import ReplayError
from moetraffic.patterns.collectives import sizes, traffic_bytes
from moetraffic.trace.model import ALL_TO_ALL
from moetraffic.trace.trace import Trace

from .background import BackgroundTraffic
from .operation_table import OperationTable
from .program import KINDS, Plan
from .program_builder import ProgramBuilder, read_issue_order
from .selection import select_operations
from .sizes import exchange_matrices, volumes


def make_plan(
    trace: Trace,
    *,
    world: int | None = None,
    ranks: Collection[int] | None = None,
    iterations: range | None = None,
    layers: Collection[int] | None = None,
    dense: bool = True,
    background: BackgroundTraffic | None = None,
    in_common: bool = False,
) -> Plan:
    """Make the replay plan of a trace: its operations, and a program per rank.

    Parameters
    ----------
    trace
        The trace to replay.
    world
        Number of ranks to replay on; None for the trace's.
    ranks
        Ranks whose programs to make; None for all.
    iterations
        Iterations to replay; None for all.
    layers
        Layers to replay; operations without a layer are always replayed; None for all.
    dense
        Whether to replay operations of the trace other than all-to-alls.
    background
        Dense operations to add to each iteration; see :mod:`.background_order`.  All
        ranks follow one order then.
    in_common
        Whether all ranks follow one order of all operations, which keeps the order of
        each rank where these agree, instead of each rank its own.

    Raises
    ------
    ReplayError
        If the number of ranks differs from the trace's, there is nothing to replay, or
        the record of an operation's member is missing.
    TraceError
        If the bytes of an all-to-all are unknown, or the file is damaged.
    """
    ranks_of = trace.meta.world
    if world is not None and world != ranks_of:
        raise ReplayError(
            "a trace is replayed on as many ranks as it has, but "
            f"{trace.name} has {ranks_of} and there are {world}: "
            f"start {ranks_of} ranks (--nproc {ranks_of}), or map them with --fold, "
            "--expand, --ranks or --rank-map"
        )
    chosen, left_out = select_operations(
        trace, iterations=iterations, layers=layers, dense=dense
    )
    table = OperationTable(trace, chosen, background)
    requested = range(ranks_of) if ranks is None else ranks
    hashed = hashlib.sha256(_heading(ranks_of, table, background))
    times = read_issue_order(
        trace,
        chosen,
        requested,
        in_common=in_common or background is not None,
        digest=hashed,
    )

    # Step 1: the order of each requested rank, and arrays for its bytes
    builders = {r: ProgramBuilder(r, table, times) for r in requested}

    # Step 2: all matrices and sizes, once
    rank_bytes = np.zeros(ranks_of, np.int64)
    for at, members, wire in exchange_matrices(trace, table):
        for part in (table.iteration[at], table.site[at], wire):
            hashed.update(part.astype(part.dtype.newbyteorder("<")).tobytes())
        table.checksum[at] = [zlib.crc32(matrix.tobytes()) for matrix in wire]
        off = wire * ~np.eye(wire.shape[1], dtype=bool)
        table.size[at] = table.total_bytes[at] = wire.sum(axis=(1, 2))
        table.network_bytes[at] = off.sum(axis=(1, 2))
        table.bottleneck_bytes[at] = _largest(off)
        table.largest_bytes[at] = _largest(wire)
        np.add.at(rank_bytes, members, wire.sum(axis=2))
        for builder in builders.values():
            builder.add_matrices(at, members, wire)
    dense_at = np.flatnonzero(table.kind != KINDS.index(ALL_TO_ALL))
    padded = _size_dense(trace, chosen, table, dense_at)
    _sum_dense(table, dense_at, rank_bytes)
    for name in ("iteration", "site", "size", "sender", "receiver"):
        of = getattr(table, name)[dense_at]
        hashed.update(of.astype(of.dtype.newbyteorder("<")).tobytes())
    programs = {r: b.build(table) for r, b in builders.items()}

    made = vars(table)
    return Plan(
        **{f.name: made[f.name] for f in fields(Plan) if f.name in made},
        source=trace.name,
        world=ranks_of,
        first=min(trace.iterations.tolist(), default=-1),
        rank_bytes=rank_bytes,
        digest=hashed.hexdigest(),
        left_out=left_out,
        notes=padded,
        programs=programs,
    )


def _size_dense(
    trace: Trace, chosen: Int64, table: OperationTable, dense: Int64
) -> tuple[str, ...]:
    """Set the size S of captured dense operations; return notes on padded gathers."""
    captured = dense[dense < len(chosen)]
    unequal = more = 0
    for kind, at, nbytes in volumes(trace, chosen[captured]):
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


def _sum_dense(table: OperationTable, dense: Int64, rank_bytes: Int64) -> None:
    """Set byte totals of dense operations, and add the bytes that each rank sends."""
    kind, size, width = table.kind[dense], table.size[dense], table.width[dense]
    sender, receiver = table.sender[dense], table.receiver[dense]
    moved = np.zeros((3, len(kind)), np.int64)
    for number in np.unique(kind).tolist():
        of = kind == number
        alone = (sender == receiver)[of]
        moved[:, of] = traffic_bytes(KINDS[number], size[of], width[of], alone)
    network, busiest, largest = moved
    table.network_bytes[dense] = table.total_bytes[dense] = network
    table.bottleneck_bytes[dense], table.largest_bytes[dense] = busiest, largest
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
    world: int,
    table: OperationTable,
    background: BackgroundTraffic | None,
) -> bytes:
    sites = [
        (s.group, s.operation, s.phase, s.layer, s.direction, s.slot)
        for s in table.sites
    ]
    added = background.identity if background is not None else ""
    return repr((world, table.groups, table.streams, sites, added)).encode()

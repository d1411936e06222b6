"""From a trace to what each rank has to do; nothing of it needs torch.

A plan holds the all-to-alls of a trace, or of a range of its iterations, in the
trace's order, and for each rank asked for its *program*: the operations in the order in
which that rank issued them, with the bytes it sends to and receives from each member.
Ranks of a group are in ascending order here, as ``torch.distributed.new_group`` sorts
them; rows and columns follow.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.errors import ReplayError
from moetraffic.trace.model import ALL_TO_ALL, ROUTING, Int32, Int64, Site
from moetraffic.trace.trace import Trace

UInt32 = npt.NDArray[np.uint32]

_BLOCK_BYTES = 8 << 20  # of wire matrices read at a time


@dataclass(frozen=True, kw_only=True)
class Program:
    """What one rank does: N operations, in order."""

    rank: int
    operation: Int64  # [N] index into the plan's operations
    group: Int32  # [N] index into the plan's groups
    first: Int64  # [N + 1] where an operation's bytes begin in the two arrays below
    send_bytes: Int64  # [first[N]] to each member of the group, in ascending order
    receive_bytes: Int64  # [first[N]] from each member

    def __len__(self) -> int:
        return len(self.operation)

    def sends(self, n: int) -> Int64:
        """Bytes to each member in the n-th operation, ``[W]`` int64."""
        return self.send_bytes[self.first[n] : self.first[n + 1]]

    def receives(self, n: int) -> Int64:
        """Bytes from each member in the n-th operation, ``[W]`` int64."""
        return self.receive_bytes[self.first[n] : self.first[n + 1]]

    @property
    def buffer_bytes(self) -> tuple[int, int]:
        """Largest send and receive buffer that an operation needs."""
        if not len(self):
            return 0, 0
        sums = (
            np.add.reduceat(b, self.first[:-1])
            for b in (self.send_bytes, self.receive_bytes)
        )
        send, receive = (int(s.max()) for s in sums)
        return send, receive


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The all-to-alls of a trace, n operations in the trace's order, for all ranks."""

    source: str  # the trace
    world: int  # ranks R
    groups: tuple[tuple[int, ...], ...]  # world ranks, ascending; index as in the trace
    sites: tuple[Site, ...]  # of the trace
    occurrence: Int64  # [n] index into the trace's occurrences
    iteration: Int64  # [n]
    site: Int32  # [n] index into sites
    total_bytes: Int64  # [n] all bytes, also those that a rank sends to itself
    network_bytes: Int64  # [n] bytes between different ranks
    bottleneck_bytes: Int64  # [n] largest row or column sum without the diagonal
    largest_bytes: Int64  # [n] largest row or column sum
    rank_bytes: Int64  # [R] bytes that each rank sends, itself included
    checksum: UInt32  # [n] CRC-32 of each operation's matrix
    digest: str  # SHA-256 over all of it, in hexadecimal
    left_out: Mapping[str, int]  # other collectives of the trace, by operation
    programs: Mapping[int, Program]  # of the ranks asked for

    def __len__(self) -> int:
        return len(self.occurrence)

    def name(self, operation: int) -> str:
        """An operation in words, for people."""
        site = self.sites[int(self.site[operation])]
        parts = [f"iteration {int(self.iteration[operation])}"]
        if site.layer >= 0:
            parts.append(f"layer {site.layer}")
        parts.append(site.phase or site.label or site.operation)
        if site.direction == "recompute":
            parts.append("recomputed")
        parts.append(f"micro-batch {site.slot}" if site.phase else f"call {site.slot}")
        return ", ".join(parts)


def make_plan(
    trace: Trace,
    *,
    world: int | None = None,
    ranks: Collection[int] | None = None,
    iterations: range | None = None,
) -> Plan:
    """Plan the replay of a trace's all-to-alls.

    Parameters
    ----------
    trace
        What to replay.
    world
        Ranks to replay on; None is the trace's own number.
    ranks
        Whose programs to make; None for all.
    iterations
        Iterations to replay; None for all.

    Raises
    ------
    ReplayError
        If the ranks differ from the trace's, there is nothing to replay, or a member
        of an all-to-all is absent.
    TraceError
        If the bytes of an all-to-all are not known, or the file is damaged.
    """
    _refuse_other_world(trace, world)
    chosen = _chosen(trace, iterations)
    ranks = range(trace.meta.world) if ranks is None else ranks
    groups = tuple(tuple(sorted(g.ranks)) for g in trace.groups)
    site = trace.occurrences.site[chosen]
    group = np.array([s.group for s in trace.sites], np.int32)[site]
    width = np.array([len(g) for g in groups], np.int64)[group]

    # Step 1: each asked rank's order, and room for its bytes
    drafts = {r: _draft(trace, chosen, group, width, r) for r in ranks}

    # Step 2: all matrices, once
    hashed = hashlib.sha256(_heading(trace, groups))
    sums = np.zeros((4, len(chosen)), np.int64)
    rank_bytes = np.zeros(trace.meta.world, np.int64)
    checksum = np.zeros(len(chosen), np.uint32)
    for at, wire in _matrices(trace, chosen, width, groups, group):
        for part in (trace.occurrences.iteration[chosen[at]], site[at], wire):
            hashed.update(part.astype(part.dtype.newbyteorder("<")).tobytes())
        checksum[at] = [zlib.crc32(matrix.tobytes()) for matrix in wire]
        off = wire * ~np.eye(wire.shape[1], dtype=bool)
        sums[0, at] = wire.sum(axis=(1, 2))
        sums[1, at] = off.sum(axis=(1, 2))
        sums[2, at] = _largest(off)
        sums[3, at] = _largest(wire)
        members = np.array([groups[g] for g in group[at]], np.int64)
        np.add.at(rank_bytes, members, wire.sum(axis=2))
        for draft in drafts.values():
            draft.take(at, members, wire)

    return Plan(
        source=trace.name,
        world=trace.meta.world,
        groups=groups,
        sites=trace.sites,
        occurrence=chosen,
        iteration=trace.occurrences.iteration[chosen],
        site=site,
        total_bytes=sums[0],
        network_bytes=sums[1],
        bottleneck_bytes=sums[2],
        largest_bytes=sums[3],
        rank_bytes=rank_bytes,
        checksum=checksum,
        digest=hashed.hexdigest(),
        left_out=_left_out(trace, iterations),
        programs={r: d.program for r, d in drafts.items()},
    )


class _Draft:
    """A rank's program while its bytes are being read."""

    def __init__(self, program: Program, slot: Int64) -> None:
        self.program = program
        self._slot = slot  # [n] place of an operation in the program, -1 for none

    def take(self, at: Int64, members: Int64, wire: Int64) -> None:
        """Copy this rank's row and column of some operations' matrices."""
        rank = self.program.rank
        here, member = np.nonzero(members == rank)
        place = self.program.first[self._slot[at[here]]]
        into = place[:, None] + np.arange(wire.shape[1])
        self.program.send_bytes[into] = wire[here, member, :]
        self.program.receive_bytes[into] = wire[here, :, member]


def _draft(
    trace: Trace, chosen: Int64, group: Int32, width: Int64, rank: int
) -> _Draft:
    slot = np.full(len(trace.occurrences), -1, np.int64)
    slot[chosen] = np.arange(len(chosen))
    operation = slot[trace.order(rank)]
    operation = operation[operation >= 0]
    first = np.concatenate([[0], np.cumsum(width[operation])]).astype(np.int64)
    place = np.full(len(chosen), -1, np.int64)
    place[operation] = np.arange(len(operation))
    program = Program(
        rank=rank,
        operation=operation,
        group=group[operation],
        first=first,
        send_bytes=np.zeros(first[-1], np.int64),
        receive_bytes=np.zeros(first[-1], np.int64),
    )
    return _Draft(program, place)


def _matrices(
    trace: Trace,
    chosen: Int64,
    width: Int64,
    groups: tuple[tuple[int, ...], ...],
    group: Int32,
) -> Iterator[tuple[Int64, Int64]]:
    """Positions and matrices ``[b, W, W]`` of all operations, ranks ascending."""
    ascending = [np.argsort(g.ranks) for g in trace.groups]
    for size in np.unique(width):
        same = np.flatnonzero(width == size)
        step = max(1, _BLOCK_BYTES // (8 * int(size) ** 2))
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
            yield at, np.take_along_axis(wire, into[:, None, :], axis=2)


def _largest(wire: Int64) -> Int64:
    """Largest row or column sum of each matrix, ``[b]`` int64."""
    largest: Int64 = np.maximum(
        wire.sum(axis=2).max(axis=1), wire.sum(axis=1).max(axis=1)
    )
    return largest


def _heading(trace: Trace, groups: tuple[tuple[int, ...], ...]) -> bytes:
    sites = [
        (s.group, s.operation, s.phase, s.layer, s.direction, s.slot)
        for s in trace.sites
    ]
    return repr((trace.meta.world, groups, sites)).encode()


def _refuse_other_world(trace: Trace, world: int | None) -> None:
    if world is not None and world != trace.meta.world:
        raise ReplayError(
            "a trace is replayed on as many ranks as it has, but "
            f"{trace.name} has {trace.meta.world} and there are {world}: "
            f"start {trace.meta.world} ranks (--nproc {trace.meta.world})"
        )


def _chosen(trace: Trace, iterations: range | None) -> Int64:
    chosen = trace.find(operation=ALL_TO_ALL, iterations=iterations, kind=None)
    if not len(chosen):
        when = trace.occurrences.iteration
        have = f"{int(when.min())} to {int(when.max())}" if len(when) else "none"
        asked = (
            f"iterations {iterations.start}:{iterations.stop} of "
            if iterations is not None
            else ""
        )
        raise ReplayError(
            f"a replay needs at least one all-to-all, but {asked}{trace.name} "
            f"holds none (its iterations: {have}): choose others with --iterations, or "
            "capture with the hook installed"
        )
    missing = np.setdiff1d(chosen, trace.complete(chosen), assume_unique=True)
    if len(missing):
        first = int(trace.occurrences.iteration[missing].min())
        begin = int(trace.occurrences.iteration[chosen].min())
        site = trace.sites[int(trace.occurrences.site[missing[0]])]
        one = missing[:1]
        absent = np.flatnonzero(~trace.present(one)[0])
        who = [trace.groups[site.group].ranks[m] for m in absent]
        remedy = (
            f"replay what is complete with --iterations {begin}:{first}"
            if first > begin
            else "choose other iterations with --iterations"
        )
        raise ReplayError(
            "a replay needs every member of an all-to-all, but "
            f"{len(missing)} of {len(chosen)} lack one (rank "
            f"{', '.join(map(str, who))} in iteration "
            f"{int(trace.occurrences.iteration[missing[0]])}): {remedy}"
        )
    return chosen


def _left_out(trace: Trace, iterations: range | None) -> dict[str, int]:
    every = trace.find(iterations=iterations, kind=None)
    counts = np.bincount(trace.occurrences.site[every], minlength=len(trace.sites))
    found: Counter[str] = Counter()
    for site, count in zip(trace.sites, counts.tolist(), strict=True):
        if count and site.operation not in (ALL_TO_ALL, ROUTING):
            found[site.operation] += count
    return dict(found)

"""Plan of a replay: the operations of a trace, or of a part of it, in columns.

An operation is a collective, or a message, of one group.  Groups belong to *streams*:
expert exchanges are stream 0, other traffic has one stream per kind of group ("tp",
"dp", "pp" ...).  A plan depends on the trace and the background traffic alone, so all
ranks make the same one and compare its digest.  This package does not import torch.

Ranks of a group are in ascending order here, as ``torch.distributed`` sorts them, and
so are rows and columns of matrices.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Bool, Float64, Int8, Int32, Int64
from moetraffic.errors import ReplayError
from moetraffic.trace.model import ALL_TO_ALL, ROUTING, UNKNOWN_TIME, Site
from moetraffic.trace.trace import Trace

from . import matrices

if TYPE_CHECKING:
    from .background import BackgroundTraffic

KINDS = (
    ALL_TO_ALL,
    *("all_reduce", "all_gather", "reduce_scatter"),
    *("broadcast", "reduce", "gather", "scatter", "send_recv", "barrier"),
)
"""Kinds of operations, as named in traces; :attr:`Plan.kind` is an index into it."""

REDUCTIONS = frozenset({"all_reduce", "reduce", "reduce_scatter"})
"""Kinds of operations that compute sums."""

EXPERTS = "experts"
"""Name of stream 0, which carries the expert exchanges."""

MESSAGE = "send_recv"
BLOCK_CELLS = 1 << 20
"""Members, or cells of matrices, that are read at a time."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The n operations of a replay, in the order of the trace, for all ranks.

    Meaning of :attr:`size`, S, for each kind in a group of W ranks:

    ================ =================================================================
    all_to_all       bytes that all members send, those to themselves included
    all_reduce       the buffer that is reduced, on each member
    reduce           the same; the sum goes to :attr:`receiver`
    broadcast        the buffer, of :attr:`sender`
    all_gather       each member's part; it ends up with W S
    gather           each member's part; :attr:`receiver` ends up with W S
    reduce_scatter   each member's input, of W equal parts; it ends up with S / W
    scatter          what :attr:`sender` holds, W equal parts
    send_recv        the message
    barrier          0
    ================ =================================================================

    Where members of a captured collective passed different sizes, S is the largest; for
    reduce_scatter and scatter it is rounded up to W equal parts, as torch requires.

    The byte sums of an all-to-all are those of its byte matrix.  For other kinds the
    matrix is the ring algorithm's, from whose busiest link nccl-tests computes busbw.
    """

    source: str  # the trace
    world: int  # ranks R
    groups: tuple[tuple[int, ...], ...]  # world ranks, ascending; first the trace's own
    streams: tuple[str, ...]  # names; 0 is that of the expert exchanges
    sites: tuple[Site, ...]  # of the trace, then of background traffic
    occurrence: Int64  # [n] index into the trace's occurrences; -1 for background
    iteration: Int64  # [n]
    first: int  # first training step of the trace, of which these may be a part
    site: Int32  # [n] index into sites
    kind: Int8  # [n] index into KINDS
    group: Int32  # [n] index into groups
    stream: Int8  # [n] index into streams
    sender: Int32  # [n] world rank that broadcasts, scatters or sends, else -1
    receiver: Int32  # [n] world rank that reduces, gathers or receives, else -1
    size: Int64  # [n] bytes S, see above
    total_bytes: Int64  # [n] all bytes, also those that a rank sends to itself
    network_bytes: Int64  # [n] bytes between different ranks
    bottleneck_bytes: Int64  # [n] largest row or column sum without the diagonal
    largest_bytes: Int64  # [n] largest row or column sum
    rank_bytes: Int64  # [R] bytes that each rank sends, itself included
    critical: Bool  # [n] whether an exchange waits for it; background traffic alone
    place: Float64  # [n] share of the iteration's exchanges before it; background alone
    begin_ns: int  # first captured issue on any rank; UNKNOWN_TIME if none is known
    in_common: bool  # whether all ranks follow one order, instead of each its own
    digest: str  # SHA-256 of groups, sites, times and operations, in hexadecimal
    left_out: Mapping[str, int]  # number of collectives not replayed, by operation
    notes: tuple[str, ...] = ()  # descriptions of scaling, padding and completion

    def __len__(self) -> int:
        return len(self.iteration)

    @property
    def width(self) -> Int64:
        """Number of members of each operation's group, ``[n]``."""
        return np.array([len(g) for g in self.groups], np.int64)[self.group]

    @property
    def used_groups(self) -> tuple[tuple[int, ...], ...]:
        """Groups in which an operation runs; the others are empty, in their places."""
        used = set(np.unique(self.group).tolist())
        return tuple(g if n in used else () for n, g in enumerate(self.groups))

    def of_rank(self, rank: int) -> Bool:
        """Mask of the operations in which a rank takes part, ``[n]`` bool."""
        inside = np.array([rank in g for g in self.groups], bool)[self.group]
        ends = (self.sender == rank) | (self.receiver == rank)
        message = self.kind == KINDS.index(MESSAGE)
        return np.asarray(np.where(message, ends, inside), bool)

    def by_rank(self, values: Int64) -> Int64:
        """Sum a value of operations ``[n]`` over those of each rank, ``[R]``."""
        out = np.zeros(self.world, np.int64)
        message = self.kind == KINDS.index(MESSAGE)
        of_group = np.zeros(len(self.groups), np.int64)
        np.add.at(of_group, self.group[~message], values[~message])
        for ranks, value in zip(self.groups, of_group.tolist(), strict=True):
            out[list(ranks)] += value
        for ends in (self.sender, self.receiver):
            np.add.at(out, ends[message], values[message])
        return out

    def order(self, operations: Int64) -> Int64:
        """Sort operations into the order in which all ranks run them one by one.

        Ranks that run operations singly in the orders of their programs, which differ,
        would deadlock or take the bytes of one operation for those of another.
        """
        return operations[np.lexsort((operations, self.iteration[operations]))]

    def name(self, operation: int) -> str:
        """Return the name of an operation for messages, with iteration and layer."""
        site = self.sites[int(self.site[operation])]
        words = [f"iteration {int(self.iteration[operation])}"]
        if site.layer >= 0:
            words.append(f"layer {site.layer}")
        words.append(site.phase or site.label or site.operation)
        if site.direction == "recompute":
            words.append("recomputed")
        words.append(f"micro-batch {site.slot}" if site.phase else f"call {site.slot}")
        return ", ".join(words)


def operations(
    trace: Trace,
    *,
    world: int | None = None,
    iterations: range | None = None,
    layers: Collection[int] | None = None,
    dense: bool = True,
    background: BackgroundTraffic | None = None,
    in_common: bool = False,
) -> Plan:
    """Plan the replay of a trace.

    ``world`` is the number of ranks to replay on; None for the trace's.  Operations are
    those of ``iterations`` and ``layers``, None for all (without a layer: always), if
    ``dense`` also others than all-to-alls.  ``in_common``: all ranks follow one order,
    which keeps the order of each rank where these agree, instead of each rank its own;
    with background traffic they always do.
    """
    ranks = trace.meta.world
    if world not in (None, ranks):
        raise ReplayError(
            "a trace is replayed on as many ranks as it has, but "
            f"{trace.name} has {ranks} and there are {world}: "
            f"start {ranks} ranks (--nproc {ranks}), or map them with --fold, "
            "--expand, --ranks or --rank-map"
        )
    chosen, left_out = _selected(trace, iterations, layers, dense)
    # ---- columns of sites, which hold for each of their operations -------------------
    groups = [tuple(sorted(g.ranks)) for g in trace.groups]
    group_kinds = [g.kind or "other" for g in trace.groups]
    sites = list(trace.sites)
    ends = [_ends(trace, site) for site in sites]
    iteration = trace.occurrences.iteration[chosen]
    site = trace.occurrences.site[chosen]
    added = () if background is None else background.operations
    times = len(np.unique(iteration))  # that background traffic is repeated
    if background is not None:
        numbers = len(sites) + np.arange(len(added), dtype=np.int32)
        sites += [
            replace(a.site, group=len(groups) + a.group, operation=a.kind)
            for a in added
        ]
        ends += [(a.sender, a.receiver) for a in added]
        groups += background.groups
        group_kinds += background.group_kinds
        iteration = np.concatenate(
            [iteration, np.repeat(np.unique(iteration), len(added))]
        )
        site = np.concatenate([site, np.tile(numbers, times)])
    site = site.astype(np.int32, copy=False)
    streams, stream_of_group = _streams(sites, np.unique(site).tolist(), group_kinds)
    number = {name: n for n, name in enumerate(KINDS)}
    kind = np.array([number.get(s.operation, 0) for s in sites], np.int8)[site]
    group = np.array([s.group for s in sites], np.int32)[site]
    both = np.array(ends, np.int32).reshape(-1, 2)[site]
    own = len(chosen)
    count = len(site)

    def with_background(name: str, dtype: type) -> npt.NDArray[Any]:
        """Column of zeros for captured operations, and of a field for the others."""
        values: npt.NDArray[Any] = np.array([getattr(a, name) for a in added], dtype)
        return np.concatenate([np.zeros(own, dtype), np.tile(values, times)])

    hashed = hashlib.sha256(
        repr(
            (
                *(ranks, groups, streams),
                [
                    (s.group, s.operation, s.phase, s.layer, s.direction, s.slot)
                    for s in sites
                ],
                "" if background is None else background.identity,
            )
        ).encode()
    )
    begin_ns, timed = _read_times(trace, chosen, hashed)
    zeros = np.zeros((4, count), np.int64)
    plan = Plan(
        source=trace.name,
        world=ranks,
        groups=tuple(groups),
        streams=streams,
        sites=tuple(sites),
        occurrence=np.append(chosen, np.full(count - own, -1)),
        iteration=iteration,
        first=min(trace.iterations.tolist(), default=-1),
        site=site,
        kind=kind,
        group=group,
        stream=stream_of_group[group],
        sender=both[:, 0],
        receiver=both[:, 1],
        size=with_background("size", np.int64),
        total_bytes=zeros[0],
        network_bytes=zeros[1],
        bottleneck_bytes=zeros[2],
        largest_bytes=zeros[3],
        rank_bytes=np.zeros(ranks, np.int64),
        critical=with_background("critical", bool),
        place=with_background("place", np.float64),
        begin_ns=begin_ns,
        in_common=in_common or background is not None or not timed,
        digest="",
        left_out=left_out,
    )
    _sum_exchanges(trace, plan, hashed)
    notes = _size_dense(trace, plan)
    _sum_dense(plan)
    for name in ("iteration", "site", "size", "sender", "receiver"):
        column = getattr(plan, name)
        hashed.update(column.astype(column.dtype.newbyteorder("<")).tobytes())
    return replace(plan, digest=hashed.hexdigest(), notes=notes)


def blocks(trace: Trace, occurrences: Int64, cells: int) -> Iterator[Int64]:
    """Split operations into blocks of equal group size, at most ``cells`` cells each.

    A cell is one member of one operation.
    """
    width = trace.width[trace.occurrences.site[occurrences]]
    for size in np.unique(width).tolist():
        same = np.flatnonzero(width == size)
        step = max(1, cells // size)
        for begin in range(0, len(same), step):
            yield same[begin : begin + step]


def takes_part(trace: Trace, occurrences: Int64) -> Bool:
    """Mask of group members that take part in operations of one width, ``[n, W]``.

    Members are in the order of the group.  A message has two.
    """
    used, which = np.unique(trace.occurrences.site[occurrences], return_inverse=True)
    rows = np.ones((len(used), trace.size(int(occurrences[0]))), bool)
    for row, number in zip(rows, used.tolist(), strict=True):
        site = trace.sites[number]
        if site.operation == MESSAGE:
            row[:] = False
            row[list(site.peers)] = True
    return np.asarray(rows[which.ravel()], bool)


def _streams(
    sites: list[Site], used: list[int], group_kinds: list[str]
) -> tuple[tuple[str, ...], Int8]:
    """Name the streams, and number that of each group; exchanges are stream 0."""
    experts = {sites[s].group for s in used if sites[s].operation == ALL_TO_ALL}
    names = [EXPERTS]
    stream_of_group = np.zeros(len(group_kinds), np.int8)
    for group in sorted({sites[s].group for s in used} - experts):
        if group_kinds[group] not in names:
            names.append(group_kinds[group])
        stream_of_group[group] = names.index(group_kinds[group])
    return tuple(names), stream_of_group


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
    return -1, root if site.operation in ("reduce", "gather") else -1


# ---- selection -------------------------------------------------------------------


def _selected(
    trace: Trace,
    iterations: range | None,
    layers: Collection[int] | None,
    dense: bool,
) -> tuple[Int64, dict[str, int]]:
    """Select occurrences of a trace, ``[n]`` ascending, and count what is left out.

    Operations whose bytes are unknown, and messages with an unknown peer, are not
    replayed.
    """
    there = sorted({s.layer for s in trace.sites if s.layer >= 0})
    if layers is not None and there and not set(there) & set(layers):
        raise ReplayError(
            f"{trace.name} has the layers {', '.join(map(str, there))}, but the "
            f"replay asks for {', '.join(map(str, sorted(layers)))}: choose among "
            "them with --layers, or leave it out"
        )
    counts = np.zeros(len(trace.sites), bool)  # sites whose operations are counted
    wanted, sizeless = counts.copy(), counts.copy()
    for number, site in enumerate(trace.sites):
        inside = layers is None or site.layer < 0 or site.layer in layers
        exchange = site.operation == ALL_TO_ALL
        lost = site.operation == MESSAGE and min(site.peers) < 0
        counts[number] = site.operation != ROUTING and inside
        wanted[number] = exchange or (dense and site.operation in KINDS and not lost)
        sizeless[number] = exchange or site.operation == "barrier"
    calls = trace.find(iterations=iterations, kind=None)
    calls = calls[counts[trace.occurrences.site[calls]]]
    number_of = trace.occurrences.site[calls]
    replayed = wanted[number_of]
    replayed &= sizeless[number_of] | (trace.occurrences.matrix[calls] >= 0)
    left = Counter(trace.sites[s].operation for s in number_of[~replayed].tolist())
    if replayed.any():
        return calls[replayed], dict(left)
    when = trace.occurrences.iteration
    have = f"{int(when.min())} to {int(when.max())}" if len(when) else "none"
    if left:
        have += "; left out: " + ", ".join(f"{n} {name}" for name, n in left.items())
    limits = ""
    if iterations is not None:
        limits = f"iterations {iterations.start}:{iterations.stop} of "
    raise ReplayError(
        f"a replay needs at least one operation, but {limits}{trace.name} holds none "
        f"(its iterations: {have}): choose others with --iterations, or capture with "
        "the hook installed"
    )


def _read_times(trace: Trace, chosen: Int64, hashed: hashlib._Hash) -> tuple[int, bool]:
    """Read the times of operations: the first issue, and whether all are known.

    The times of all ranks are hashed, at every pace: each rank's order, waits and
    batches follow from them, also between groups, which no exchange could compare.
    """
    late = np.iinfo(np.int64).max
    begin, timed = late, True
    lacking: list[int] = []
    for rows in blocks(trace, chosen, BLOCK_CELLS):
        calls = chosen[rows]
        expected = takes_part(trace, calls)
        lacking += calls[(~trace.present(calls) & expected).any(axis=1)].tolist()
        issue, _, end = trace.times(calls)
        hashed.update(issue.astype("<i8").tobytes() + end.astype("<i8").tobytes())
        stamped = issue != UNKNOWN_TIME
        timed &= bool(stamped[expected].all())
        begin = min(begin, int(issue[stamped].min(initial=late)))
    if not lacking:
        return (begin if begin < late else UNKNOWN_TIME), timed
    call = np.array([min(lacking)])
    gone = trace.members(call)[~trace.present(call) & takes_part(trace, call)]
    when = trace.occurrences.iteration
    first, start = int(when[lacking].min()), int(when[chosen].min())
    remedy = (
        f"replay what is complete with --iterations {start}:{first}"
        if first > start
        else "choose other iterations with --iterations"
    )
    raise ReplayError(
        "a replay needs every member of an operation, but "
        f"{len(lacking)} of {len(chosen)} lack one (rank "
        f"{', '.join(map(str, gone))} in iteration {int(when[call[0]])}): {remedy}, "
        "or have gaps filled with --complete-missing"
    )


# ---- bytes -----------------------------------------------------------------------


def _sum_exchanges(trace: Trace, plan: Plan, hashed: hashlib._Hash) -> None:
    """Set byte sums of all-to-alls, hash their bytes, add what each rank sends."""
    for rows, members, wire in matrices.exchange_matrices(trace, plan):
        sends, receives = wire.sum(axis=2), wire.sum(axis=1)
        local = np.diagonal(wire, axis1=1, axis2=2)
        hashed.update(wire.astype("<i8").tobytes())
        plan.size[rows] = plan.total_bytes[rows] = sends.sum(axis=1)
        plan.network_bytes[rows] = (sends - local).sum(axis=1)
        plan.bottleneck_bytes[rows] = np.maximum(sends - local, receives - local).max(1)
        plan.largest_bytes[rows] = np.maximum(sends, receives).max(axis=1)
        np.add.at(plan.rank_bytes, members, sends)


def _size_dense(trace: Trace, plan: Plan) -> tuple[str, ...]:
    """Set the size S of captured dense operations; return a note on padded gathers."""
    from moetraffic.patterns.collectives import sizes

    unequal = more = 0
    for number, kind in enumerate(KINDS):
        dense = np.flatnonzero((plan.kind == number) & (plan.occurrence >= 0))
        if kind in (ALL_TO_ALL, "barrier"):
            continue
        for block in blocks(trace, plan.occurrence[dense], BLOCK_CELLS):
            rows = dense[block]
            nbytes = trace.volume(plan.occurrence[rows])
            plan.size[rows] = sizes(kind, nbytes)
            if kind in ("all_gather", "gather"):
                over = plan.size[rows] * nbytes.shape[1] - nbytes.sum(axis=1)
                unequal += int(np.count_nonzero(over))
                more += int(over.sum())
    if not unequal:
        return ()
    return (
        f"{unequal} gathers of unequal parts are replayed with parts of the largest "
        f"size, {more} bytes more",
    )


def _sum_dense(plan: Plan) -> None:
    """Set byte sums of dense operations, and add what each rank sends."""
    from moetraffic.patterns.collectives import traffic_bytes

    for number in sorted(set(plan.kind.tolist()) - {KINDS.index(ALL_TO_ALL)}):
        rows, kind = np.flatnonzero(plan.kind == number), KINDS[number]
        size, sender, receiver = (
            values[rows].astype(np.int64)
            for values in (plan.size, plan.sender, plan.receiver)
        )
        network, plan.bottleneck_bytes[rows], plan.largest_bytes[rows] = traffic_bytes(
            kind, size, plan.width[rows], sender == receiver
        )
        plan.total_bytes[rows] = plan.network_bytes[rows] = network
        if kind in ("send_recv", "scatter"):
            np.add.at(plan.rank_bytes, sender, network)
            continue
        if kind == "gather":  # all but the receiver send S
            np.subtract.at(plan.rank_bytes, receiver, size)
            network = size * plan.width[rows]
        of_group = np.zeros(len(plan.groups), np.int64)
        np.add.at(of_group, plan.group[rows], network)
        for group in np.flatnonzero(of_group).tolist():
            # the ring, in which all send as much
            members = np.array(plan.groups[group], np.int64)
            share, rest = divmod(int(of_group[group]), len(members))
            plan.rank_bytes[members] += share
            plan.rank_bytes[members[:rest]] += 1

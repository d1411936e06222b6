"""Data structures of a replay plan: operations, programs of the ranks, their times.

An operation is a collective, or a message, of one group.  Groups belong to *streams*:
expert exchanges are stream 0, background traffic has one stream per kind of group
("tp", "dp", "pp" ...).  Order of operations on each rank:

- operations of a stream are issued in the order of the rank's program, each after the
  previous one has ended, unless :attr:`Program.waits` is false for the previous one;
- an operation is issued after the operation in :attr:`Program.after`, of any stream,
  has ended: in the capture, the last to end before the operation was issued;
- messages of a batch follow each other in the program, belong to one group and one
  iteration, and each was issued before any of them had ended; a CUDA device issues
  them together, when the last of them is due;
- no operation of an iteration is issued before all operations of the previous
  iteration, of all streams, have ended.

Operations overlap except for these rules.

Ranks of a group are in ascending order here, as ``torch.distributed.new_group`` sorts
them, and so are rows and columns of matrices.  This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Bool, Int8, Int32, Int64, UInt32
from moetraffic.trace.model import ALL_TO_ALL, Site

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

UNKNOWN_GAP = -1
"""Value of a gap or due time that is unknown in the trace."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """The N operations of one rank in issue order, with bytes and dependencies."""

    rank: int
    operation: Int64  # [N] index into the plan's operations
    group: Int32  # [N] index into the plan's groups
    stream: Int8  # [N] index into the plan's streams
    kind: Int8  # [N] index into KINDS
    send_size: Int64  # [N] bytes of this rank's send buffer
    receive_size: Int64  # [N] bytes of its receive buffer; see backends.Call
    first: Int64  # [N + 1] where an all-to-all's bytes begin in the two arrays below
    send_bytes: Int64  # [first[N]] to each member of the group, in ascending order
    receive_bytes: Int64  # [first[N]] from each member
    waits: Bool  # [N] whether the stream's next operation waits for this one's end
    after: Int64  # [N] index in the program of the operation to wait for; -1: none
    batch: Int64  # [N] index of the first of the messages that may be launched as one
    gap_ns: Int64  # [N] captured, from the end of ``after`` to this issue; -1 unknown
    due_ns: Int64  # [N] captured issue, from the plan's first; -1 unknown

    def __len__(self) -> int:
        return len(self.operation)

    def sends(self, n: int) -> Int64:
        """Return bytes sent to each group member in the n-th operation, ``[W]``.

        Empty for operations other than all-to-alls.
        """
        return self.send_bytes[self.first[n] : self.first[n + 1]]

    def receives(self, n: int) -> Int64:
        """Return bytes received from each member in the n-th operation, ``[W]``."""
        return self.receive_bytes[self.first[n] : self.first[n + 1]]

    @property
    def chained(self) -> bool:
        """Whether each operation is issued only after the previous one has ended.

        True for a program of one stream, and where no two operations overlapped in
        the capture.
        """
        if (self.stream == self.stream[:1]).all() and self.waits.all():
            return True
        return bool((self.after == np.arange(len(self)) - 1).all())

    def stream_bytes(self, stream: int) -> tuple[int, int]:
        """Return the largest send and receive buffer bytes of a stream's operations."""
        mine = self.stream == stream
        return (
            int(self.send_size[mine].max(initial=0)),
            int(self.receive_size[mine].max(initial=0)),
        )

    @property
    def buffer_bytes(self) -> tuple[int, int]:
        """Total bytes of the send buffers and of the receive buffers of all streams.

        Operations of a stream share two buffers; streams overlap, so each has its
        own.
        """
        each = [self.stream_bytes(s) for s in np.unique(self.stream).tolist()]
        return sum(s for s, _ in each), sum(r for _, r in each)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Recorded times of one rank's operations, ns of its ``time.monotonic_ns``."""

    operation: Int64  # [N] index into the plan's operations
    issue: Int64  # [N] the call
    start: Int64  # [N] beginning of the transfer
    end: Int64  # [N] end of the transfer
    due: Int64  # [N] scheduled issue; UNKNOWN_TIME if issued as soon as possible


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

    ``total_bytes``, ``network_bytes``, ``bottleneck_bytes`` and ``largest_bytes`` of
    an all-to-all are computed from its byte matrix.  For other kinds the matrix is that
    of the ring algorithm (:func:`moetraffic.patterns.collectives.collective_matrix`),
    whose busiest link carries the bytes from which nccl-tests computes busbw.
    """

    source: str  # the trace
    world: int  # ranks R
    groups: tuple[tuple[int, ...], ...]  # world ranks, ascending; first the trace's own
    streams: tuple[str, ...]  # names; 0 is that of the expert exchanges
    sites: tuple[Site, ...]  # of the trace, then of background traffic
    occurrence: (
        Int64  # [n] index into the trace's occurrences; -1 for background traffic
    )
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
    checksum: UInt32  # [n] CRC-32 of each operation's matrix, or of kind and size
    digest: str  # SHA-256 of groups, sites and operations, in hexadecimal
    left_out: Mapping[str, int]  # number of collectives not replayed, by operation
    notes: tuple[str, ...] = ()  # descriptions of scaling, padding and completion
    programs: Mapping[int, Program]  # of the requested ranks

    def __len__(self) -> int:
        return len(self.iteration)

    @property
    def used_groups(self) -> tuple[tuple[int, ...], ...]:
        """Groups in which an operation runs; the others are empty, in their places."""
        used = set(np.unique(self.group).tolist())
        return tuple(g if n in used else () for n, g in enumerate(self.groups))

    def checking_order(self, rank: int) -> Int64:
        """Return indices into a rank's program, ``[N]``, in an order common to ranks.

        Sorted by iteration, then by operation: ranks that run operations one by one in
        the order of their programs, which differ, would deadlock or take the bytes of
        one operation for those of another.
        """
        operation = self.programs[rank].operation
        return np.lexsort((operation, self.iteration[operation]))

    def counted_name(self, rank: int, count: int, *, verified: bool) -> str:
        """Return the name of a rank's operation, counted from 0 over all its passes.

        ``verified``: the first pass is a verification, in :meth:`checking_order`.
        """
        operation = self.programs[rank].operation
        n = count % len(operation)
        if verified and count < len(operation):
            n = self.checking_order(rank)[n]
        return self.name(int(operation[n]))

    def name(self, operation: int) -> str:
        """Return the name of an operation for messages, with iteration and layer."""
        site = self.sites[int(self.site[operation])]
        parts = [f"iteration {int(self.iteration[operation])}"]
        if site.layer >= 0:
            parts.append(f"layer {site.layer}")
        parts.append(site.phase or site.label or site.operation)
        if site.direction == "recompute":
            parts.append("recomputed")
        parts.append(f"micro-batch {site.slot}" if site.phase else f"call {site.slot}")
        return ", ".join(parts)

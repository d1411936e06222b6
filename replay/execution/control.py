"""Control messages between ranks through the backend: sizes, memory, times, clocks.

All of them are all-to-alls of the backend, so a backend needs nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from moetraffic.arrays import UInt8
from moetraffic.capture.clock_offset import measure_offset
from moetraffic.replay.backends.backend import Backend, Call, run
from moetraffic.replay.failure import RankError, backend_errors
from moetraffic.replay.plan.program import KINDS, Plan, Program, Timing
from moetraffic.trace.model import ALL_TO_ALL, CLOCK
from moetraffic.units import byte_size

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_DIGEST_BYTES = 16
_DIGESTED_ROWS = 4096  # operations digested at a time
_COLUMNS = ("operation", "issue", "start", "end", "due")
_ROW_BYTES = 8 * len(_COLUMNS)  # times of an operation
_GATHERED_ROWS = 1 << 18  # operations whose times are sent in one exchange


def exchange(
    backend: Backend,
    group: int,
    parts: Sequence[npt.NDArray[Any]],
    receive_bytes: list[int],
) -> list[UInt8]:
    """Exchange small arrays among the members of a group by an all-to-all.

    ``parts`` are W arrays whose bytes are sent; ``receive_bytes`` ``[W]`` are bytes
    from each member.

    Each member receives ``W`` uint8 arrays, one from each member.
    """
    flat = [np.ascontiguousarray(p).view(np.uint8).ravel() for p in parts]
    size = sum(receive_bytes)
    receive = torch.empty(size, dtype=torch.uint8, device=backend.device)
    call = Call(
        kind=ALL_TO_ALL,
        group=group,
        send=torch.from_numpy(np.concatenate(flat)).to(backend.device),
        receive=receive,
        send_bytes=[len(p) for p in flat],
        receive_bytes=receive_bytes,
    )
    run(backend, call)
    edges = [0, *np.cumsum(receive_bytes).tolist()]
    host = receive.cpu().numpy()
    return [host[a:b] for a, b in pairwise(edges)]


def gathered(
    backend: Backend, group: int, members: int, own: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Gather arrays of one shape and type, ``[W, *own.shape]``, on every member."""
    received = exchange(backend, group, [own] * members, [own.nbytes] * members)
    return np.concatenate(received).view(own.dtype).reshape(members, *own.shape)


def barrier(plan: Plan, backend: Backend) -> None:
    """Wait until every rank has called this function."""
    gathered(backend, len(plan.groups), plan.world, np.zeros(1, np.uint8))


def agree_on_sizes(plan: Plan, rank: int, backend: Backend) -> None:
    """Check that group members expect the sizes that others send, in the same order.

    Members exchange digests of all bytes that they will send and expect, in the order
    of their programs.  Only where digests differ, sizes are exchanged one by one to
    find the first that differs.

    Raises
    ------
    RankError
        Naming the sender and the first operation whose size its receiver does not
        expect.
    """
    program = plan.programs[rank]
    place = "the agreement on sizes"
    wrong = 0
    for group in np.unique(plan.group).tolist():
        if rank not in plan.groups[group]:
            continue
        sends, expected = _digests(plan, program, group)
        width = len(plan.groups[group])
        with backend_errors(rank, place):
            received = exchange(backend, group, sends, [_DIGEST_BYTES] * width)
        pairs = zip(received, expected, strict=True)
        wrong += sum(r.tobytes() != e.tobytes() for r, e in pairs)
    flag = np.array([wrong > 0])
    with backend_errors(rank, place):
        flags = gathered(backend, len(plan.groups), plan.world, flag)
    if not flags.any():
        return
    uneven = np.diff(program.first) > 0
    order = plan.checking_order(rank)
    for n in order[uneven[order]].tolist():
        compare_sizes(plan, rank, backend, n)
    # a rank that found a wrong size raised above: the others wait here for its error
    barrier(plan, backend)
    raise RankError(
        "has the operations of a group in another order than its other members: give "
        "every rank the same trace and the same version of moetraffic",
        rank=rank,
        operation=place,
        cause="mismatch",
    )


def _digests(
    plan: Plan, program: Program, group: int
) -> tuple[list[UInt8], list[UInt8]]:
    """Compute digests of the sizes sent to, and expected from, each group member."""
    width = len(plan.groups[group])
    sends, receives = (
        [hashlib.blake2b(digest_size=_DIGEST_BYTES) for _ in range(width)]
        for _ in range(2)
    )
    # a message has only two members, and the plan gives both of them its size
    shared = program.kind != KINDS.index("send_recv")
    mine = np.flatnonzero((program.group == group) & shared)
    for begin in range(0, len(mine), _DIGESTED_ROWS):
        rows = mine[begin : begin + _DIGESTED_ROWS]
        operation = program.operation[rows]
        # operations other than all-to-alls have one size, the same on all members
        uneven = program.first[rows + 1] > program.first[rows]
        at_byte = program.first[rows[uneven], None] + np.arange(width)
        for hashes, panel in (
            (sends, program.send_bytes),
            (receives, program.receive_bytes),
        ):
            size = np.repeat(plan.size[operation][:, None], width, axis=1)
            size[uneven] = panel[at_byte]
            for member, digest in enumerate(hashes):
                pair = np.stack([operation, size[:, member]], axis=1)
                digest.update(pair.astype("<i8").tobytes())
    return tuple(
        [np.frombuffer(h.digest(), np.uint8) for h in hashes]
        for hashes in (sends, receives)
    )  # type: ignore[return-value]


def compare_sizes(plan: Plan, rank: int, backend: Backend, n: int) -> None:
    """Exchange and compare the sizes of a rank's n-th operation, an all-to-all.

    Raises
    ------
    RankError
        If a member will send this rank more or less than its plan expects.
    """
    program = plan.programs[rank]
    operation, group = int(program.operation[n]), int(program.group[n])
    members, receives = plan.groups[group], program.receives(n).tolist()
    parts = [np.array([size], "<i8") for size in program.sends(n)]
    received = exchange(backend, group, parts, [8] * len(members))
    for source, announced, size in zip(members, received, receives, strict=True):
        will_send = int(announced.view("<i8")[0])
        if will_send != size:
            raise RankError(
                f"sends {will_send} bytes to rank {rank}, whose plan expects {size}: "
                "give every rank the same trace and the same version of moetraffic",
                rank=source,
                operation=plan.name(operation),
                cause="mismatch",
            )


def gather_times(
    plan: Plan, rank: int, backend: Backend, timing: Timing
) -> dict[int, Timing]:
    """Gather the operation times of all ranks on rank 0; empty on other ranks."""
    with backend_errors(rank, "the gathering of times"):
        mine = np.stack([getattr(timing, c) for c in _COLUMNS], axis=1).astype("<i8")
        everyone = len(plan.groups)
        count = np.array([len(mine)], "<i8")
        lengths = gathered(backend, everyone, plan.world, count)[:, 0].tolist()
        pieces: list[list[UInt8]] = [[] for _ in lengths]
        for first in range(0, max(lengths), _GATHERED_ROWS):
            rows = [min(max(n - first, 0), _GATHERED_ROWS) for n in lengths]
            parts = [mine[first : first + rows[rank]], *[mine[:0]] * (plan.world - 1)]
            arrive = [_ROW_BYTES * n if rank == 0 else 0 for n in rows]
            received = exchange(backend, everyone, parts, arrive)
            for part, piece in zip(received, pieces, strict=True):
                piece.append(part)
    if rank:
        return {}
    nothing = np.zeros(0, np.uint8)
    found = {}
    for other, parts_of in enumerate(pieces):
        table = np.concatenate([nothing, *parts_of]).view("<i8").astype(np.int64)
        columns = table.reshape(-1, len(_COLUMNS)).T.copy()
        found[other] = Timing(**dict(zip(_COLUMNS, columns, strict=True)))
    return found


def gather_clocks(
    plan: Plan, rank: int, backend: Backend, store: Store, moment: str
) -> npt.NDArray[np.void]:
    """Measure the clock offsets of all ranks to rank 0; every rank must call it.

    Measured before and after a pass, they give the drift of each clock during it, which
    :func:`moetraffic.trace.clock.to_common` interpolates.  ``moment`` names the
    measurement, and is used once.

    ``[R]`` of type CLOCK on rank 0, without ranks whose clock could not be read;
    ``[0]`` on other ranks.
    """
    own = np.zeros(1, CLOCK)
    own["rank"] = -1
    measured = measure_offset(store, rank, plan.world, f"replay {moment}")
    own[: len(measured)] = measured
    with backend_errors(rank, "the gathering of times"):
        parts = [own, *[own[:0]] * (plan.world - 1)]
        arrive = [own.nbytes if rank == 0 else 0] * plan.world
        received = exchange(backend, len(plan.groups), parts, arrive)
    rows = np.concatenate(received).view(CLOCK)
    return rows[rows["rank"] >= 0]


# ---- memory ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MemoryNeed:
    """Memory that one rank will allocate, and memory that is free on its host."""

    node: str
    pool: str  # the memory: "host", or a device
    needs: int  # bytes
    free: int  # bytes, -1 if unknown


def agree_on_memory(
    plan: Plan, rank: int, backend: Backend, nodes: Sequence[str], free: int | None
) -> None:
    """Check that each host has enough free memory for the buffers of its ranks.

    ``free`` bytes are available where the backend allocates; None if unknown.

    Raises
    ------
    RankError
        Naming a rank of the host without enough memory.
    """
    device = backend.device
    need = sum(plan.programs[rank].buffer_bytes)
    own = np.array([need, -1 if free is None else free, _device_number(device)], "<i8")
    with backend_errors(rank, "start-up"):
        rows = gathered(backend, len(plan.groups), plan.world, own)
    needs = []
    for node, (size, known, index) in zip(nodes, rows.tolist(), strict=True):
        pool = "host" if index < 0 else f"{device.type} {index:x}"
        needs.append(MemoryNeed(node=node, pool=pool, needs=size, free=known))
    found = find_memory_shortage(needs)
    if found is not None:
        # printed by rank 0 and by the rank at fault
        found.cause = "mismatch" if rank in (0, found.rank) else "peer"
        raise found


def _device_number(device: torch.device) -> int:
    """Number a device of a host by its UUID, -1 for the host's own memory.

    Launchers that show each rank its own device call all of them ``cuda:0``.
    """
    if device.type == "cpu":
        return -1
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return int.from_bytes(hashlib.blake2b(uuid.encode(), digest_size=4).digest(), "big")


def find_memory_shortage(needs: Sequence[MemoryNeed]) -> RankError | None:
    """Find the first rank of a host whose ranks need more memory than is free."""
    pools: dict[tuple[str, str], list[int]] = {}
    for rank, need in enumerate(needs):
        pools.setdefault((need.node, need.pool), []).append(rank)
    for (node, pool), ranks in pools.items():
        total = sum(needs[r].needs for r in ranks)
        known = [needs[r].free for r in ranks if needs[r].free >= 0]
        if known and total > min(known):
            where = node if pool == "host" else f"{pool} of {node}"
            each = (
                "its buffers need"
                if len(ranks) == 1
                else (f"its buffers and those of {len(ranks) - 1} more ranks need")
            )
            return RankError(
                f"has too little memory: {each} {byte_size(total)} on {where}, where "
                f"{byte_size(min(known))} are free: replay on more or larger hosts, or "
                "fewer bytes",
                rank=ranks[0],
                operation="start-up",
            )
    return None

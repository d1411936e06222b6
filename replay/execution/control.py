"""What ranks tell each other through the backend, beside the traffic: sizes, times.

It all goes through the backend's own all-to-all, so a backend needs nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from moetraffic.replay.backends.backend import Backend, Call, run
from moetraffic.replay.failure import RankError, at
from moetraffic.replay.plan.program import KINDS, Plan, Program
from moetraffic.trace.model import ALL_TO_ALL

from .payload import UInt8
from .timing import Timing

_DIGEST_BYTES = 16
_DIGESTED_ROWS = 4096  # operations digested at a time
_ROW_BYTES = 40  # of an operation's times
_GATHERED_ROWS = 1 << 18  # operations whose times travel in one exchange


def exchange(
    backend: Backend,
    group: int,
    parts: Sequence[npt.NDArray[Any]],
    receive_bytes: list[int],
) -> list[UInt8]:
    """An all-to-all of a few bytes.

    Parameters
    ----------
    group
        Index of the group.
    parts
        ``W`` arrays, one a member, whose bytes are sent.
    receive_bytes
        ``[W]`` bytes from each member.

    Returns
    -------
    list of ndarray
        ``W`` uint8 arrays.
    """
    flat = [np.ascontiguousarray(p).view(np.uint8).ravel() for p in parts]
    send = torch.from_numpy(np.concatenate(flat)).to(backend.device)
    size = sum(receive_bytes)
    receive = torch.empty(size, dtype=torch.uint8, device=backend.device)
    call = Call(
        kind=ALL_TO_ALL,
        group=group,
        send=send,
        receive=receive,
        send_bytes=[len(p) for p in flat],
        receive_bytes=receive_bytes,
    )
    run(backend, call)
    edges = [0, *np.cumsum(receive_bytes).tolist()]
    host = receive.cpu().numpy()
    return [host[a:b] for a, b in pairwise(edges)]


def meet(plan: Plan, backend: Backend) -> None:
    """Wait until every rank is here."""
    one = np.zeros(1, np.uint8)
    exchange(backend, len(plan.groups), [one] * plan.world, [1] * plan.world)


def agree_on_sizes(plan: Plan, rank: int, backend: Backend) -> None:
    """Make sure, before first use, that members send what others expect, in one order.

    For each member, a rank digests what it will send it: operation and bytes, in its
    program's order; and what it expects from it.  The digests travel once a group, so
    it costs the same whether there are ten operations or a million.  Only where some
    differ, all sizes are told one by one, and the first wrong one is named.

    Raises
    ------
    RankError
        Naming the sender and the first operation of which its receiver has another
        plan.
    """
    program = plan.programs[rank]
    wrong = 0
    for group in np.unique(plan.group).tolist():
        if rank not in plan.groups[group]:
            continue
        sends, expects = _digests(plan, program, group)
        width = len(plan.groups[group])
        with at(rank, "the agreement on sizes"):
            told = exchange(backend, group, sends, [_DIGEST_BYTES] * width)
        pairs = zip(told, expects, strict=True)
        wrong += sum(t.tobytes() != e.tobytes() for t, e in pairs)
    everyone = len(plan.groups)
    flag = np.array([min(wrong, 255)], np.uint8)
    with at(rank, "the agreement on sizes"):
        flags = exchange(backend, everyone, [flag] * plan.world, [1] * plan.world)
    if not any(int(f[0]) for f in flags):
        return
    uneven = np.diff(program.first) > 0
    order = plan.checking_order(rank)
    for n in order[uneven[order]].tolist():
        compare_sizes(
            plan,
            rank,
            backend,
            int(program.operation[n]),
            int(program.group[n]),
            program.sends(n).tolist(),
            program.receives(n).tolist(),
        )
    # who found a wrong size tells it, and does not come here: the others wait for that
    meet(plan, backend)
    raise RankError(
        "has the operations of a group in another order than its other members: give "
        "every rank the same trace and the same version of moetraffic",
        rank=rank,
        operation="the agreement on sizes",
        cause="mismatch",
    )


def _digests(
    plan: Plan, program: Program, group: int
) -> tuple[list[UInt8], list[UInt8]]:
    """Digests of what a rank sends to each member of a group, and expects from it."""
    width = len(plan.groups[group])
    sends, receives = (
        [hashlib.blake2b(digest_size=_DIGEST_BYTES) for _ in range(width)]
        for _ in range(2)
    )
    # a message has two of the members, and the plan tells both of them its size
    shared = program.kind != KINDS.index("send_recv")
    mine = np.flatnonzero((program.group == group) & shared)
    for begin in range(0, len(mine), _DIGESTED_ROWS):
        rows = mine[begin : begin + _DIGESTED_ROWS]
        operation = program.operation[rows]
        # what is no all-to-all has one size, which the plan tells everybody
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


def compare_sizes(
    plan: Plan,
    rank: int,
    backend: Backend,
    operation: int,
    group: int,
    sends: list[int],
    receives: list[int],
) -> None:
    """Before an operation: tell each member how much it will get, 8 bytes a pair.

    Raises
    ------
    RankError
        If a member will send this rank more or less than its plan says.
    """
    members = plan.groups[group]
    parts = [np.array([size], "<i8") for size in sends]
    told = exchange(backend, group, parts, [8] * len(members))
    for source, said, size in zip(members, told, receives, strict=True):
        will_send = int(said.view("<i8")[0])
        if will_send != size:
            raise RankError(
                f"sends {will_send} bytes to rank {rank}, whose plan says {size}: give "
                "every rank the same trace and the same version of moetraffic",
                rank=source,
                operation=plan.name(operation),
                cause="mismatch",
            )


def gather(
    plan: Plan, rank: int, backend: Backend, timing: Timing
) -> dict[int, Timing]:
    """All ranks' times on rank 0; the other ranks get nothing."""
    with at(rank, "the gathering of times"):
        columns = [timing.operation, timing.issue, timing.start, timing.end, timing.due]
        mine = np.stack(columns, axis=1).astype("<i8")
        everyone = len(plan.groups)
        count = np.array([len(mine)], "<i8")
        told = exchange(backend, everyone, [count] * plan.world, [8] * plan.world)
        lengths = [int(c.view("<i8")[0]) for c in told]
        pieces: list[list[UInt8]] = [[] for _ in lengths]
        nothing = mine[:0]
        for first in range(0, max(lengths), _GATHERED_ROWS):
            rows = [min(max(n - first, 0), _GATHERED_ROWS) for n in lengths]
            parts = [mine[first : first + rows[rank]], *[nothing] * (plan.world - 1)]
            arrive = [_ROW_BYTES * n if rank == 0 else 0 for n in rows]
            for got, piece in zip(
                pieces, exchange(backend, everyone, parts, arrive), strict=True
            ):
                got.append(piece)
    if rank:
        return {}
    found = {}
    for other, got in enumerate(pieces):
        whole = np.concatenate(got) if got else np.zeros(0, np.uint8)
        table = whole.view("<i8").reshape(-1, 5).astype(np.int64)
        operation, issue, start, end, due = table.T.copy()
        found[other] = Timing(
            operation=operation, issue=issue, start=start, end=end, due=due
        )
    return found

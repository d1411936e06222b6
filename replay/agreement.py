"""What ranks tell each other beside the traffic: plans, sizes, times.

It all goes through the backend's own all-to-all, so a backend needs nothing else.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .backends import Backend
from .failure import RankError, at
from .payload import UInt8
from .plan import Plan
from .result import Timing

_NODE_BYTES = 64
_ROW_BYTES = 32  # of an operation's times
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
    backend.all_to_all(group, receive, send, receive_bytes, [len(p) for p in flat])
    edges = [0, *np.cumsum(receive_bytes).tolist()]
    host = receive.cpu().numpy()
    return [host[a:b] for a, b in pairwise(edges)]


def meet(plan: Plan, backend: Backend) -> None:
    """Wait until every rank is here."""
    one = np.zeros(1, np.uint8)
    exchange(backend, len(plan.groups), [one] * plan.world, [1] * plan.world)


def agree(plan: Plan, rank: int, backend: Backend) -> tuple[str, ...]:
    """Make sure that all ranks have the same plan.

    Returns
    -------
    tuple of str
        Each rank's host.

    Raises
    ------
    RankError
        Naming the rank whose plan differs, and the first operation in which it does.
    """
    node = platform.node().encode()[:_NODE_BYTES].ljust(_NODE_BYTES, b"\0")
    own = np.frombuffer(bytes.fromhex(plan.digest) + node, np.uint8)
    with at(rank, "the agreement on the plan"):
        every = exchange(
            backend, len(plan.groups), [own] * plan.world, [len(own)] * plan.world
        )
        digests = [e[:-_NODE_BYTES].tobytes().hex() for e in every]
        if len(set(digests)) > 1:
            raise _difference(plan, backend, digests)
    return tuple(
        e[-_NODE_BYTES:].tobytes().rstrip(b"\0").decode(errors="replace") for e in every
    )


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
        columns = [timing.operation, timing.issue, timing.start, timing.end]
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
        table = whole.view("<i8").reshape(-1, 4).astype(np.int64)
        operation, issue, start, end = table.T.copy()
        found[other] = Timing(operation=operation, issue=issue, start=start, end=end)
    return found


def _difference(plan: Plan, backend: Backend, digests: list[str]) -> RankError:
    """All ranks come here together: find whose plan differs, and where."""
    everyone, world = len(plan.groups), plan.world
    common = Counter(digests).most_common(1)[0][1]
    usual = next(d for d in digests if digests.count(d) == common)
    other = next(r for r, d in enumerate(digests) if d != usual)
    model = digests.index(usual)
    own = plan.checksum.astype("<u4")
    count = np.array([len(own)], "<i8")
    told = exchange(backend, everyone, [count] * world, [8] * world)
    lengths = [int(c.view("<i8")[0]) for c in told]
    sums = exchange(backend, everyone, [own] * world, [4 * n for n in lengths])
    a, b = sums[model].view("<u4"), sums[other].view("<u4")
    both = min(len(a), len(b))
    differ = np.flatnonzero(a[:both] != b[:both])
    first = int(differ[0]) if len(differ) else both
    return RankError(
        f"has another plan than rank {model} ({lengths[other]} operations with digest "
        f"{digests[other][:12]}, not {lengths[model]} with {usual[:12]}): give every "
        "rank the same trace and the same --iterations",
        rank=other,
        operation=plan.name(first) if first < len(plan) else "the end of the plan",
        cause="mismatch",
    )

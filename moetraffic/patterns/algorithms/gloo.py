"""How gloo sends collectives, as ``torch.distributed`` calls it.

All-reduces go round a ring from each rank to the one *before* it, all-gathers to the
one behind it.  A reduce-scatter is an all-reduce of which most is thrown away: it
moves twice the bytes that it had to.  A reduce is a ring, too, whose parts all go to
the root.

References
----------
gloo, ``allreduce.cc`` (ring; ``computeAllreduceOffsets`` for its segments),
``allgather.cc``, ``broadcast.cc``, ``reduce.cc``, ``alltoall.cc``,
``transport/tcp/pair.cc`` (``Op``); torch, ``ProcessGroupGloo.cpp``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from moetraffic.arrays import Int64

from .ring import ring_all_gather
from .trees import binomial_broadcast

SEGMENT = 1 << 20
"""Bytes of a message at most, in rings."""


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What a collective sends between n members; row sends, column receives."""

    payload: Int64  # [n, n] bytes
    messages: Int64  # [n, n] their number; each has a header of 48 bytes, is announced
    # by another one unless it is asked for already, and asked for by one the other way


def segments(size: int, ranks: int, element: int) -> Int64:
    """``[n, s]`` bytes of the segments of a ring's buffer, s of each rank's part.

    There are two at least of each part, so that one is added up while another travels,
    and each is a megabyte at most.
    """
    most = element * max(1, SEGMENT // element)
    each = ceil(max(ceil(size / most), 2 * ranks) / ranks)
    length = ceil(size / (each * ranks))
    length = ceil(length / element) * element
    begins = length * np.arange(each * ranks)
    return np.clip(size - begins, 0, length).reshape(ranks, each)


def all_reduce(size: int, ranks: int, element: int = 4) -> Sent:
    """A reduce-scatter and an all-gather round the ring, to the rank before."""
    parts = segments(size, ranks, element)
    filled = (parts > 0).sum(axis=1).tolist()  # nothing is not sent
    payload, messages = _zeros(ranks), _zeros(ranks)
    for rank in range(ranks if ranks > 1 else 0):
        before = rank - 1
        # the part that a rank ends up with, and the one that the next ended up with
        kept, known = parts[rank].sum(), parts[rank - 1].sum()
        payload[rank, before] += 2 * size - int(kept) - int(known)
        messages[rank, before] += 2 * sum(filled) - filled[rank] - filled[rank - 1]
    return Sent(payload=payload, messages=messages)


def reduce(size: int, ranks: int, root: int = 0, element: int = 4) -> Sent:
    """A ring's reduce-scatter, then each part to the root."""
    parts = segments(size, ranks, element)
    filled = (parts > 0).sum(axis=1).tolist()  # nothing is not sent
    payload, messages = _zeros(ranks), _zeros(ranks)
    for rank in range(ranks if ranks > 1 else 0):
        kept = int(parts[rank].sum())
        payload[rank, rank - 1] += size - kept
        messages[rank, rank - 1] += sum(filled) - filled[rank]
        if rank != root:
            payload[rank, root] += kept
            messages[rank, root] += kept > 0
    return Sent(payload=payload, messages=messages)


def all_gather(parts: Int64) -> Sent:
    """Each rank passes on every part but the next one's, two messages a part."""
    payload = ring_all_gather(parts)
    edges = np.roll(np.eye(len(parts), dtype=np.int64), 1, axis=1)
    return Sent(payload=payload, messages=2 * (len(parts) - 1) * edges)


def broadcast(size: int, ranks: int, root: int = 0) -> Sent:
    """A binomial tree."""
    payload = binomial_broadcast(size, ranks, root)
    edges = binomial_broadcast(1, ranks, root)
    return Sent(payload=payload, messages=edges)


def to_or_from_root(sizes: Int64, root: int, *, gathers: bool) -> Sent:
    """A gather, or a scatter: parts of ``sizes`` ``[n]`` bytes to or from the root."""
    payload, messages = _zeros(len(sizes)), _zeros(len(sizes))
    payload[:, root], messages[:, root] = sizes, 1
    payload[root, root] = messages[root, root] = 0
    if not gathers:
        payload, messages = payload.T.copy(), messages.T.copy()
    return Sent(payload=payload, messages=messages)


def collective(
    operation: str, volumes: Int64, *, root: int = 0, element: int = 4
) -> Sent:
    """What a collective sends, by its name.

    Parameters
    ----------
    operation
        "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather" or
        "scatter".
    volumes
        ``[n]`` bytes of each member's input.
    root
        The member that broadcasts, reduces, gathers or scatters.
    element
        Bytes of an element.
    """
    ranks, size = len(volumes), int(volumes.max(initial=0))
    if operation in ("all_reduce", "reduce_scatter"):  # of the whole input
        return all_reduce(size, ranks, element)
    if operation == "all_gather":
        return all_gather(volumes)
    if operation == "broadcast":
        return broadcast(size, ranks, root)
    if operation == "reduce":
        return reduce(size, ranks, root, element)
    if operation == "gather":
        return to_or_from_root(volumes, root, gathers=True)
    each = np.full(ranks, size // max(1, ranks), np.int64)
    return to_or_from_root(each, root, gathers=False)


def _zeros(ranks: int) -> Int64:
    return np.zeros((ranks, ranks), np.int64)

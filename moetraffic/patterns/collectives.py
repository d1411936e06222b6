"""What collectives move: how their bytes are counted, and who sends whom how much.

Of n ranks, ``size`` is nccl-tests': the buffer of a rank for all-reduce, broadcast,
reduce and send-receive; the *whole* array for all-gather (what a rank ends up with),
reduce-scatter (what it begins with), gather and scatter (what the root holds), and
all-to-all (what a rank sends, its own part included).  Then

    algbw = size / time
    busbw = wire / time,  wire = factor(n) size

with ``wire`` the bytes that the busiest link must carry each way, whatever the
algorithm.  An uneven all-to-all has no factor of n: its size is the largest row or
column sum of its matrix, its wire the largest without the diagonal.

A collective fixes what every rank ends up with, not how the bytes travel; the
algorithms here are the common ways.  ``parts`` are the ``[n]`` bytes that each rank
contributes to a gather, or ends up with of a scatter.  Matrices are ``[n, n]`` int64
bytes in the order of the group; row sends, column receives.

References
----------
NVIDIA, nccl-tests, doc/PERFORMANCE.md, "Bandwidth"; src/gather.cu, src/scatter.cu,
src/alltoall.cu and src/sendrecv.cu for those that the page does not list.
Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in
MPICH", Int. J. High Perform. Comput. Appl. 19 (2005) 49: rounds and rings.
Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and
scan", Parallel Computing 35 (2009) 581; NCCL, ``src/graph/trees.cc`` (its trees span
nodes, and within a node a chain hangs on them; here every rank is a node of the tree).
Cho et al., "BlueConnect", MLSys 2019, section 3; Jia et al., arXiv 1807.11205, section
3.2 (hierarchical all-reduce).
gloo, ``allreduce.cc``, ``allgather.cc``, ``broadcast.cc``, ``reduce.cc``; torch,
``ProcessGroupGloo.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Bool, Float64, Int64
from moetraffic.errors import LayoutError
from moetraffic.spelling import check_choice

# ---- how bytes are counted -----------------------------------------------------------

UNEVEN = "all_to_all_v"
"""An all-to-all whose bytes a pair are a matrix."""


@dataclass(frozen=True, kw_only=True)
class Convention:
    """How a collective of n ranks is counted."""

    times: int = 1  # that all but a rank's own share crosses the busiest link
    shared: bool = True  # whether a rank's own share stays; otherwise the whole crosses
    gathers: bool = False  # whether size is n inputs of a member
    cut: bool = False  # whether an input consists of n equal parts
    links: str = "n"  # that carry as much as the busiest: "n", "n-1" (a tree), "1"

    def factor(self, n: Float64) -> Float64:
        """Wire bytes of a byte of size."""
        return self.times * (n - 1) / n if self.shared else np.ones_like(n)


COLLECTIVES: Mapping[str, Convention] = {
    "all_reduce": Convention(times=2),
    "all_gather": Convention(gathers=True),
    "reduce_scatter": Convention(cut=True),
    "all_to_all": Convention(),
    UNEVEN: Convention(),  # as if it were even
    "gather": Convention(gathers=True, links="1"),
    "scatter": Convention(cut=True, links="1"),
    "broadcast": Convention(shared=False, links="n-1"),
    "reduce": Convention(shared=False, links="n-1"),
    "send_recv": Convention(shared=False, links="1"),
}
"""By name."""


def convention(collective: str) -> Convention:
    """The convention of a collective; LayoutError if there is none of that name."""
    check_choice("a collective", collective, COLLECTIVES, LayoutError)
    return COLLECTIVES[collective]


def wire_bytes(
    collective: str, ranks: npt.ArrayLike, size_bytes: npt.ArrayLike
) -> Float64:
    """Bytes that the busiest link must carry each way; arrays are broadcast.

    Examples
    --------
    >>> float(wire_bytes("all_reduce", 8, 1000)), float(wire_bytes("broadcast", 8, 10))
    (1750.0, 10.0)
    """
    n = np.asarray(ranks, np.float64)
    return np.asarray(convention(collective).factor(n) * np.asarray(size_bytes))


def steps(collective: str, ranks: npt.ArrayLike) -> Float64:
    """Rounds that must follow each other on a ring, by which latency is counted.

    Examples
    --------
    >>> float(steps("all_reduce", 8)), float(steps("send_recv", 8))
    (14.0, 1.0)
    """
    n = np.asarray(ranks, np.float64)
    if collective == "send_recv":
        return np.ones_like(n)
    return convention(collective).times * (n - 1)


def uneven_bytes(matrix: npt.ArrayLike) -> tuple[int, int]:
    """Size and wire of an uneven all-to-all ``[n, n]``: the largest row or column sum,
    and the largest without the diagonal.

    Examples
    --------
    >>> uneven_bytes([[5, 1], [3, 0]])
    (8, 3)
    """
    cells = np.asarray(matrix, np.int64)
    sums = [
        max(m.sum(axis=axis).max(initial=0) for axis in (0, 1))
        for m in (cells, cells - np.diag(np.diag(cells)))
    ]
    return int(sums[0]), int(sums[1])


def sizes(kind: str, nbytes: Int64) -> Int64:
    """The size S ``[b]`` of operations from the input bytes ``[b, W]`` of members: the
    largest, of W equal parts where an input consists of such."""
    most: Int64 = nbytes.max(axis=1, initial=0)
    members = max(nbytes.shape[1], 1)
    if kind in COLLECTIVES and COLLECTIVES[kind].cut:
        most = -(-most // members) * members
    return most


def traffic_bytes(kind: str, size: Int64, width: Int64, alone: Bool) -> Int64:
    """Network, busiest-link and largest bytes of dense operations, ``[3, n]``.

    Of sizes ``[n]`` of :func:`sizes`, in groups of ``width`` ``[n]`` members, ``alone``
    where a message is of a rank to itself.  Bytes on the network are those of a ring or
    a tree: no algorithm sends less.  The busiest link's are nccl-tests' busbw
    multiplied by the time, and the largest its algbw multiplied by the time.  A message
    from a rank to itself and a group of one use no network; of kinds that are not in
    COLLECTIVES nothing is counted.
    """
    way = COLLECTIVES.get(kind)
    if way is None or kind in ("all_to_all", UNEVEN):
        return np.zeros((3, len(size)), np.int64)
    w, largest = width, size * width if way.gathers else size
    if kind == "send_recv":
        largest = np.where(alone, 0, size)
        return np.stack([largest, largest, size])
    if way.shared:
        network = way.times * (w - 1) * largest  # of all links, n times too large
        if way.links == "n":
            return np.stack([network, -(-network // w), largest])
        return np.stack([network // w, network // w, largest])
    return np.stack([(w - 1) * size, np.where(w > 1, size, 0), size])


# ---- who sends whom how much ---------------------------------------------------------


def chunks(size: int, ranks: int) -> Int64:
    """``[n]`` int64: a buffer of ``size`` bytes in n parts, the first ones larger."""
    base, rest = divmod(size, ranks)
    return np.full(ranks, base, np.int64) + (np.arange(ranks) < rest)


def sent_to_next(operation: str, volumes: Int64) -> Int64:
    """Bytes ``[n]`` that each rank of a ring sends to the next one.

    ``volumes`` ``[n]`` are bytes of each rank's input of an all-reduce, reduce-scatter
    or all-gather.
    """
    if operation == "all_gather":
        # each part but the one that its neighbor began with
        return np.asarray(np.roll(volumes.sum() - volumes, -1), np.int64)
    size = int(volumes.max(initial=0))
    parts = chunks(size, len(volumes))
    # the chunk that a rank ends up with is the one that it never passes on
    scattered = size - parts
    if operation == "reduce_scatter":
        return scattered
    return scattered + size - np.roll(parts, -1)


def ring(operation: str, volumes: Int64) -> Int64:
    """Each rank sends to the next alone: ``2 (n-1)/n size`` of an all-reduce."""
    ranks = np.arange(len(volumes))
    out = np.zeros((len(ranks), len(ranks)), np.int64)
    out[ranks, (ranks + 1) % len(ranks)] = sent_to_next(operation, volumes)
    np.fill_diagonal(out, 0)
    return out


def direct(operation: str, volumes: Int64) -> Int64:
    """Each rank sends every other its part, or the part that this one reduces."""
    gathers = operation == "all_gather"
    parts = volumes if gathers else chunks(int(volumes.max(initial=0)), len(volumes))
    gathered = np.tile(parts[:, None], (1, len(parts)))
    scattered = np.tile(parts, (len(parts), 1))
    ways = {"all_gather": gathered, "reduce_scatter": scattered}
    out = ways.get(operation, gathered + scattered)
    np.fill_diagonal(out, 0)
    return out


def parents(ranks: int, tree: int = 0) -> tuple[int, ...]:
    """Each rank's parent in one of two trees, each of which has the other's leaves
    inside; -1 for the root.

    The first is the in-order binary tree: a rank's lowest set bit is its height.  The
    second is the first mirrored (n even) or shifted by one (n odd).

    Examples
    --------
    >>> parents(4), parents(4, 1)
    ((-1, 2, 0, 2), (1, 3, 1, -1))
    """
    above = [-1] * ranks
    for rank in range(1, ranks):
        bit = rank & -rank
        up = (rank ^ bit) | (bit << 1)
        above[rank] = up if up < ranks else rank ^ bit
    if tree == 0:
        return tuple(above)
    if ranks % 2 == 0:
        return tuple(ranks - 1 - up if up >= 0 else -1 for up in above[::-1])
    shifted = [above[(rank - 1) % ranks] for rank in range(ranks)]
    return tuple((up + 1) % ranks if up >= 0 else -1 for up in shifted)


def double_tree(operation: str, volumes: Int64) -> Int64:
    """Half of an all-reduce's buffer up and down each of two trees.

    Trees reduce alone: NCCL, too, scatters and gathers round a ring.
    """
    if operation != "all_reduce":
        return ring(operation, volumes)
    size, ranks = int(volumes.max(initial=0)), len(volumes)
    out = np.zeros((ranks, ranks), np.int64)
    for tree, half in enumerate((size - size // 2, size // 2)):
        for rank, above in enumerate(parents(ranks, tree)):
            if above >= 0:
                out[rank, above] += half
                out[above, rank] += half
    return out


def gloo(operation: str, volumes: Int64, element: int = 4) -> Int64:
    """All-reduces go round a ring from each rank to the one *before* it, all-gathers to
    the one behind it.

    A reduce-scatter is an all-reduce of which most is thrown away: it moves twice the
    bytes that it had to.
    """
    if operation == "all_gather":
        return ring(operation, volumes)
    size, ranks = int(volumes.max(initial=0)), len(volumes)
    parts = gloo_parts(size, ranks, element)
    out = np.zeros((ranks, ranks), np.int64)
    if ranks > 1:
        # the part that a rank ends up with, and the one that the next ended up with
        sent = 2 * size - parts - np.roll(parts, 1)
        out[np.arange(ranks), np.arange(ranks) - 1] = sent
    return out


def gloo_parts(size: int, ranks: int, element: int) -> Int64:
    """``[n]`` bytes of each rank's part of gloo's ring.

    There are two segments at least of each part, so that one is added up while another
    travels, and each is a megabyte at most.
    """
    most = element * max(1, (1 << 20) // element)
    each = ceil(max(ceil(size / most), 2 * ranks) / ranks)
    length = ceil(ceil(size / (each * ranks)) / element) * element
    begins = length * np.arange(each * ranks)
    parts = np.clip(size - begins, 0, length).reshape(ranks, each)
    return np.asarray(parts.sum(axis=1), np.int64)


def gloo_reduce(size: int, ranks: int, root: int, element: int) -> Int64:
    """A ring's reduce-scatter, then each part to the root."""
    parts, out = gloo_parts(size, ranks, element), np.zeros((ranks, ranks), np.int64)
    for rank in range(ranks if ranks > 1 else 0):
        out[rank, rank - 1] += size - parts[rank]
        if rank != root:
            out[rank, root] += parts[rank]
    return out


def binomial_broadcast(size: int, ranks: int, root: int = 0) -> Int64:
    """A tree in which those who have the buffer double each round; transposed it is a
    reduce."""
    out = np.zeros((ranks, ranks), np.int64)
    have = 1
    while have < ranks:
        for source in range(min(have, ranks - have)):
            out[(root + source) % ranks, (root + source + have) % ranks] = size
        have *= 2
    return out


def hierarchical(operation: str, volumes: Int64, nodes: Sequence[int]) -> Int64:
    """Rings in two levels: within each node, and between those of the same place.

    Of ``size`` bytes of an all-reduce a rank sends ``2 (g-1)/g size`` within its node
    of g ranks and ``2 (m-1)/m size/g`` to another of m.  ``nodes``: of each member.
    """
    out = np.zeros((len(volumes), len(volumes)), np.int64)
    members: dict[int, list[int]] = {}
    for member, node in enumerate(nodes):
        members.setdefault(node, []).append(member)
    inside = list(members.values())
    if len({len(ranks) for ranks in inside}) > 1:
        raise LayoutError(
            "a hierarchical collective has as many ranks on each of its nodes, but "
            f"there are {', '.join(str(len(m)) for m in inside)}: choose another "
            "algorithm"
        )
    each, size = len(inside[0]) if inside else 1, int(volumes.max(initial=0))
    across = [[ranks[place] for ranks in inside] for place in range(each)]
    parts = chunks(size, each)
    if operation == "all_gather":
        for same in across:
            out[np.ix_(same, same)] += ring(operation, volumes[same])
        columns = np.array([volumes[same].sum() for same in across], np.int64)
        for ranks in inside:
            out[np.ix_(ranks, ranks)] += ring(operation, columns)
        return out
    for ranks in inside:
        out[np.ix_(ranks, ranks)] += ring("reduce_scatter", np.full(each, size))
        if operation == "all_reduce":
            out[np.ix_(ranks, ranks)] += ring("all_gather", parts)
    for same, part in zip(across, parts.tolist(), strict=True):
        out[np.ix_(same, same)] += ring(operation, np.full(len(same), part))
    return out


ALGORITHMS: Mapping[str, Callable[..., Int64]] = {
    "ring": ring,
    "direct": direct,
    "double-tree": double_tree,
    "hierarchical": hierarchical,  # of the nodes, too
    "gloo": gloo,  # of the element's bytes, too
}
"""By name, how the three collectives travel; a broadcast is a binomial tree in each."""

REDUCED = ("all_reduce", "reduce_scatter", "all_gather")
KNOWN = (*REDUCED, "broadcast", "reduce", "gather", "scatter")


def rings(algorithm: str, operation: str) -> bool:
    """Whether a collective goes round a ring, to the next rank alone."""
    trees = algorithm == "double-tree" and operation != "all_reduce"
    return operation in REDUCED and (algorithm == "ring" or trees)


def collective_matrix(
    operation: str,
    volumes: Int64,
    algorithm: str,
    *,
    root: int = 0,
    nodes: Sequence[int] | None = None,
    element: int = 4,
) -> Int64:
    """The matrix ``[n, n]`` of one collective of KNOWN, or of a barrier.

    ``volumes`` ``[n]`` are bytes of each member's input, ``root`` the member that
    broadcasts, or that a reduce ends at, ``nodes`` those of the members, which
    "hierarchical" needs (None: all on one), ``element`` the bytes at which gloo cuts
    its messages.  LayoutError if algorithm or operation is not one of those here, or
    the nodes do not suit it.
    """
    check_choice("the algorithm", algorithm, ALGORITHMS, LayoutError)
    volumes = np.asarray(volumes, np.int64)
    ranks, size = len(volumes), int(volumes.max(initial=0))
    out = np.zeros((ranks, ranks), np.int64)
    if operation == "barrier":
        return out
    if operation not in KNOWN:
        raise LayoutError(
            f"how {operation} travels is not known: leave it out of the operations"
        )
    if operation == "reduce" and algorithm == "gloo":
        return gloo_reduce(size, ranks, root, element)
    if operation in ("broadcast", "reduce"):
        tree = binomial_broadcast(size, ranks, root)
        return tree if operation == "broadcast" else tree.T.copy()
    if operation in ("gather", "scatter"):  # with the root, in every algorithm
        if operation == "gather":
            out[:, root] = volumes
        else:
            out[root] = size // max(1, ranks)
        out[root, root] = 0
        return out
    more = {"hierarchical": (nodes or [0] * ranks,), "gloo": (element,)}
    return ALGORITHMS[algorithm](operation, volumes, *more.get(algorithm, ()))

"""Traffic matrix of an iteration: a pattern under a collective algorithm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import LayoutError
from moetraffic.spelling import check_choice

from .calls import Call, Pattern
from .collectives import (
    ALGORITHMS,
    chunks,
    collective_matrix,
    rings,
    sent_to_next,
)
from .layer import TRAFFIC
from .layout import ELEMENT_BYTES

if TYPE_CHECKING:
    import pandas as pd
    from scipy.sparse import csr_array

MOST_BYTES = 10**9
"""Of dense matrices between ranks."""

TRANSPOSED = ("combine", "dispatch_grad")
"""Phases of an expert exchange that send a dispatch back."""


def call_matrix(
    call: Call, members: int, algorithm: str, nodes: Sequence[int] | None = None
) -> Int64:
    """Bytes between the members of one collective, under one of ALGORITHMS.

    ``nodes`` are those of the members, which "hierarchical" needs.

    The matrix is ``[n, n]`` int64; row sends, column receives; nothing on the diagonal.
    """
    if call.operation == "send_recv":
        out = np.zeros((members, members), np.int64)
        for source, destination in call.messages(members):
            out[source, destination] += call.size
    elif call.operation == "all_to_all":
        out = exchange_matrix(call, members)
    else:
        volumes = np.full(members, call.size, np.int64)
        return collective_matrix(
            call.operation,
            volumes,
            algorithm,
            root=call.root,
            nodes=nodes,
            element=ELEMENT_BYTES.get(call.dtype, 8),
        )
    np.fill_diagonal(out, 0)
    return np.asarray(out, np.int64)


def exchange_matrix(call: Call, members: int) -> Int64:
    """Bytes of an all-to-all in which all members send alike.

    Parameters
    ----------
    call
        The all-to-all: as many rows to each member, or by their shares; of rows that
        are over the first members, or those that are next to one, get one more.
    members
        Ranks n of its group.

    Returns
    -------
    ndarray
        ``[n, n]`` int64, what a member keeps for itself on the diagonal.
    """
    row = call.row_bytes or 1
    rows = chunks(call.size // row, members)
    if call.shares:
        exact = np.array(call.shares) * (call.size // row)
        rows = exact.astype(np.int64)
        next_ = np.argsort(rows - exact, kind="stable")[: call.size // row - rows.sum()]
        rows[next_] += 1
    out = np.tile(rows * row, (members, 1))
    # what was dispatched comes back
    return out.T.copy() if call.phase in TRANSPOSED else out


def traffic_matrix(
    pattern: Pattern,
    *,
    traffic: Sequence[str] | None = None,
    algorithm: str = "ring",
    gpus_per_node: int = 0,
) -> Int64:
    """Bytes between all ranks in one iteration.

    Parameters
    ----------
    pattern
        The collectives.
    traffic
        Kinds of traffic that count; None takes all.
    algorithm, gpus_per_node
        How collectives travel; ranks of a node, consecutive, 0: all are on one.

    Returns
    -------
    ndarray
        ``[R, R]`` int64; row sends, column receives.

    Raises
    ------
    LayoutError
        If the algorithm is not known, or does not suit the nodes.
    """
    found = _sparse(pattern, traffic, algorithm, gpus_per_node)
    return np.asarray(found.toarray(), np.int64)


def traffic_matrices(
    pattern: Pattern, *, algorithm: str = "ring", gpus_per_node: int = 0
) -> Mapping[str, csr_array]:
    """:func:`traffic_matrix` of each kind of traffic that there is, by kind; sparse,
    since thousands of ranks send to a few others each."""
    there = {call.traffic for stage in pattern.stages for call, _ in stage.counts}
    return {
        kind: _sparse(pattern, [kind], algorithm, gpus_per_node)
        for kind in TRAFFIC
        if kind in there
    }


def busiest_rank_bytes(pattern: Pattern, matrix: csr_array, kind: str) -> int:
    """Bytes that the busiest rank sends in an iteration, of a kind of traffic.

    With measured shares it is that of each exchange, which sends or receives most of
    it, so that the others wait: summed over the stage that has most.

    Parameters
    ----------
    pattern
        The collectives.
    matrix
        ``[R, R]`` of the kind, of :func:`traffic_matrices`.
    kind
        One of TRAFFIC.
    """
    stages: Counter[int] = Counter()
    for call, groups, times in pattern.calls([kind]):
        if call.shares:
            one = call_matrix(call, len(groups[0]), "ring")
            most = max(one.sum(axis=0).max(), one.sum(axis=1).max())
            stages[pattern.stage_of[groups[0][0]]] += times * int(most)
    return max(stages.values(), default=int(matrix.sum(axis=1).max(initial=0)))


def sent_bytes(pattern: Pattern, matrix: csr_array) -> float:
    """Mean bytes that a rank sends, of the stage whose ranks send most."""
    stages = np.array(pattern.stage_of)
    rows = np.bincount(stages, np.asarray(matrix.sum(axis=1)).ravel())
    return float((rows / np.bincount(stages)).max())


def traffic_table(pattern: Pattern, matrices: Mapping[str, csr_array]) -> pd.DataFrame:
    """Traffic of an iteration by kind: ``bytes`` that the busiest rank sends,
    ``group_size`` and ``groups`` of its largest kind of group, ``calls`` of a rank of
    the stage that makes most, ``operations``."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for kind, matrix in matrices.items():
        calls, operations = Counter[int](), dict[str, int]()
        sizes: dict[str, int] = {}
        for row in pattern.rows():
            if row.call.traffic != kind:
                continue
            calls.update(dict.fromkeys(row.stages, row.times))
            operations[row.call.operation] = 1
            group = row.call.group
            sizes[group] = len(pattern.groups(group, row.stages[0])[0])
        largest = max(sizes, key=lambda name: sizes[name])
        rows.append(
            {
                "kind": kind,
                "bytes": busiest_rank_bytes(pattern, matrix, kind),
                "group_size": sizes[largest],
                "groups": len(pattern.layout.groups(largest)),
                "calls": max(calls.values()),
                "operations": ", ".join(operations),
            }
        )
    return pd.DataFrame(rows)


def _sparse(
    pattern: Pattern, traffic: Sequence[str] | None, algorithm: str, gpus_per_node: int
) -> csr_array:
    check_choice("the algorithm", algorithm, ALGORITHMS, LayoutError)
    from scipy.sparse import coo_array, csr_array  # not every verb has matrices

    world = pattern.layout.world
    each = gpus_per_node or world
    cells: dict[tuple[object, ...], tuple[Int64, Int64, Int64]] = {}
    found: list[tuple[Int64, Int64, Int64]] = []
    for call, groups, times in pattern.calls(traffic):
        members = np.array(groups)
        nodes = members // each
        first = np.zeros_like(nodes)
        if algorithm == "hierarchical":
            first = (nodes[:, :, None] == nodes[:, None, :]).argmax(axis=2)
        shapes, which = np.unique(first, axis=0, return_inverse=True)
        for index, shape in enumerate(shapes):
            key = (
                *(call.operation, call.size, call.root, call.peers, call.shift),
                *(call.phase, call.row_bytes, call.dtype, call.shares, shape.tobytes()),
            )
            if key not in cells:
                cells[key] = _cells(call, len(shape), algorithm, shape.tolist())
            source, destination, sent = cells[key]
            same = members[which.ravel() == index]
            found.append(
                (
                    same[:, source].ravel(),
                    same[:, destination].ravel(),
                    np.tile(times * sent, len(same)),
                )
            )
    if not found:
        return csr_array((world, world), dtype=np.int64)
    rows, columns, sizes = (np.concatenate(part) for part in zip(*found, strict=True))
    return csr_array(coo_array((sizes, (rows, columns)), shape=(world, world)))


def _cells(
    call: Call, members: int, algorithm: str, nodes: Sequence[int]
) -> tuple[Int64, Int64, Int64]:
    """Senders, receivers and bytes of one collective; of a ring without its matrix."""
    if rings(algorithm, call.operation) and members > 1:
        ranks = np.arange(members)
        sent = sent_to_next(call.operation, np.full(members, call.size, np.int64))
        return ranks, (ranks + 1) % members, sent
    refuse_large(members, 1, "choose --algorithm ring, or make its groups smaller")
    one = call_matrix(call, members, algorithm, nodes)
    source, destination = np.nonzero(one)
    return source, destination, one[source, destination]


def refuse_large(ranks: int, matrices: int, remedy: str) -> None:
    """Refuse dense matrices between ranks that need more than :data:`MOST_BYTES`."""
    needed = 8 * ranks**2 * matrices
    if needed > MOST_BYTES:
        raise LayoutError(
            f"a matrix between ranks has at most {MOST_BYTES / 1e9:g} GB, but "
            f"{ranks:,} ranks need {needed / 1e9:,.1f} GB: {remedy}"
        )

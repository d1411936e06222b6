"""Collectives in two levels: within each node, and between nodes.

An all-to-all sends the rows for a place of any node within the own node first, to the
rank of that place, and from there on: each rank sends to one rank of another node.

An all-reduce is reduce-scattered within each node, all-reduced between the ranks that
have the same place in theirs, and all-gathered within each node: of ``size`` bytes a
rank sends ``2 (g-1)/g size`` within its node of g ranks and ``2 (m-1)/m size/g`` to
another of m.  All three go round rings.

References
----------
Cho et al., "BlueConnect", MLSys 2019, section 3; Jia et al., arXiv 1807.11205, section
3.2 (hierarchical all-reduce); Hwang et al., "Tutel", arXiv 2206.03382, section 3.4 (2DH
all-to-all).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import LayoutError

from .ring import chunks, ring_all_gather, ring_all_reduce, ring_reduce_scatter


def hierarchical_matrix(operation: str, volumes: Int64, nodes: Sequence[int]) -> Int64:
    """The matrix of an all-reduce, reduce-scatter or all-gather in two levels.

    ``volumes`` are bytes of each member's input, ``nodes`` the node of each.

    Raises
    ------
    LayoutError
        If nodes have not as many members.
    """
    ranks = len(volumes)
    out = np.zeros((ranks, ranks), np.int64)
    inside = _alike(nodes, ranks)
    each = len(inside[0]) if inside else 0
    size = int(volumes.max(initial=0))
    across = [[m[place] for m in inside] for place in range(each)]
    parts = chunks(size, each) if each else np.zeros(0, np.int64)
    if operation == "all_gather":
        for same in across:
            out[np.ix_(same, same)] += ring_all_gather(volumes[same])
        columns = np.array([volumes[same].sum() for same in across], np.int64)
        for alike in inside:
            out[np.ix_(alike, alike)] += ring_all_gather(columns)
        return out
    for alike in inside:
        out[np.ix_(alike, alike)] += ring_reduce_scatter(size, each)
        if operation == "all_reduce":
            out[np.ix_(alike, alike)] += ring_all_gather(parts)
    for same, part in zip(across, parts.tolist(), strict=True):
        between = ring_all_reduce if operation == "all_reduce" else ring_reduce_scatter
        out[np.ix_(same, same)] += between(part, len(same))
    return out


def hierarchical_all_to_all(matrix: Int64, nodes: Sequence[int]) -> Int64:
    """The matrix ``[n, n]`` of an all-to-all in two levels; ``nodes`` as above.

    Raises
    ------
    LayoutError
        If nodes have not as many members.
    """
    out = np.zeros_like(matrix)
    inside = _alike(nodes, len(matrix))
    for mine in inside:
        for theirs in inside:
            rows = matrix[np.ix_(mine, theirs)]
            out[np.ix_(mine, mine)] += rows  # to who has the receiver's place
            if mine is not theirs:
                out[mine, theirs] += rows.sum(axis=0)
    np.fill_diagonal(out, 0)
    return out


def _alike(nodes: Sequence[int], ranks: int) -> list[list[int]]:
    """Members of each node, which are as many."""
    members: dict[int, list[int]] = {}
    for member, node in enumerate(nodes):
        members.setdefault(node, []).append(member)
    inside = list(members.values())
    if len(nodes) != ranks or any(len(m) != len(inside[0]) for m in inside):
        raise LayoutError(
            "a hierarchical collective has as many ranks on each of its nodes, but "
            f"there are {', '.join(str(len(m)) for m in inside)}: choose another "
            "algorithm"
        )
    return inside

"""Collectives in two levels: within each node, and between nodes.

An all-reduce is reduce-scattered within each node, all-reduced between the ranks that
have the same place in theirs, and all-gathered within each node: of ``size`` bytes a
rank sends ``2 (g-1)/g size`` within its node of g ranks and ``2 (m-1)/m size/g`` to
another of m.  All three go round rings.

References
----------
Cho et al., "BlueConnect", MLSys 2019, section 3; Jia et al., arXiv 1807.11205, section
3.2 (hierarchical all-reduce).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from moetraffic.errors import LayoutError

from .ring import chunks, ring_all_gather, ring_all_reduce, ring_reduce_scatter

Int64 = npt.NDArray[np.int64]


def hierarchical_matrix(operation: str, volumes: Int64, nodes: Sequence[int]) -> Int64:
    """The matrix of an all-reduce, reduce-scatter or all-gather in two levels.

    Parameters
    ----------
    operation
        "all_reduce", "reduce_scatter" or "all_gather".
    volumes
        ``[n]`` bytes of each member's input.
    nodes
        The node of each member.

    Returns
    -------
    ndarray
        ``[n, n]`` int64.

    Raises
    ------
    LayoutError
        If nodes have not as many members.
    """
    ranks = len(volumes)
    out = np.zeros((ranks, ranks), np.int64)
    members: dict[int, list[int]] = {}
    for member, node in enumerate(nodes):
        members.setdefault(node, []).append(member)
    inside = list(members.values())
    each = len(inside[0]) if inside else 0
    if len(nodes) != ranks or any(len(m) != each for m in inside):
        raise LayoutError(
            "a hierarchical collective has as many ranks on each of its nodes, but "
            f"there are {', '.join(str(len(m)) for m in inside)}: choose another "
            "algorithm"
        )
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

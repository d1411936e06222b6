"""A broadcast along a tree, and an all-reduce along two trees at once.

A tree alone keeps half of its ranks, the leaves, from sending more than once; in two
trees of which each has the other's leaves inside, every rank sends as much.

References
----------
Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and
scan", Parallel Computing 35 (2009) 581; NCCL, ``src/graph/trees.cc`` (its trees span
nodes, and within a node a chain hangs on them; here every rank is a node of the tree).
"""

from __future__ import annotations

import numpy as np

from moetraffic.arrays import Int64


def parents(ranks: int, tree: int = 0) -> tuple[int, ...]:
    """Each rank's parent in one of the two trees, -1 for the root.

    The first tree is the in-order binary tree: a rank's lowest set bit is its height.
    The second is the first mirrored (n even) or shifted by one (n odd).

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
        return tuple(
            ranks - 1 - above[ranks - 1 - rank] if above[ranks - 1 - rank] >= 0 else -1
            for rank in range(ranks)
        )
    shifted = [above[(rank - 1) % ranks] for rank in range(ranks)]
    return tuple((up + 1) % ranks if up >= 0 else -1 for up in shifted)


def double_tree_all_reduce(size: int, ranks: int) -> Int64:
    """Half of the buffer up and down each of two trees."""
    out = np.zeros((ranks, ranks), np.int64)
    for tree, half in enumerate((size - size // 2, size // 2)):
        for rank, above in enumerate(parents(ranks, tree)):
            if above >= 0:
                out[rank, above] += half
                out[above, rank] += half
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

"""Who sends whom how much in a collective, under a named algorithm.

A collective fixes what every rank ends up with, not how the bytes travel; these are
the common ways, with ranks in the order of the group.

References
----------
Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in
MPICH", Int. J. High Perform. Comput. Appl. 19 (2005) 49: ring, pairwise exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import LayoutError
from moetraffic.patterns.rules import choose

from . import gloo
from .hierarchical import hierarchical_matrix
from .recursive import (
    halving_doubling_all_reduce,
    halving_reduce_scatter,
    recursive_doubling_all_gather,
    recursive_doubling_all_reduce,
)
from .ring import chunks, ring_all_gather, ring_all_reduce, ring_reduce_scatter
from .trees import binomial_broadcast, double_tree_all_reduce


def direct_all_reduce(size: int, ranks: int) -> Int64:
    """Reduce-scatter and all-gather between every pair: ``2 size / n`` a pair."""
    parts = chunks(size, ranks)
    return direct_reduce_scatter(size, ranks) + direct_all_gather(parts)


def direct_reduce_scatter(size: int, ranks: int) -> Int64:
    """Each rank sends every other the chunk that this one reduces."""
    out = np.tile(chunks(size, ranks), (ranks, 1))
    np.fill_diagonal(out, 0)
    return out


def direct_all_gather(parts: Int64) -> Int64:
    """Each rank sends every other its part."""
    out = np.tile(parts[:, None], (1, len(parts)))
    np.fill_diagonal(out, 0)
    return out


def _halving_reduce_scatter(size: int, ranks: int) -> Int64:
    return halving_reduce_scatter(chunks(size, ranks))


ALGORITHMS: dict[str, dict[str, Callable[..., Int64]]] = {
    "ring": {
        "all_reduce": ring_all_reduce,
        "reduce_scatter": ring_reduce_scatter,
        "all_gather": ring_all_gather,
    },
    "direct": {
        "all_reduce": direct_all_reduce,
        "reduce_scatter": direct_reduce_scatter,
        "all_gather": direct_all_gather,
    },
    # trees reduce alone: NCCL, too, scatters and gathers round a ring
    "double-tree": {
        "all_reduce": double_tree_all_reduce,
        "reduce_scatter": ring_reduce_scatter,
        "all_gather": ring_all_gather,
    },
    "halving-doubling": {
        "all_reduce": halving_doubling_all_reduce,
        "reduce_scatter": _halving_reduce_scatter,
        "all_gather": recursive_doubling_all_gather,
    },
    "recursive-doubling": {
        "all_reduce": recursive_doubling_all_reduce,
        "reduce_scatter": _halving_reduce_scatter,
        "all_gather": recursive_doubling_all_gather,
    },
    "hierarchical": {},  # of the nodes too, see .hierarchical
    "gloo": {},  # of elements and roots too, see .gloo
}
"""By name, how the three collectives travel; a broadcast is a binomial tree in each."""


KNOWN = (*ALGORITHMS["ring"], "broadcast", "reduce", "gather", "scatter")


def collective_matrix(
    operation: str,
    volumes: Int64,
    algorithm: str,
    *,
    root: int = 0,
    nodes: Sequence[int] | None = None,
    element: int = 4,
) -> Int64:
    """The matrix of one collective.

    Parameters
    ----------
    operation
        "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather",
        "scatter" or "barrier".
    volumes
        ``[n]`` bytes of each member's input.
    algorithm
        One of ALGORITHMS.
    root
        The member that broadcasts, or that a reduce ends at.
    nodes
        The node of each member, which "hierarchical" needs; None: all on one.
    element
        Bytes of an element, at which gloo cuts its messages.

    Returns
    -------
    ndarray
        ``[n, n]`` int64.

    Raises
    ------
    LayoutError
        If the algorithm or the operation is not known, or the nodes do not suit it.
    """
    choose("the algorithm", algorithm, ALGORITHMS)
    volumes = np.asarray(volumes, np.int64)
    ranks, size = len(volumes), int(volumes.max(initial=0))
    if operation == "barrier":
        return np.zeros((ranks, ranks), np.int64)
    if algorithm == "gloo" and operation in KNOWN:
        return gloo.collective(operation, volumes, root=root, element=element).payload
    if operation == "broadcast":
        return binomial_broadcast(size, ranks, root)
    if operation == "reduce":
        return binomial_broadcast(size, ranks, root).T.copy()
    if operation in ("gather", "scatter"):  # with the root, in every algorithm
        return gloo.collective(operation, volumes, root=root).payload
    if algorithm == "hierarchical" and operation in ALGORITHMS["ring"]:
        return hierarchical_matrix(operation, volumes, nodes or [0] * ranks)
    made = (ALGORITHMS[algorithm] or ALGORITHMS["ring"]).get(operation)
    if made is None:
        raise LayoutError(
            f"how {operation} travels is not known: leave it out of the operations"
        )
    if operation == "all_gather":
        return made(volumes)
    return made(size, ranks)

"""Who sends whom how much in a collective, under a named algorithm.

A collective fixes what every rank ends up with, not how the bytes travel; these are
the common ways.  Matrices are ``[n, n]`` int64 bytes, row sends, column receives, ranks
in the order of the group.

References
----------
Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in
MPICH", Int. J. High Perform. Comput. Appl. 19 (2005) 49: ring, pairwise exchange.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from moetraffic.errors import LayoutError

Int64 = npt.NDArray[np.int64]


def chunks(size: int, ranks: int) -> Int64:
    """``[n]`` int64: a buffer of ``size`` bytes in n parts, the first ones larger."""
    base, rest = divmod(size, ranks)
    return np.full(ranks, base, np.int64) + (np.arange(ranks) < rest)


def ring_reduce_scatter(size: int, ranks: int) -> Int64:
    """Each rank sends its neighbour every chunk but the neighbour's own predecessor's.

    Parameters
    ----------
    size
        Bytes of a rank's whole input, of which it keeps an n-th.
    ranks
        Number of ranks n.
    """
    out = np.zeros((ranks, ranks), np.int64)
    parts = chunks(size, ranks)
    for rank in range(ranks if ranks > 1 else 0):
        # the chunk that a rank ends up with is the one that it never passes on
        out[rank, (rank + 1) % ranks] = size - parts[rank]
    return out


def ring_all_gather(parts: Int64) -> Int64:
    """Each rank passes on every part but the one that its neighbour began with.

    Parameters
    ----------
    parts
        ``[n]`` bytes that each rank contributes.
    """
    ranks = len(parts)
    out = np.zeros((ranks, ranks), np.int64)
    for rank in range(ranks if ranks > 1 else 0):
        following = (rank + 1) % ranks
        out[rank, following] = int(parts.sum()) - int(parts[following])
    return out


def ring_all_reduce(size: int, ranks: int) -> Int64:
    """A ring reduce-scatter, then a ring all-gather: ``2 (n-1)/n size`` a rank.

    Parameters
    ----------
    size
        Bytes of the buffer that is reduced.
    ranks
        Number of ranks n.
    """
    return ring_reduce_scatter(size, ranks) + ring_all_gather(chunks(size, ranks))


def direct_all_reduce(size: int, ranks: int) -> Int64:
    """Reduce-scatter and all-gather between every pair: ``2 size / n`` a pair."""
    parts = chunks(size, ranks)
    out = parts[None, :] + parts[:, None]  # my part of theirs, then theirs of mine
    np.fill_diagonal(out, 0)
    return np.asarray(out, np.int64)


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


def binomial_broadcast(size: int, ranks: int, root: int = 0) -> Int64:
    """A tree in which those who have the buffer double each round."""
    out = np.zeros((ranks, ranks), np.int64)
    have = 1
    while have < ranks:
        for source in range(min(have, ranks - have)):
            out[(root + source) % ranks, (root + source + have) % ranks] = size
        have *= 2
    return out


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
}
"""By name, how the three collectives travel; a broadcast is a binomial tree in each."""


def collective_matrix(operation: str, volumes: Int64, algorithm: str) -> Int64:
    """The matrix of one collective.

    Parameters
    ----------
    operation
        "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce" or
        "barrier".
    volumes
        ``[n]`` bytes of each member's input.
    algorithm
        One of ALGORITHMS.

    Returns
    -------
    ndarray
        ``[n, n]`` int64.

    Raises
    ------
    LayoutError
        If the algorithm or the operation is not known.
    """
    if algorithm not in ALGORITHMS:
        raise LayoutError(
            f"the algorithm is one of {', '.join(ALGORITHMS)}, not {algorithm!r}: "
            "choose one"
        )
    ranks, size = len(volumes), int(volumes.max(initial=0))
    if operation == "barrier":
        return np.zeros((ranks, ranks), np.int64)
    if operation == "broadcast":
        return binomial_broadcast(size, ranks)
    if operation == "reduce":
        return binomial_broadcast(size, ranks).T.copy()
    made = ALGORITHMS[algorithm].get(operation)
    if made is None:
        raise LayoutError(
            f"how {operation} travels is not known: leave it out of the operations"
        )
    if operation == "all_gather":
        return made(np.asarray(volumes, np.int64))
    return made(size, ranks)

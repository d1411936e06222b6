"""Collectives round a ring: each rank sends to the next one alone.

References
----------
Thakur, Rabenseifner, Gropp, Int. J. High Perform. Comput. Appl. 19 (2005) 49; Patarasuk
and Yuan, J. Parallel Distrib. Comput. 69 (2009) 117: no all-reduce sends less.
"""

from __future__ import annotations

import numpy as np

from moetraffic.arrays import Int64


def chunks(size: int, ranks: int) -> Int64:
    """``[n]`` int64: a buffer of ``size`` bytes in n parts, the first ones larger."""
    base, rest = divmod(size, ranks)
    return np.full(ranks, base, np.int64) + (np.arange(ranks) < rest)


def ring_reduce_scatter(size: int, ranks: int) -> Int64:
    """Each rank sends its neighbor every chunk but the neighbor's own predecessor's."""
    # the chunk that a rank ends up with is the one that it never passes on
    return _to_next(size - chunks(size, ranks))


def ring_all_gather(parts: Int64) -> Int64:
    """Each rank passes on every part but the one that its neighbor began with."""
    others = np.asarray(parts, np.int64).sum() - parts
    return _to_next(np.roll(others, -1))


def ring_all_reduce(size: int, ranks: int) -> Int64:
    """A ring reduce-scatter, then a ring all-gather: ``2 (n-1)/n size`` a rank."""
    parts = chunks(size, ranks)
    return _to_next(2 * size - parts - np.roll(parts, -1))


def _to_next(sent: Int64) -> Int64:
    """What each rank sends to its neighbor as a matrix, which is not copied: rings of
    tens of thousands of ranks have pages that nobody touches."""
    ranks = np.arange(len(sent))
    out = np.zeros((len(sent), len(sent)), np.int64)
    out[ranks, (ranks + 1) % len(sent)] = sent
    return out

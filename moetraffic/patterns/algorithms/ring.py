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


def sent_to_next(operation: str, volumes: Int64) -> Int64:
    """Bytes ``[n]`` that each rank sends to the next one.

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


def ring_reduce_scatter(size: int, ranks: int) -> Int64:
    """Each rank sends its neighbor every chunk but the neighbor's own predecessor's."""
    return _ring("reduce_scatter", np.full(ranks, size, np.int64))


def ring_all_gather(parts: Int64) -> Int64:
    """Each rank passes on every part but the one that its neighbor began with."""
    return _ring("all_gather", np.asarray(parts, np.int64))


def ring_all_reduce(size: int, ranks: int) -> Int64:
    """A ring reduce-scatter, then a ring all-gather: ``2 (n-1)/n size`` a rank."""
    return _ring("all_reduce", np.full(ranks, size, np.int64))


def _ring(operation: str, volumes: Int64) -> Int64:
    """What each rank sends to its neighbor as a matrix."""
    ranks = np.arange(len(volumes))
    out = np.zeros((len(ranks), len(ranks)), np.int64)
    out[ranks, (ranks + 1) % len(ranks)] = sent_to_next(operation, volumes)
    return out


RINGS = (ring_reduce_scatter, ring_all_gather, ring_all_reduce)
"""Collectives whose matrices follow from :func:`sent_to_next`."""

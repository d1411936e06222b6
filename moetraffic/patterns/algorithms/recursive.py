"""Collectives by exchanges with partners at doubling or halving distances.

A rank's partner in a round differs from it in one bit, so the edges in use are those of
a hypercube.  Where the ranks are no power of two, the first ``2 r`` of them fold: each
even one gives its buffer to the odd one behind it, which stands for both, and gets the
result in the end.

References
----------
Thakur, Rabenseifner, Gropp, Int. J. High Perform. Comput. Appl. 19 (2005) 49, sections
4.1 (recursive doubling), 4.4 (recursive halving) and 4.5 (Rabenseifner's all-reduce).
"""

from __future__ import annotations

import numpy as np

from moetraffic.arrays import Int64

from .ring import chunks


def recursive_doubling_all_reduce(size: int, ranks: int) -> Int64:
    """Whole buffers with every partner: ``log2(n) size`` a rank, few rounds."""
    places, out = _folded(size, ranks)
    for mine, rank in enumerate(places):
        for bit in _bits(len(places)):
            out[rank, places[mine ^ bit]] += size
    return out


def halving_reduce_scatter(parts: Int64) -> Int64:
    """Each round half of what is left goes to a partner, the farthest first."""
    return recursive_doubling_all_gather(parts).T.copy()


def recursive_doubling_all_gather(parts: Int64) -> Int64:
    """Each round everything gathered so far goes to a partner, the nearest first."""
    ranks = len(parts)
    total = int(parts.sum())
    places, held, out = _represented(parts)
    have = held.copy()
    for bit in _bits(len(places)):
        before = have.copy()
        for mine, rank in enumerate(places):
            out[rank, places[mine ^ bit]] += before[mine]
            have[mine] += before[mine ^ bit]
    for even in range(0, 2 * (ranks - len(places)), 2):
        out[even + 1, even] += total - int(parts[even])
    return out


def halving_doubling_all_reduce(size: int, ranks: int) -> Int64:
    """Rabenseifner's: recursive halving, then recursive doubling.

    ``2 (n-1)/n size`` a rank where n is a power of two.
    """
    places, out = _folded(size, ranks)
    parts = chunks(size, len(places))
    inner = halving_reduce_scatter(parts) + recursive_doubling_all_gather(parts)
    out[np.ix_(places, places)] += inner
    return out


def _bits(count: int) -> list[int]:
    """1, 2, 4 ... below a power of two."""
    return [1 << i for i in range(count.bit_length() - 1)]


def _representatives(ranks: int) -> list[int]:
    """The ranks that exchange: a power of two, an odd one for each pair that folds."""
    folds = ranks - (1 << (ranks.bit_length() - 1))
    return [*range(1, 2 * folds, 2), *range(2 * folds, ranks)]


def _folded(size: int, ranks: int) -> tuple[list[int], Int64]:
    """The ranks that exchange, and what folding sends: a buffer there, one back."""
    places, out = _representatives(ranks), np.zeros((ranks, ranks), np.int64)
    even = np.arange(0, 2 * (ranks - len(places)), 2)
    out[even, even + 1] = out[even + 1, even] = size
    return places, out


def _represented(parts: Int64) -> tuple[list[int], Int64, Int64]:
    """The ranks that exchange, what each has to begin with, and what folding sends."""
    ranks = len(parts)
    places, out = _representatives(ranks), np.zeros((ranks, ranks), np.int64)
    held = parts[places].copy()
    even = np.arange(0, 2 * (ranks - len(places)), 2)
    out[even, even + 1] = parts[even]
    held[: len(even)] += parts[even]
    return places, held, out

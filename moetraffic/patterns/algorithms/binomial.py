"""A broadcast along a binomial tree."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


def binomial_broadcast(size: int, ranks: int, root: int = 0) -> Int64:
    """A tree in which those who have the buffer double each round.

    Parameters
    ----------
    size
        Bytes of the buffer.
    ranks
        Number of ranks n.
    root
        The rank that has it.

    Returns
    -------
    ndarray
        ``[n, n]`` int64; transposed it is a reduce.
    """
    out = np.zeros((ranks, ranks), np.int64)
    have = 1
    while have < ranks:
        for source in range(min(have, ranks - have)):
            out[(root + source) % ranks, (root + source + have) % ranks] = size
        have *= 2
    return out

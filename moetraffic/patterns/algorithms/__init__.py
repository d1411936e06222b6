"""Who sends whom how much in a collective, by algorithm.

Of n ``ranks``, ``size`` is the bytes of a rank's whole buffer, and ``parts`` are the
``[n]`` bytes that each rank contributes to a gather, or ends up with of a scatter.
Matrices are ``[n, n]`` int64 bytes; row sends, column receives.
"""

from __future__ import annotations

from .matrices import ALGORITHMS, collective_matrix, direct_all_reduce
from .ring import ring_all_reduce

__all__ = ["ALGORITHMS", "collective_matrix", "direct_all_reduce", "ring_all_reduce"]

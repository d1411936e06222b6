"""Who sends whom how much in a collective, by algorithm."""

from __future__ import annotations

from .matrices import ALGORITHMS, collective_matrix, direct_all_reduce
from .ring import ring_all_reduce

__all__ = ["ALGORITHMS", "collective_matrix", "direct_all_reduce", "ring_all_reduce"]

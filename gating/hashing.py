"""Counter-based random numbers from integer hashes, equal on all ranks and devices.

A router that uses them needs no generator and no state, and a recomputed forward pass
obtains the same numbers.

References
----------
Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014: the
finalizer of SplitMix64; its increment is 2^64 divided by the golden ratio.
"""

from __future__ import annotations

import torch
from torch import Tensor

_INCREMENT = 0x9E3779B97F4A7C15 - 2**64  # int64 wraps around as uint64 does
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def mixed(*keys: int | Tensor) -> Tensor:
    """Compute a 64-bit hash of integer keys, which depends on their order.

    Parameters
    ----------
    keys
        Integers, or int64 tensors that broadcast together.

    Returns
    -------
    Tensor
        int64 of the broadcast shape, uniform over all 2^64 values.
    """
    state = torch.zeros((), dtype=torch.int64)
    for key in keys:
        if isinstance(key, Tensor) and key.device != state.device:
            state = state.to(key.device)
        state = _finalized((state ^ key) + _INCREMENT)
    return state


def uniform(*keys: int | Tensor) -> Tensor:
    """Compute uniform float64 numbers in (0, 1), 52 random bits, from integer keys."""
    bits = _shifted(mixed(*keys), 12)
    return (bits.double() + 0.5) * 2.0**-52


def _finalized(state: Tensor) -> Tensor:
    state = (state ^ _shifted(state, 30)) * _FIRST
    state = (state ^ _shifted(state, 27)) * _SECOND
    return state ^ _shifted(state, 31)


def _shifted(state: Tensor, bits: int) -> Tensor:
    """Shift int64 values right logically (torch's shift extends the sign)."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)

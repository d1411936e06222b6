"""Experts of sampled tokens as bit sets: a bit for each token and expert.

Counts by rank and expert do not show which experts a token has together.  Bits do, for
any number of experts per token, in E/8 bytes per token.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Bool, UInt8

NO_SAMPLE = (
    "experts of single tokens are not recorded, for no router reported them: register "
    "the router with moetraffic.capture.router"
)
"""Warning where a sample of tokens was asked for, and none was recorded."""


def packed_bytes(experts: int) -> int:
    """Return the number of bytes B of a token's bit set of E experts."""
    return -(-experts // 8)


def pack(chosen: npt.NDArray[np.generic]) -> UInt8:
    """Pack a mask ``[..., E]`` into bit sets ``[..., B]``, expert 0 highest.

    Examples
    --------
    >>> pack(np.array([[True, False, True]])).tolist()
    [[160]]
    """
    return np.packbits(chosen != 0, axis=-1)


def unpack(bits: UInt8, experts: int) -> Bool:
    """Unpack bit sets ``[..., B]`` into a mask ``[..., E]``."""
    return np.unpackbits(bits, axis=-1, count=experts).view(bool)


def resized(bits: UInt8, tokens: int) -> UInt8:
    """Add empty tokens to bit sets ``[..., S, B]``, to ``[..., tokens, B]``."""
    out = np.zeros((*bits.shape[:-2], tokens, bits.shape[-1]), np.uint8)
    out[..., : bits.shape[-2], :] = bits
    return out

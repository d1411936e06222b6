"""Experts of sampled tokens: ids in traces, bit sets in the records of a capture."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Bool, UInt8

NO_SAMPLE = (
    "experts of single tokens are not recorded, for no router reported them: register "
    "the router with moetraffic.capture.router"
)
"""Warning where a sample of tokens was asked for, and none was recorded."""

ExpertIds = npt.NDArray[np.int16]


def expert_ids(mask: Bool) -> ExpertIds:
    """Convert masks ``[..., E]`` to ascending ids ``[..., k]``, -1 for none.

    Examples
    --------
    >>> expert_ids(np.array([[True, False, True], [False, True, False]])).tolist()
    [[0, 2], [1, -1]]
    """
    k = int(mask.sum(axis=-1).max(initial=0))
    order = np.argsort(~mask, axis=-1, kind="stable")[..., :k]
    there = np.take_along_axis(mask, order, axis=-1)
    return np.where(there, order, -1).astype(np.int16)


def expert_mask(ids: npt.NDArray[np.integer], experts: int) -> Bool:
    """Convert ids ``[..., k]``, -1 for none, to a mask ``[..., E]``."""
    mask = np.zeros((*ids.shape[:-1], experts + 1), bool)
    np.put_along_axis(mask, ids.astype(np.int64), True, axis=-1)  # -1: the last
    return mask[..., :experts]


def padded(ids: ExpertIds, tokens: int, k: int) -> ExpertIds:
    """Fill ids ``[..., S, k]`` up with -1 to ``[..., tokens, k]``."""
    out = np.full((*ids.shape[:-2], tokens, k), -1, np.int16)
    out[..., : ids.shape[-2], : ids.shape[-1]] = ids
    return out


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

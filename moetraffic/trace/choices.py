"""Experts of sampled tokens, as ids."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Bool

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

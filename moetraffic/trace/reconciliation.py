"""Reconcile the bytes of an all-to-all recorded by both source and destination.

A cell of the matrix is recorded twice: by its source as sent, by its destination as
received.  Both must be equal.  Where one is missing (a rank's record, or the end of a
truncated list) the other replaces it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .model import Bool, Int64, Presence

UInt8 = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Reconciled:
    """Bytes of an all-to-all's occurrences after reconciling both ends' records."""

    sent: Int64  # [n, W, W] bytes, row sends; 0 where unknown
    presence: UInt8  # [n, W] Presence
    conflict: Bool  # [n, W, W] where the two ends contradict each other


def sized(presence: UInt8) -> Bool:
    """Return a mask of the members whose bytes are known, shaped as ``presence``."""
    known = (presence == Presence.RECORDED) | (presence == Presence.RECOVERED)
    return np.asarray(known, bool)


def reconcile(splits: Int64, recorded: Bool, *, recover: bool) -> Reconciled:
    """Compare sent with received bytes, and optionally fill in missing ones.

    Parameters
    ----------
    splits
        ``[n, W, 2, W]`` int64 bytes that each member sent to and received from each;
        below 0 where unknown.
    recorded
        ``[n, W]`` which members recorded the occurrence.
    recover
        Fill bytes missing at the source with the bytes received at the destination.

    Returns
    -------
    Reconciled
        A row in which every cell is known is RECORDED, or RECOVERED if a cell came from
        a peer.  Rank-local bytes, which no peer records, are 0 in the recovered row of
        a member that recorded nothing.
    """
    sent, received = splits[:, :, 0], splits[:, :, 1].transpose(0, 2, 1)
    by_source = recorded[:, :, None] & (sent >= 0)
    by_destination = recorded[:, None, :] & (received >= 0)
    conflict = by_source & by_destination & (sent != received)
    own = by_source.all(axis=2)
    known = by_source | by_destination if recover else by_source
    values = np.where(by_source, sent, np.where(known, received, 0))
    if recover:
        width = np.arange(sent.shape[1])
        # rank-local cell: recoverable only if there is at least one peer
        known[:, width, width] |= ~recorded & (len(width) > 1)
    whole = known.all(axis=2)
    presence = np.full(recorded.shape, Presence.ABSENT, np.uint8)
    presence[whole] = Presence.RECOVERED
    presence[recorded & ~whole] = Presence.UNSIZED
    presence[recorded & own] = Presence.RECORDED
    return Reconciled(
        sent=np.asarray(values, np.int64), presence=presence, conflict=conflict
    )

"""Reconcile sent and received bytes of an all-to-all, recorded by both ends.

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
    """Reconciled bytes of the occurrences of an all-to-all."""

    sent: Int64  # [n, W, W] bytes, row sends; 0 where unknown
    presence: UInt8  # [n, W] Presence
    conflict: Bool  # [n, W, W] where the two ends contradict each other


def sized(presence: UInt8) -> Bool:
    """Which members' bytes are known, of the shape of ``presence``."""
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
        Fill what a source did not record with what its destinations received.

    Returns
    -------
    Reconciled
        A row of which every cell is known is RECORDED, or RECOVERED where a cell came
        from a peer.  What a member kept for itself, which no peer sees, is 0 in the
        recovered row of a member that recorded nothing.
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
        # of all members but itself: at least one must have seen it
        known[:, width, width] |= ~recorded & (len(width) > 1)
    whole = known.all(axis=2)
    presence = np.full(recorded.shape, Presence.ABSENT, np.uint8)
    presence[whole] = Presence.RECOVERED
    presence[recorded & ~whole] = Presence.UNSIZED
    presence[recorded & own] = Presence.RECORDED
    return Reconciled(
        sent=np.asarray(values, np.int64), presence=presence, conflict=conflict
    )

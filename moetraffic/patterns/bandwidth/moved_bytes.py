"""Compute the bytes that each kind of collective moves, as nccl-tests counts them.

S is the largest input of a member (:func:`sizes`), and W the number of members:

=============== ============== ================= ========== =======================
kind            on the network busiest link      largest    sent by a rank
=============== ============== ================= ========== =======================
all_reduce      2 (W-1) S      2 (W-1) S / W     S          an equal share
all_gather      W (W-1) S      (W-1) S           W S        an equal share
reduce_scatter  (W-1) S        (W-1) S / W       S          an equal share
broadcast       (W-1) S        S                 S          an equal share
reduce          (W-1) S        S                 S          an equal share
gather          (W-1) S        (W-1) S           W S        S, the receiver nothing
scatter         (W-1) S / W    (W-1) S / W       S          all of it the sender
send_recv       S              S                 S          all of it the sender
barrier         0              0                 0          nothing
=============== ============== ================= ========== =======================

The bytes on the network are those of a ring or a tree: no algorithm sends less.  The
bytes of the busiest link are nccl-tests' busbw multiplied by the time, and the largest
its algbw multiplied by the time.
A message from a rank to itself and a group of one use no network.

References
----------
NVIDIA, nccl-tests, doc/PERFORMANCE.md, "Bandwidth";
:mod:`moetraffic.patterns.algorithms`.
"""

from __future__ import annotations

import numpy as np

from moetraffic.arrays import Bool, Int64

CUT = frozenset({"reduce_scatter", "scatter"})
"""Kinds of collectives whose size S must consist of W equal parts."""


def sizes(kind: str, nbytes: Int64) -> Int64:
    """Compute the size S of operations, ``[b]``, from input bytes ``[b, W]``."""
    most: Int64 = nbytes.max(axis=1, initial=0)
    if kind not in CUT:
        return most
    members = max(nbytes.shape[1], 1)
    cut: Int64 = -(-most // members) * members
    return cut


def traffic_bytes(kind: str, size: Int64, width: Int64, alone: Bool) -> Int64:
    """Compute network, busiest-link and largest bytes of dense operations, ``[3, n]``.

    Parameters
    ----------
    kind
        One of the kinds above; nothing is counted of others, such as barriers.
    size
        ``[n]`` size S, in bytes.
    width
        ``[n]`` number W of group members.
    alone
        ``[n]`` whether it is a message of a rank to itself.
    """
    out, s, w = np.zeros((3, len(size)), np.int64), size, width
    if kind == "all_reduce":
        out[:] = 2 * (w - 1) * s, -(-2 * (w - 1) * s // w), s
    elif kind == "all_gather":
        out[:] = w * (w - 1) * s, (w - 1) * s, w * s
    elif kind == "reduce_scatter":
        out[:] = (w - 1) * s, (w - 1) * s // w, s
    elif kind in ("broadcast", "reduce"):
        out[:] = (w - 1) * s, np.where(w > 1, s, 0), s
    elif kind == "gather":
        out[:] = (w - 1) * s, (w - 1) * s, w * s
    elif kind == "scatter":
        out[:] = (w - 1) * s // w, (w - 1) * s // w, s
    elif kind == "send_recv":
        there = np.where(alone, 0, s)
        out[:] = there, there, s
    return out

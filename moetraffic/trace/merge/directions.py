"""Directions of collectives: forward pass, backward pass, or recomputed forward pass.

While the autograd engine runs, a call is part of the backward pass or of a recomputed
forward pass (activation checkpointing).  The running autograd node, whether autograd
records, and the sequence number that a node shares with the forward call inside the
function that created it, tell which.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moetraffic.arrays import Bool, Int64
from moetraffic.trace.model import PHASES

FORWARD, BACKWARD, RECOMPUTE, UNKNOWN = range(4)
DIRECTION_NAMES = ("forward", "backward", "recompute", "")
RECOMPUTES = "CheckpointFunction"  # in torch and other libraries


def directions(
    *,
    exchange: Bool,
    in_backward: Bool,
    grad: Bool,
    link: Int64,
    node: Int64,
    nodes: Sequence[str],
    phase: Int64,
    phases: Sequence[str],
    trains: Bool,
) -> tuple[Int64, Int64]:
    """Classify the collectives of a rank, in call order.

    Parameters
    ----------
    exchange, in_backward, grad, trains
        ``[n]``: an all-to-all; made while the autograd engine runs; while autograd
        records; by the main thread, or the one that started the recording.
    link
        ``[n]`` sequence number of the running autograd node; in a forward pass, of the
        last created node; -1 for none.
    node, nodes
        ``[n]`` index of the running node's name, -1 for none, and the names.
    phase, phases
        ``[n]`` index of the annotated phase, and the phases ("" for none).

    Returns
    -------
    tuple
        ``[n]`` index into DIRECTION_NAMES, and ``[n]`` links, -1 where there is none.
    """
    named_forward = np.array([p in PHASES[:2] for p in phases], bool)[phase]
    named = np.array([p != "" for p in phases], bool)[phase]
    # one more at the end: the index -1 of calls outside of a node
    recomputes = np.array([n.startswith(RECOMPUTES) for n in nodes] + [False])[node]
    builtin = np.array([n[-1:].isdigit() for n in nodes] + [False])[node]

    direction = np.full(len(link), BACKWARD)
    ahead = ~in_backward & ~(named & ~named_forward)
    # outside of an autograd function of its own, a thread may communicate for any pass
    # of another
    unknown = ahead & ~trains & (grad | (link < 0))
    forward = ahead & ~unknown
    direction[forward], direction[unknown] = FORWARD, UNKNOWN

    links, first = np.unique(link[forward], return_index=True)
    position = np.flatnonzero(forward)[first]
    place = np.searchsorted(links, link)
    place = np.minimum(place, max(0, len(links) - 1))
    linked = np.zeros(len(link), bool)
    if len(links):
        linked = (links[place] == link) & (position[place] < np.arange(len(link)))

    bare = in_backward & ~named
    # autograd does not record inside a custom function, forward or backward; elsewhere
    # only a recomputed forward pass records
    again = bare & (grad | recomputes)
    # autograd's built-in nodes (names end in a digit) call no all-to-all: the call is a
    # forward pass that recomputes a saved tensor of the node
    again |= bare & ~again & ~linked & exchange & builtin
    again |= in_backward & named_forward
    direction[again] = RECOMPUTE
    kept = forward | (in_backward & ~again & (named | linked))
    return direction, np.where(kept, link, -1)

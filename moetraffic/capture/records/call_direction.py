"""Classify collectives as forward, backward or recomputation.

While the autograd engine runs, a call is part of the backward pass or of a recomputed
forward pass (activation checkpointing).  The classification uses the running autograd
node, whether autograd records, and the sequence number that a node shares with the
forward call inside the function that created it.
"""

from __future__ import annotations

from moetraffic.trace.model import ALL_TO_ALL, PHASES

FORWARD_PHASES = PHASES[:2]
RECOMPUTES = "CheckpointFunction"  # in torch and other libraries
MOST_LINKS = 1 << 16


class Directions:
    """Classifier of a rank's collectives by direction, in call order."""

    def __init__(self) -> None:
        self._links: dict[int, None] = {}  # of forward calls, oldest first

    def of(
        self,
        operation: str,
        *,
        in_backward: bool,
        grad: bool,
        link: int,
        node: str,
        phase: str,
        trains: bool = True,
    ) -> tuple[str, int]:
        """Classify a collective by direction, with its autograd sequence number.

        In a backward pass, ``node`` and ``link`` are name and sequence number of the
        running autograd node ("" and -1 for none); in a forward pass, ``link`` is that
        of the last created node.  ``grad`` is whether autograd records, and ``phase``
        the program's annotation.  ``trains`` is whether the calling thread is the main
        thread, or the one that started the recording.  The result is "forward",
        "backward", "recompute" or "" for unknown, and the link, -1 where there is none.
        """
        if not in_backward:
            if phase and phase not in FORWARD_PHASES:
                return "backward", -1
            if not trains and (grad or link < 0):
                # outside of an autograd function of its own, a thread may communicate
                # for any pass of another
                return "", -1
            self._links.setdefault(link)
            if len(self._links) > MOST_LINKS:
                del self._links[next(iter(self._links))]
            return "forward", link
        if phase:
            if phase in FORWARD_PHASES:
                return "recompute", -1
            return "backward", link
        # autograd does not record inside a custom function, forward or backward;
        # elsewhere only a recomputed forward pass records
        if grad or node.startswith(RECOMPUTES):
            return "recompute", -1
        if link in self._links:
            return "backward", link
        # autograd's built-in nodes (names end in a digit) call no all-to-all: the call
        # is a forward pass that recomputes a saved tensor of the node
        if operation == ALL_TO_ALL and node[-1:].isdigit():
            return "recompute", -1
        return "backward", -1

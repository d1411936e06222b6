"""Classify calls as forward, backward or recomputation.

While the autograd engine runs, a call is part of the backward pass or of a forward
pass that is computed once more (activation checkpointing).  What is known of a call is
the autograd node that runs, whether autograd records, and the sequence number that a
node shares with the forward call inside the function that made it.
"""

from __future__ import annotations

from collections import deque

from moetraffic.trace.model import ALL_TO_ALL, PHASES

FORWARD_PHASES = PHASES[:2]
RECOMPUTES = "CheckpointFunction"  # torch's and, by the same name, others' node
GATHERS = "AccumulateGrad"
MOST_LINKS = 1 << 16


class Directions:
    """Classifies the direction of a rank's calls, in call order."""

    def __init__(self) -> None:
        self._links: set[int] = set()
        self._order: deque[int] = deque()

    def of(
        self,
        operation: str,
        *,
        in_backward: bool,
        grad: bool,
        link: int,
        node: str,
        phase: str,
    ) -> tuple[str, int]:
        """Classify a call; return its direction and autograd sequence number.

        Parameters
        ----------
        operation
            What is called.
        in_backward
            Whether the autograd engine runs.
        grad
            Whether autograd records.
        link
            Sequence number of the node that runs; in the forward pass, of the node
            that was made last.
        node
            Name of the node that runs, "" for none.
        phase
            What the program calls it, "" if it does not.

        Returns
        -------
        str
            "forward", "backward" or "recompute".
        int
            The link, -1 where there is none.
        """
        if not in_backward:
            self._remember(link)
            return "forward", link
        if phase:
            again = phase in FORWARD_PHASES
            return "recompute" if again else "backward", -1 if again else link
        # a custom function computes without recording, forward as backward; elsewhere
        # only a recomputed forward pass records
        if grad or node.startswith(RECOMPUTES):
            return "recompute", -1
        if link in self._links:
            return "backward", link
        # autograd's own nodes (their names end in a digit) call no all-to-all: it is
        # the forward pass that a saved tensor of theirs is computed with once more
        if operation == ALL_TO_ALL and node[-1:].isdigit():
            return "recompute", -1
        return "backward", -1

    def _remember(self, link: int) -> None:
        if link in self._links:
            return
        self._links.add(link)
        self._order.append(link)
        if len(self._order) > MOST_LINKS:
            self._links.discard(self._order.popleft())

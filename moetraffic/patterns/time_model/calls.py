"""Calls of one collective in an iteration, as the time model counts them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moetraffic.patterns.values import Float64, Values, shared


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Calls of one collective that a rank takes part in, in one iteration."""

    kind: str  # tp, cp, pp, ep, dp, edp, embedding, ends
    collective: str  # all_reduce, all_gather, reduce_scatter, all_to_all, send_recv
    ranks: Float64  # n of the group
    stride: Float64  # between neighbors of the group, in Megatron's order of ranks
    buffer: Float64  # bytes of a call, as nccl-tests count them: the whole buffer
    calls: Float64  # of an iteration
    every_micro_batch: bool  # or once an iteration
    sent: Values | None = (
        None  # of a send_recv's calls, what this rank sends; None: all
    )
    copies: Values = 0  # k, where a node gets one copy of a token and hands it on
    most_nodes: Values = np.inf  # that the k experts of a token lie on
    entries: Values = 0  # of a list of tensors in place of a flat buffer; 0: flat

    @property
    def wire(self) -> Float64:
        """Bytes that a rank sends: ``2 (n-1)/n`` of an all-reduce's buffer, ``(n-1)/n``
        of the others', all of what is sent to one peer."""
        if self.collective == "send_recv":
            sends = self.calls if self.sent is None else self.sent
            return np.asarray(sends * self.buffer)
        turns = 2 if self.collective == "all_reduce" else 1
        return turns * shared(self.calls * self.buffer, self.ranks)

    @property
    def moved(self) -> Float64:
        """Bytes that the rank sends or waits for, one after the other."""
        if self.collective == "send_recv":
            return np.asarray(self.calls * self.buffer)
        return self.wire

    @property
    def steps(self) -> Float64:
        """Messages one after the other of a rank: latency's part of Hockney's T."""
        if self.collective == "send_recv":
            return self.calls
        turns = 2 if self.collective == "all_reduce" else 1
        return turns * self.calls * (self.ranks - 1)

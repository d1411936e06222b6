"""Calls of one collective in an iteration, as the time model counts them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.patterns.bandwidth.collective import steps, wire_bytes
from moetraffic.patterns.values import Values


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
    # of a send_recv's calls, what this rank sends; None: all
    sent: Values | None = None
    point: str = ""  # of an iteration, where copies are kept equal: one of POINTS
    group: str = ""  # kind of process group, where a kind of traffic has several
    at_once: Values = False  # with those of its kind's other groups: the longest counts
    entries: Values = 0  # of a list of tensors in place of a flat buffer; 0: flat

    @property
    def wire(self) -> Float64:
        """Bytes that a rank sends, by the conventions of collectives."""
        if self.sent is None:
            return self.moved
        return wire_bytes(self.collective, self.ranks, self.sent * self.buffer)

    @cached_property
    def moved(self) -> Float64:
        """Bytes that the rank sends or waits for, one after the other."""
        return wire_bytes(self.collective, self.ranks, self.calls * self.buffer)

    @property
    def steps(self) -> Float64:
        """Messages one after the other of a rank: latency's part of Hockney's T."""
        return np.asarray(self.calls * steps(self.collective, self.ranks))

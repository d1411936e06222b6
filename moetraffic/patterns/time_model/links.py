"""Effective bandwidth of groups: from what nodes have, or from what was measured."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.patterns.bandwidth import BandwidthTable, Effective
from moetraffic.patterns.values import Values, numbers, where
from moetraffic.units import byte_size

from .calls import Traffic

OF_INSIDE, OF_NIC = 0.77, 0.85
"""Share of the nominal rate of NVLink and of NICs that a large collective gets: bus
bandwidths of 230 of 300 GB/s on eight A100s and of 21 of 25 GB/s an adapter; assumed,
not fitted."""

INSIDE_STEP_S, BETWEEN_STEP_S = 3.4e-6, 14e-6
"""Latency of a step of NCCL's rings over NVLink and over a network, protocol Simple
(NCCL, src/graph/tuning.cc, hwLat)."""


@dataclass(frozen=True, kw_only=True)
class NodeLinks:
    """Nodes of GPUs that are fast inside and share what their NICs give.

    A ring over nodes leaves each node once: ``q`` members of a group in a node of
    ``G`` GPUs share its NICs with ``G/q`` other groups, so that a rank's ring gets
    ``q/G`` of them.  All-to-all: each rank sends ``(n - q)/(n - 1)`` of its bytes out
    over a ``G``-th of the NICs.  A group inside a node, and anything at most, gets
    ``inside_bytes_s``.
    """

    gpus: Values  # G of a node
    inside_bytes_s: Values  # of a GPU, each way
    nic_bytes_s: Values  # of all NICs of a node, each way
    efficiency: Values = 1.0  # of what is sold, that a collective gets
    inside_step_s: Values = 0.0  # latency of a ring's step inside a node
    between_step_s: Values = 0.0  # and from one node to the next

    def __post_init__(self) -> None:
        for field in fields(self):
            value = numbers(field.name, getattr(self, field.name))
            object.__setattr__(self, field.name, value)

    @classmethod
    def nominal(
        cls, *, gpus: Values, inside_bytes_s: Values, nic_bytes_s: Values
    ) -> NodeLinks:
        """Nodes of which only the data sheet's rates are known.

        Collectives get the shares of them that large messages of NCCL reach,
        :data:`OF_INSIDE` and :data:`OF_NIC`.
        """
        return cls(
            gpus=gpus,
            inside_bytes_s=OF_INSIDE * inside_bytes_s,
            nic_bytes_s=OF_NIC * nic_bytes_s,
            inside_step_s=INSIDE_STEP_S,
            between_step_s=BETWEEN_STEP_S,
        )

    def latency(self, calls: Traffic) -> Float64:
        """Seconds that messages of these calls wait for each other: a ring has a step
        to each other rank, and leaves a node once."""
        nodes = np.ceil(calls.ranks * calls.stride / self.gpus)
        nodes = np.minimum(nodes, calls.ranks)
        share = (nodes - 1) / np.maximum(calls.ranks - 1, 1)
        step = share * self.between_step_s + (1 - share) * self.inside_step_s
        return np.asarray(calls.steps * step)

    def speed(self, calls: Traffic) -> Float64:
        """Bytes/s that a rank of this group sends."""
        gpus, nic, inside = self.gpus, self.nic_bytes_s, self.inside_bytes_s
        near = np.minimum(np.maximum(np.floor(gpus / calls.stride), 1), calls.ranks)
        out = nic * near / gpus
        if calls.collective == "send_recv":
            out = nic / np.minimum(calls.stride, gpus)
        elif calls.collective == "all_to_all":
            leaving = np.maximum(calls.ranks - near, 1e-9)
            out = nic / gpus * (calls.ranks - 1) / leaving
        within = (calls.stride * calls.ranks <= gpus) | (calls.ranks <= 1)
        return np.asarray(
            where(within, inside, np.minimum(inside, out)) * self.efficiency
        )


@dataclass(frozen=True, kw_only=True)
class MeasuredLinks:
    """What ``moetraffic bench`` measured, asked by the nodes that a group lies on.

    A group of ``n`` ranks, every ``stride``-th one, lies on ``ceil(n stride/G)`` nodes
    of ``G`` GPUs, or ``n`` if that is fewer.  Measurements are of one group at a time,
    groups beside each other on a node are taken to get as much each.
    """

    table: BandwidthTable
    gpus: int  # of a node
    platform: str | None = None  # which measurements; None: the only ones there are
    protocol: str | None = None

    def speed(self, calls: Traffic) -> Float64:
        """Bytes/s that a rank of this group sends; those of one rank send nothing."""
        ranks, stride, size, times = np.broadcast_arrays(
            calls.ranks, calls.stride, calls.buffer, calls.calls
        )
        nodes = np.minimum(np.ceil(ranks * stride / self.gpus), ranks)
        found = np.full(ranks.shape, np.inf)
        asked = (ranks > 1) & (size > 0) & (times > 0)
        for span in np.unique(nodes[asked]):
            mine = asked & (nodes == span)
            got = self._effective(calls, ranks[mine], size[mine], int(span))
            found[mine] = got.bytes_s
        return found

    def extrapolated(self, calls: Traffic) -> str:
        """Name calls of one configuration that measurements do not surround, or ""."""
        ranks, size = float(calls.ranks), float(calls.buffer)
        if ranks <= 1 or size <= 0 or float(calls.calls) <= 0:
            return ""
        nodes = min(int(np.ceil(ranks * float(calls.stride) / self.gpus)), int(ranks))
        got = self._effective(calls, np.float64(ranks), np.float64(size), nodes)
        what = f"{calls.collective} of {byte_size(size)} over {ranks:g} ranks"
        on = f" on {nodes} node{'s' * (nodes > 1)}"
        return "" if got.inside.all() else what + on

    def _effective(
        self, calls: Traffic, ranks: Values, size: Values, span: int
    ) -> Effective:
        pair = calls.collective == "send_recv"
        return self.table.effective(
            calls.collective,
            2 if pair else ranks,
            size,
            span=2 if pair and span > 1 else span,
            platform=self.platform,
            protocol=self.protocol,
        )

"""Mixture-of-experts layer of virtual ranks: their shards in one process.

Nothing is sent: all experts are here, and the routing of each rank's shard says what
expert parallelism would send.  A lossy network may lose rows between ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from moetraffic.capture.annotate import ShardRouting, shard_routing
from moetraffic.gating import Router, Routing

from .lossy_network import LossyNetwork
from .moe import MixtureOfExperts


@dataclass(frozen=True)
class Shards:
    """Virtual ranks whose tokens are processed in one forward pass."""

    count: int  # ranks
    first: int  # number of the first
    slot: int  # micro-batch of the step
    members: tuple[int, ...]  # each one's place in its expert-parallel group
    width: int  # ranks of an expert-parallel group


class VirtualMixture(MixtureOfExperts):
    """A :class:`MixtureOfExperts` that processes the shards of several virtual ranks.

    The training loop sets ``shards`` and ``network`` before each forward pass.
    """

    shards: Shards
    network: LossyNetwork | None = None  # loses data between shards

    def route(self, x_th: Tensor, ids_t: Tensor | None, sequences: int) -> Routing:
        """Route the tokens of each virtual rank by itself, and report the routings."""
        router, shards = cast("Router", self.router), self.shards
        ids: Any = [None] * shards.count
        if ids_t is not None:
            ids = ids_t.chunk(shards.count)
        routings = [
            router(x, ids=i) for x, i in zip(x_th.chunk(shards.count), ids, strict=True)
        ]
        routings = self.balanced(routings, sequences // shards.count)
        demand = torch.stack([r.demand() for r in routings])
        drops = torch.zeros_like(demand)
        if self.dispatch != "dropless":
            drops = torch.stack([r.dropped() for r in routings])
        padded = routings[0].capacity if self.dispatch == "padded" else 0
        shard_routing(
            ShardRouting(
                layer=self.layer,
                slot=shards.slot,
                first=shards.first,
                demand=demand,
                dropped=drops,
                row_bytes=x_th.shape[1] * x_th.element_size(),
                dtype=str(x_th.dtype).removeprefix("torch."),
                padded=padded or 0,
                chosen=[r.chosen() for r in routings],
            )
        )
        return Routing.joined(routings)

    def through_experts(
        self, rows_nh: Tensor, routing: Routing, order_n: Tensor
    ) -> Tensor:
        """Apply the experts to rows that the network carries to them and back.

        Padding would change nothing: what has no room was dropped by shard.
        """
        rows_nh = self._carried(rows_nh, "dispatch", routing, order_n)
        done_nh = self.experts.ragged(rows_nh, routing.load().tolist())
        return self._carried(done_nh, "combine", routing, order_n)

    def _carried(
        self, rows_nh: Tensor, phase: str, routing: Routing, order_n: Tensor
    ) -> Tensor:
        """Apply the lossy network to the rows, if there is one."""
        if self.network is None:
            return rows_nh
        shards = self.shards
        expert_n, token_n = routing.expert[order_n], routing.token[order_n]
        source_n = token_n // (routing.tokens // shards.count)
        from_n = torch.tensor(shards.members, device=token_n.device)[source_n]
        to_n = expert_n // (self.experts_all // shards.width)
        return self.network.carry(
            rows_nh,
            phase,
            self.layer,
            message=(shards.first + source_n) * shards.width + to_n,
            crosses=from_n != to_n,
            weight=routing.weight[order_n],
        )

"""Virtual expert parallelism: train the shards of all ranks in one process.

A rank has the shard of the batch, the capacity and the load-balancing loss that it has
in a parallel run: only the order in which a gradient's terms are added differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from moetraffic.gating import Routing
from moetraffic.models.layers.lossy_network import LossyNetwork
from moetraffic.models.layers.virtual_moe import Shards, VirtualMixture
from moetraffic.models.parallelism.gradients import ReplicatedUpdate
from moetraffic.models.parallelism.groups import connect
from moetraffic.patterns import Layout, Workload

from .corpus import Corpus
from .gpt import IGNORED, cross_entropy
from .train import StepRecorder, TrainingLoop

PASS_TOKENS = 16_384
"""A forward pass takes the shards of as many ranks as have this many tokens together,
of one rank at least: memory stays bounded however many ranks there are."""


EVALUATION = 1 << 31
"""Stands for the iteration in the key of batches that are never trained on."""


def train_virtually(
    workload: Workload,
    recorder: StepRecorder | None = None,
    on_step: Callable[[int, float], None] | None = None,
    *,
    corpus: Corpus | None = None,
    stop: Callable[[], bool] | None = None,
) -> list[list[float]]:
    """Train all ranks of a data-parallel layout in this process.

    The layout has data and expert parallelism alone; other arguments are as of
    :func:`~.train.train`, with a loss for each rank and with their mean.  Returns
    ``[iteration][rank]`` cross-entropy, nats a token: the mean over the rank's
    micro-batches.
    """
    return VirtualTraining(workload, corpus).run(recorder, on_step, stop)


class VirtualTraining(TrainingLoop[list[float]]):
    """Training state of all virtual ranks: model, optimizer and lossy network."""

    updates: ReplicatedUpdate
    mixture = VirtualMixture

    def __init__(self, workload: Workload, corpus: Corpus | None = None) -> None:
        super().__init__(workload, connect(Layout()), corpus)
        self.ranks = workload.layout.world
        groups = workload.layout.groups("ep")
        member = {r: at for group in groups for at, r in enumerate(group)}
        self.members = tuple(member[rank] for rank in range(self.ranks))
        lossy, seed = workload.dropping.share > 0, workload.training.order_seed
        self.network = LossyNetwork(workload.dropping, seed) if lossy else None

    def passes(self, iteration: int) -> list[float]:
        """Run the passes of all ranks; return each rank's mean cross-entropy."""
        network = self.network
        if network is not None:
            network.iteration = iteration
        if network is not None and network.dropping.site == "gradient_sync":
            losses = self._rank_by_rank(iteration, network)
        else:
            losses = self._together(iteration)
        mean: list[float] = (losses / self.workload.training.accumulation).tolist()
        return mean

    @torch.no_grad()
    def evaluate(self, batches: int) -> float:
        """Compute the mean cross-entropy of held-out batches, without packet loss."""
        network, self.network = self.network, None
        losses = []
        for batch in range(batches):
            shards = self._shards(self.ranks + batch, 1, 0)
            losses.append(self._entropy(EVALUATION, shards)[0])
        self.network = network
        return float(torch.cat(losses).double().mean())

    def _together(self, iteration: int) -> Tensor:
        """Run all ranks' passes in chunks; return their summed losses ``[R]``."""
        plan = self.workload.training
        a_rank = plan.micro_batch * self.workload.model.window
        stride = max(1, PASS_TOKENS // a_rank)
        if self.workload.gating.balance_scope == "global":
            stride = self.ranks  # a loss over all ranks' tokens needs them in one pass
        losses = torch.zeros(self.ranks, dtype=torch.float64)
        for slot in range(plan.accumulation):
            for first in range(0, self.ranks, stride):
                count = min(stride, self.ranks - first)
                shards = self._shards(first, count, slot)
                losses[first : first + count] += self._pass(iteration, shards)
        return losses

    def _rank_by_rank(self, iteration: int, network: LossyNetwork) -> Tensor:
        """Run each rank's passes, with packet loss applied to the rank's gradient."""
        losses = torch.zeros(self.ranks, dtype=torch.float64)
        total = torch.zeros_like(self.updates.dense.flat)
        for rank in range(self.ranks):
            self.updates.dense.zero()
            for slot in range(self.workload.training.accumulation):
                losses[rank] += self._pass(iteration, self._shards(rank, 1, slot))[0]
            network.thin(self.updates.dense.flat, rank)
            total += self.updates.dense.flat
        self.updates.dense.flat.copy_(total)
        return losses

    def _shards(self, first: int, count: int, slot: int) -> Shards:
        ranks = range(first, first + count)
        return Shards(
            count=count,
            first=first,
            slot=slot,
            members=tuple(self.members[rank % self.ranks] for rank in ranks),
            width=self.workload.layout.ep,
        )

    def _pass(self, iteration: int, shards: Shards) -> Tensor:
        """Run some ranks' shards forward and backward; return their losses ``[n]``."""
        gating = self.workload.gating
        entropy, routings = self._entropy(iteration, shards)
        total = (
            entropy.mean()
            + gating.balance * sum(r.auxiliary_loss for r in routings)
            + gating.z_loss * sum(r.z_loss for r in routings)
        )
        # each rank's loss has the weight 1/R in the mean over ranks
        share = shards.count / self.ranks / self.workload.training.accumulation
        torch.autograd.backward([total * share])
        return entropy.detach().double().cpu()

    def _entropy(self, iteration: int, shards: Shards) -> tuple[Tensor, list[Routing]]:
        """Compute cross-entropies ``[n]`` of ranks' shards and the layers' routings."""
        ranks = range(shards.first, shards.first + shards.count)
        tokens, targets = self.batch(iteration, shards.slot, ranks)
        for mixture in self.model.mixtures:
            mixture = cast("VirtualMixture", mixture)
            mixture.shards, mixture.network = shards, self.network
        if self.network is not None:
            self.network.slot = shards.slot
        logits, routings = self.model.logits(tokens)
        each = cross_entropy(logits, targets, reduction="none")
        counted = (targets != IGNORED).view(shards.count, -1).sum(1)
        return each.view(shards.count, -1).sum(1) / counted, routings

"""Virtual expert parallelism: one process trains the shards of all ranks.

A rank's shard of the batch, its capacity and its load-balancing loss are those that it
has in a parallel run, so the routing is the same up to rounding: in which order a
gradient's terms are added is the one difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch.nn import functional as F

from moetraffic.patterns import ParallelLayout, Workload

from .corpus import Corpus, load
from .gpt import GPT
from .moe import Shards
from .optimizer import AdamW, learning_rate
from .parallel import GradientBucket, clip, connect
from .train import placed

PASS_TOKENS = 16_384
"""A forward pass takes the shards of as many ranks as have this many tokens together,
of one rank at least: memory stays bounded however many ranks there are."""


class ShardRecorder(Protocol):
    """What the loop tells whoever records: where a step ends."""

    def step(self, *, loss: Sequence[float], tokens: int) -> None:
        """One training step is done, with a loss for each rank."""
        ...


def train_virtually(
    workload: Workload,
    recorder: ShardRecorder | None = None,
    on_step: Callable[[int, float], None] | None = None,
    *,
    corpus: Corpus | None = None,
    stop: Callable[[], bool] | None = None,
) -> list[list[float]]:
    """Train all ranks of a data-parallel layout in this process.

    Parameters
    ----------
    workload
        What to train; its layout has data and expert parallelism alone.
    recorder
        Told the losses and tokens of each step; None: nobody is.
    on_step
        Called with (iteration, mean loss) after each step.
    corpus
        The text; None reads ``workload.training.corpus``.
    stop
        Asked after each step; true ends training.

    Returns
    -------
    list of list of float
        ``[iteration][rank]`` cross-entropy, nats a token: the mean over the rank's
        micro-batches.

    Raises
    ------
    LayoutError
        If the corpus, device or dtype cannot be used.
    """
    shape, plan = workload.model, workload.training
    corpus = corpus or load(
        plan.corpus, sequence=shape.sequence, vocabulary=shape.vocabulary
    )
    loop = _Loop(workload, corpus)
    losses = []
    for iteration in range(plan.iterations):
        losses.append(loop.iterate(iteration))
        if recorder is not None:
            recorder.step(loss=losses[-1], tokens=loop.tokens)
        if on_step is not None:
            on_step(iteration, sum(losses[-1]) / len(losses[-1]))
        if stop is not None and stop():
            break
    return losses


class _Loop:
    """A model with its optimiser, advanced an iteration at a time."""

    def __init__(self, workload: Workload, corpus: Corpus) -> None:
        plan = workload.training
        self.workload, self.corpus = workload, corpus
        self.ranks = workload.layout.world
        self.tokens = plan.micro_batch * plan.accumulation * workload.model.sequence
        self.alone = connect(ParallelLayout())
        model = GPT(workload.model, workload.gating, seed=plan.seed)
        self.model, self.device = placed(model, plan)
        self.dense = GradientBucket(model.dense_parameters())
        self.experts = GradientBucket(model.expert_parameters())
        self.optimizer = AdamW(
            [*model.dense_parameters(), *model.expert_parameters()],
            weight_decay=plan.weight_decay,
        )

    def iterate(self, iteration: int) -> list[float]:
        """One optimiser step; returns each rank's cross-entropy."""
        plan = self.workload.training
        self.dense.zero()
        self.experts.zero()
        a_rank = plan.micro_batch * self.workload.model.sequence
        stride = max(1, PASS_TOKENS // a_rank)
        losses = torch.zeros(self.ranks, dtype=torch.float64)
        for slot in range(plan.accumulation):
            for first in range(0, self.ranks, stride):
                count = min(stride, self.ranks - first)
                shards = Shards(count=count, first=first, slot=slot)
                losses[first : first + count] += self._pass(iteration, shards)
        if plan.clip > 0:
            clip(self.dense, self.experts, self.alone, plan.clip)
        self.optimizer.step(learning_rate(plan, iteration))
        mean: list[float] = (losses / plan.accumulation).tolist()
        return mean

    def _pass(self, iteration: int, shards: Shards) -> torch.Tensor:
        """Forward and backward of some ranks' shards; their cross-entropy ``[n]``."""
        plan, gating = self.workload.training, self.workload.gating
        drawn = [
            self.corpus.batch(
                sequences=plan.micro_batch,
                length=self.workload.model.sequence,
                seed=plan.seed,
                iteration=iteration,
                micro_batch=shards.slot,
                rank=rank,
            )
            for rank in range(shards.first, shards.first + shards.count)
        ]
        tokens = torch.cat([t for t, _ in drawn]).to(self.device)
        targets = torch.cat([t for _, t in drawn]).to(self.device)
        for mixture in self.model.mixtures:
            mixture.shards = shards
        logits, routings = self.model.logits(tokens)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        each = F.cross_entropy(
            logits.flatten(0, 1).to(dtype), targets.flatten(), reduction="none"
        )
        entropy = each.view(shards.count, -1).mean(1)  # [n]
        total = (
            entropy.mean()
            + gating.balance * torch.stack([r.auxiliary_loss for r in routings]).sum()
            + gating.z_loss * torch.stack([r.z_loss for r in routings]).sum()
        )
        # each rank's loss has the weight 1/R in the mean over ranks
        share = shards.count / self.ranks / plan.accumulation
        torch.autograd.backward([total * share])
        return entropy.detach().double().cpu()

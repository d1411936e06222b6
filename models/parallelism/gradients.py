"""Gradient synchronization over parameter replicas, and gradient clipping.

The loss of a run is the mean of its data-parallel replicas' losses.  A dense parameter
lives on every replica: its gradient is the mean over them.  An expert's gradient on the
rank that holds it already sums what the ranks of its expert-parallel group sent there:
it is summed over the copies of the expert and divided by the number of replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from moetraffic.capture import at
from moetraffic.models.gpt import GPT
from moetraffic.patterns import Training

from .groups import ParallelGroups
from .optimizer import AdamW, local


@dataclass(frozen=True, kw_only=True, eq=False)
class ParameterSets:
    """A rank's parameters by how they are replicated over ranks."""

    replicated: Sequence[nn.Parameter]  # whole on each tensor-parallel rank
    split: Sequence[nn.Parameter]  # a slice for each tensor-parallel rank
    experts: Sequence[nn.Parameter]  # slices too, where tp > 1
    tied: nn.Parameter | None = None  # the replicated one on two pipeline stages

    @classmethod
    def of(
        cls, model: GPT, groups: ParallelGroups, split: Sequence[nn.Parameter] = ()
    ) -> ParameterSets:
        """Group a model's parameters; ``split`` lists the tensor-parallel slices."""
        slices = {id(p) for p in split}
        dense = model.dense_parameters()
        return cls(
            replicated=[p for p in dense if id(p) not in slices],
            split=list(split),
            experts=model.expert_parameters(),
            tied=cast("nn.Parameter", model.token.weight)
            if groups.embedding and model.shape.tied
            else None,
        )

    @property
    def dense(self) -> list[nn.Parameter]:
        """All parameters except those of experts."""
        return [*self.replicated, *self.split]


class ParameterUpdate:
    """Gradient reduction and parameter update of a step.

    By itself that of gradients which the backward pass has averaged over the copies of
    each parameter.
    """

    sharded = False  # whether ranks hold gradients that others do not

    def __init__(
        self,
        module: nn.Module,
        shares: ParameterSets,
        groups: ParallelGroups,
        optimizer: AdamW,
    ) -> None:
        self.module = module  # computes the losses
        self.shares, self.groups = shares, groups
        self.optimizer = optimizer

    def begin(self) -> None:
        """Set all gradients to zero."""
        for p in (*self.shares.dense, *self.shares.experts):
            p.grad = None

    def micro_batch(self) -> AbstractContextManager[None]:
        """Return the context of a micro-batch's forward and backward pass."""
        return nullcontext()

    def reduce(self) -> None:
        """Reduce the gradients after the last micro-batch."""
        # from a mean over the copies of an expert to a mean over all replicas
        for gradient in _gradients(self.shares.experts):
            gradient /= self.groups.layout.ep

    def step(self, rate: float) -> None:
        """Update the parameters with a given learning rate."""
        self.optimizer.step(rate)


class GradientBucket:
    """Flat tensor whose views are the gradients of several parameters.

    The parameters are all of one dtype and device: one collective then reduces them
    all, without copies.  Nobody may set a ``grad`` to None afterwards: it would drop
    the view.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        # [elements of all parameters]; a pipeline stage may hold no expert
        parts = [torch.zeros_like(p).flatten() for p in parameters]
        self.flat = torch.cat(parts) if parts else torch.empty(0)
        sizes = [p.numel() for p in parameters]
        for p, part in zip(parameters, torch.split(self.flat, sizes), strict=True):
            p.grad = part.view_as(p)

    def zero(self) -> None:
        """Set all gradients to zero."""
        self.flat.zero_()


class ReplicatedUpdate(ParameterUpdate):
    """Parameter update with replicated gradients, by default without ZeRO."""

    def __init__(
        self,
        model: nn.Module,
        shares: ParameterSets,
        groups: ParallelGroups,
        plan: Training,
        optimizer: AdamW | None = None,
    ) -> None:
        every = [*shares.dense, *shares.experts]
        optimizer = optimizer or AdamW(every, weight_decay=plan.weight_decay)
        super().__init__(model, shares, groups, optimizer)
        self.dense = GradientBucket(shares.dense)
        self.experts = GradientBucket(shares.experts)

    def begin(self) -> None:
        """Set all gradients to zero."""
        self.dense.zero()
        self.experts.zero()

    def reduce(self) -> None:
        """All-reduce dense gradients over dp and expert gradients over edp."""
        groups, layout = self.groups, self.groups.layout
        if layout.dp > 1:
            with at(label="gradient_sync"):
                dist.all_reduce(self.dense.flat, group=groups.dp)
        if layout.edp > 1 and len(self.experts.flat):
            with at(label="expert_gradient_sync"):
                dist.all_reduce(self.experts.flat, group=groups.edp)
        self.dense.flat /= layout.dp
        self.experts.flat /= layout.dp
        tied = self.shares.tied
        if tied is not None and tied.grad is not None:
            # the first stage looks tokens up in it, the last makes logits of it: as
            # Megatron-LM's allreduce_word_embedding_grads (finalize_model_grads.py)
            with at(label="embedding_sync"):
                dist.all_reduce(tied.grad, group=groups.embedding)


def gradient_norm(updates: ParameterUpdate, groups: ParallelGroups) -> Tensor:
    """Compute the 2-norm of the whole model's gradient, equal on every rank.

    Each dense parameter and each expert counts once.  Call it on reduced gradients.
    The result is a float64 scalar.
    """
    shares = updates.shares
    layout = groups.layout
    # the last stage's copy of the tied embedding is the first stage's
    twice = shares.tied if groups.stage > 0 else None
    device = shares.dense[0].device
    replicated = _square([p for p in shares.replicated if p is not twice], device)
    split = _square(shares.split, device)
    unique = _square(shares.experts, device)  # on no other rank of the model
    with at(label="gradient_norm"):
        if updates.sharded and layout.dp > 1:
            both = torch.cat([unique + split, replicated])
            dist.all_reduce(both, group=groups.dp)
            unique, replicated = both[:1], both[1:]
        else:
            if layout.ep > 1:
                dist.all_reduce(unique, group=groups.ep)
            unique = unique + split
        if layout.tp > 1:
            dist.all_reduce(unique, group=groups.tp)
        whole = unique + replicated
        if layout.pp > 1:
            dist.all_reduce(whole, group=groups.pp)
    return whole.sqrt().squeeze()


def clip(updates: ParameterUpdate, groups: ParallelGroups, largest: float) -> None:
    """Scale the gradients so that their global norm is at most ``largest``."""
    norm = gradient_norm(updates, groups)
    factor = (largest / (norm + 1e-6)).clamp(max=1.0)
    for gradient in _gradients([*updates.shares.dense, *updates.shares.experts]):
        gradient *= factor


def _gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    return [local(p.grad) for p in parameters if p.grad is not None]


def _square(parameters: Sequence[nn.Parameter], device: torch.device) -> Tensor:
    # [1] float64: the hook on collectives sees a row of one element
    norms = [torch.linalg.vector_norm(g).double() for g in _gradients(parameters)]
    if not norms:
        return torch.zeros(1, dtype=torch.float64, device=device)
    return torch.stack(norms).square().sum().reshape(1)

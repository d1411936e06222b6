"""Pipeline parallelism: stages of layers under torch's 1F1B schedule.

Micro-batches are those of gradient accumulation.  1F1B is PipeDream-Flush (Narayanan et
al., arXiv 2104.04473, section 2.2); the schedule, its sends and its receives are
``torch.distributed.pipelining``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from moetraffic.capture import at
from moetraffic.models.gpt import GPT, cross_entropy
from moetraffic.patterns import Workload

from .groups import ParallelGroups


class Pipeline:
    """Pipeline stage of one rank under torch's 1F1B schedule.

    The model has the layers of this stage, in its final dtype and on its device.
    """

    def __init__(self, model: GPT, workload: Workload, groups: ParallelGroups) -> None:
        shape, plan = workload.model, workload.training
        stages = workload.layout.pp
        self.first, self.last = groups.stage == 0, groups.stage == stages - 1
        self.group, self.micro_batches = groups.pp, plan.accumulation
        weight = next(model.parameters())
        self.device = weight.device

        def like(*sizes: int) -> Tensor:
            return torch.empty(
                plan.micro_batch,
                shape.sequence,
                *sizes,
                dtype=weight.dtype if sizes else torch.int64,
                device="meta",
                requires_grad=bool(sizes),
            )

        between, logits = like(shape.hidden), like(shape.vocabulary)
        # sizes are told, not inferred: inference would send them in the first step
        stage = PipelineStage(
            _StageModule(model, workload, self.first, self.last),
            groups.stage,
            stages,
            self.device,
            input_args=(like() if self.first else between,),
            output_args=(logits if self.last else between,),
            group=groups.pp,
        )
        # releases that would divide the gradients by the micro-batches can be told not
        # to: the losses are divided already, the auxiliary ones too
        known = signature(Schedule1F1B).parameters
        options: dict[str, Any] = {}
        if "scale_grads" in known:
            options["scale_grads"] = False
        self.schedule = Schedule1F1B(
            stage, self.micro_batches, loss_fn=self._loss, **options
        )
        self._begun = False

    def run(self, batches: Sequence[tuple[Tensor, Tensor]]) -> float:
        """Run all micro-batches forward and backward, and accumulate gradients.

        Tokens and targets are ``[B, S]`` int64 each.  The result, on every stage, is
        the mean cross-entropy, nats a token.
        """
        tokens = torch.cat([t for t, _ in batches]).to(self.device)
        targets = torch.cat([t for _, t in batches]).to(self.device)
        inputs = (tokens,) if self.first else ()
        losses: list[Tensor] = []
        more: dict[str, Any] = {}
        if self.last:
            more = {"target": targets, "losses": losses}
        self._begin(inputs, targets)
        with at(label="pipeline"):
            self.schedule.step(*inputs, **more)
        total = torch.zeros(1, dtype=torch.float64, device=self.device)
        if self.last:
            total += torch.stack(losses).detach().double().sum()
        with at(label="loss"):
            last = dist.get_process_group_ranks(self.group)[-1]
            dist.broadcast(total, last, group=self.group)
        return float(total)

    def _begin(self, inputs: tuple[Tensor, ...], targets: Tensor) -> None:
        """Initialize the stages before the first step, under a label of its own.

        The first ``step`` would do it, among the sends of the first iteration.
        """
        agree = getattr(self.schedule, "_initialize_stage", None)
        if self._begun or agree is None or "target" not in signature(agree).parameters:
            return  # done, or a release that does not ask
        self._begun = True
        # what ``step`` sets before
        self.schedule._stage.has_backward = True
        part = tuple(t.chunk(self.micro_batches)[0] for t in inputs)
        with at(label="pipeline_setup"):
            agree(part, {}, targets.chunk(self.micro_batches)[0])

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(logits, targets) / self.micro_batches


class _StageModule(nn.Module):
    """A pipeline stage as a module: tokens or activations to activations or logits."""

    def __init__(self, model: GPT, workload: Workload, first: bool, last: bool) -> None:
        super().__init__()
        self.model, self.gating = model, workload.gating
        self.micro_batches = workload.training.accumulation
        self.first, self.last = first, last

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            x = self.model.embed(x)
        x, routings = self.model.run(x)
        for routing in routings:
            loss = self.gating.balance * routing.auxiliary_loss
            loss = loss + self.gating.z_loss * routing.z_loss
            x = with_loss(x, loss / self.micro_batches)
        return self.model.head(x) if self.last else x


def with_loss(x: Tensor, loss: Tensor) -> Tensor:
    """Attach an auxiliary loss to an activation: its gradient is 1.

    A stage hands on activations alone, but the losses of its routers count too.  The
    idea is Megatron-LM's ``MoEAuxLossAutoScaler`` (moe_utils.py).
    """
    return cast("Callable[..., Tensor]", _WithLoss.apply)(x, loss)


class _WithLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(loss)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (loss,) = ctx.saved_tensors
        return gradients[0], torch.ones_like(loss)

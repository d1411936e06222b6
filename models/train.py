"""Training loop of one rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from moetraffic.errors import LayoutError
from moetraffic.models.layers.moe import MixtureOfExperts, adapt
from moetraffic.models.parallelism.gradients import (
    ParameterSets,
    ParameterUpdate,
    ReplicatedUpdate,
    clip,
)
from moetraffic.models.parallelism.groups import ParallelGroups, connect
from moetraffic.models.parallelism.optimizer import learning_rate
from moetraffic.patterns import Training, Workload
from moetraffic.spelling import check_choice

from .corpus import Corpus, batch, text
from .encoders import language_model
from .gpt import GPT, Losses
from .random_streams import Stream, seed_of

if TYPE_CHECKING:
    from moetraffic.models.parallelism.pipeline import Pipeline

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
}
"""Element types of parameters and precision; routers compute in float32 at least."""

Loss = TypeVar("Loss", float, list[float])
"""Cross-entropy of an iteration, nats a token; a list with virtual ranks."""


class StepRecorder(Protocol):
    """Interface of the recorder that a training loop reports its steps to."""

    def step(self, *, loss: Any, tokens: int) -> None:
        """Record the end of a training step, with a loss for each virtual rank."""


def train(
    workload: Workload,
    recorder: StepRecorder | None = None,
    on_step: Callable[[int, float], None] | None = None,
    *,
    groups: ParallelGroups | None = None,
    corpus: Corpus | None = None,
    stop: Callable[[], bool] | None = None,
) -> list[float]:
    """Train the share of one rank of a workload; all ranks must call this.

    The result depends on the workload, the corpus and the kind of machine alone: not on
    recording, and on how replicas are spread over ranks (ep, tp, pp, their order, ZeRO)
    only by rounding.  On the CPU it is the same bit for bit each time; CUDA adds
    gradients of rows in no fixed order.

    Parameters
    ----------
    workload
        What to train.
    recorder
        Receives the loss and tokens of each step; None: no recording.
    on_step
        Called with (iteration, loss) after each step.
    groups
        This rank's process groups; None creates them.
    corpus
        The text; None reads ``workload.training.corpus``.
    stop
        Called after each step; a true result ends training.

    Returns
    -------
    list of float
        The cross-entropy of each iteration on this rank's replica, nats a token: the
        mean over its micro-batches.

    Raises
    ------
    LayoutError
        If the layout is not the ranks there are, or the corpus, device or dtype
        cannot be used.
    """
    groups = groups or connect(workload.layout)
    threads = torch.get_num_threads()
    if workload.training.device == "cpu":
        # ranks share the cores, and sums must not depend on how many threads there are
        torch.set_num_threads(1)
    try:
        return _RankTraining(workload, groups, corpus).run(recorder, on_step, stop)
    finally:
        torch.set_num_threads(threads)


class TrainingLoop(ABC, Generic[Loss]):
    """Training state of a process: model, optimizer and gradients."""

    mixture = MixtureOfExperts  # class of the MoE layers

    def __init__(
        self, workload: Workload, groups: ParallelGroups, corpus: Corpus | None
    ) -> None:
        shape, gating, plan = workload.model, workload.gating, workload.training
        layout = groups.layout
        self.workload, self.groups = workload, groups
        self.corpus = corpus or text(shape, plan)
        self.tokens = plan.micro_batch * plan.accumulation * shape.window
        model = language_model(
            shape,
            gating,
            group=groups.ep,
            seed=plan.seed,
            layers=groups.layers(shape.layers),
            recompute=plan.recompute,
            precision=DTYPES.get(plan.precision),
            mixture=self.mixture,
        )
        # what a layout does not need is not imported: fairscale's optimizers and
        # torch's pipelines load the compiler, 5 s of every rank's start
        sliced: list[nn.Parameter] = []
        if layout.tp > 1:
            from moetraffic.models.parallelism.tensor import split

            sliced = split(model, groups)
        self.model, self.device = _placed(model, plan)
        for mixture in model.mixtures:
            mixture.balance_scope, mixture.replicas = gating.balance_scope, groups.dp
        shares = ParameterSets.of(model, groups, sliced)
        self.updates: ParameterUpdate
        if layout.zero:
            from moetraffic.models.parallelism.zero import updates

            self.updates = updates(model, shares, groups, plan)
        else:
            self.updates = ReplicatedUpdate(model, shares, groups, plan)

    def run(
        self,
        recorder: StepRecorder | None,
        on_step: Callable[[int, float], None] | None,
        stop: Callable[[], bool] | None,
    ) -> list[Loss]:
        """Run all iterations; parameters are those of :func:`train`."""
        losses = []
        for iteration in range(self.workload.training.iterations):
            loss = self.iterate(iteration)
            losses.append(loss)
            if recorder is not None:
                recorder.step(loss=loss, tokens=self.tokens)
            if on_step is not None:
                on_step(iteration, float(np.mean(loss)))
            if stop is not None and stop():
                break
        return losses

    def iterate(self, iteration: int) -> Loss:
        """Run one optimizer step; return the cross-entropy."""
        plan = self.workload.training
        # Step 1: gradients of all micro-batches; tensor-parallel ranks draw alike.
        torch.manual_seed(
            seed_of(Stream.NOISE, plan.order_seed, iteration, self.groups.dp_rank)
        )
        self.updates.begin()
        loss = self.passes(iteration)
        self.updates.reduce()
        # Step 2: one factor for the whole model, then the parameters move.
        if plan.clip > 0:
            clip(self.updates, self.groups, plan.clip)
        self.updates.step(learning_rate(plan, iteration))
        # Step 3: update adaptive routers with the load of the whole step.
        adapt(self.model.mixtures, self.groups.dp)
        return loss

    @abstractmethod
    def passes(self, iteration: int) -> Loss:
        """Run all micro-batches forward and backward; return the cross-entropy."""

    def batch(
        self, iteration: int, micro_batch: int, ranks: Iterable[int]
    ) -> tuple[Tensor, Tensor]:
        """Sample the tokens and targets of data-parallel ranks, one after another."""
        plan = self.workload.training
        drawn = [
            batch(
                self.corpus,
                self.workload.model,
                sequences=plan.micro_batch,
                seed=plan.order_seed,
                iteration=iteration,
                micro_batch=micro_batch,
                rank=rank,
            )
            for rank in ranks
        ]
        tokens, targets = (torch.cat(part) for part in zip(*drawn, strict=True))
        return tokens.to(self.device), targets.to(self.device)


class _RankTraining(TrainingLoop[float]):
    """Training of one rank's share."""

    def __init__(
        self, workload: Workload, groups: ParallelGroups, corpus: Corpus | None
    ) -> None:
        super().__init__(workload, groups, corpus)
        self.pipeline: Pipeline | None = None
        if groups.layout.pp > 1:
            from moetraffic.models.parallelism.pipeline import Pipeline

            self.pipeline = Pipeline(self.model, workload, groups)

    def passes(self, iteration: int) -> float:
        """Run all micro-batches forward and backward; return their mean loss."""
        count = self.workload.training.accumulation
        batches = (
            self.batch(iteration, number, [self.groups.dp_rank])
            for number in range(count)
        )
        if self.pipeline is not None:
            return self.pipeline.run(list(batches))
        return sum(self._micro_batch(*drawn) for drawn in batches) / count

    def _micro_batch(self, tokens: Tensor, targets: Tensor) -> float:
        with self.updates.micro_batch():
            losses: Losses = self.updates.module(tokens, targets)
            total = losses.total(self.workload.gating)
            scaled = total / self.workload.training.accumulation
            scaled.backward()  # type: ignore[no-untyped-call]
        return float(losses.cross_entropy.detach())


def _placed(model: GPT, plan: Training) -> tuple[GPT, torch.device]:
    """Move a model to the device and dtype of the training plan."""
    if plan.device not in ("cpu", "cuda"):
        raise LayoutError(
            f"the device is cpu or cuda, not {plan.device!r}: see --device"
        )
    if plan.device == "cuda" and not torch.cuda.is_available():
        raise LayoutError(
            "device cuda needs a CUDA GPU and a torch built for it, but torch "
            f"{torch.__version__} sees none: use --device cpu"
        )
    check_choice("the dtype", plan.dtype, DTYPES, LayoutError)
    device = torch.device(plan.device)
    if plan.device == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    return model.to(device, DTYPES[plan.dtype]), device

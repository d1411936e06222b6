"""Training loop of one rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from moetraffic.errors import LayoutError
from moetraffic.models.layers.moe import adapt
from moetraffic.models.parallelism.gradients import (
    ParameterSets,
    ParameterUpdate,
    ReplicatedUpdate,
    clip,
)
from moetraffic.models.parallelism.groups import ParallelGroups, connect
from moetraffic.models.parallelism.optimizer import learning_rate
from moetraffic.patterns import Training, Workload

from .corpus import Corpus
from .gpt import GPT, Losses
from .objective import batch, text
from .random_streams import Stream, seed_of

if TYPE_CHECKING:
    from moetraffic.models.parallelism.pipeline import Pipeline

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
}
"""Element types of parameters and precision; routers compute in float32 at least."""


class StepRecorder(Protocol):
    """Interface of the recorder that the training loop reports its steps to."""

    def step(self, *, loss: float, tokens: int) -> None:
        """Record the end of a training step."""
        ...


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
    shape, plan = workload.model, workload.training
    groups = groups or connect(workload.layout)
    corpus = corpus or text(shape, plan)
    threads = torch.get_num_threads()
    if plan.device == "cpu":
        # ranks share the cores, and sums must not depend on how many threads there are
        torch.set_num_threads(1)
    try:
        model = GPT(
            shape,
            workload.gating,
            group=groups.ep,
            seed=plan.seed,
            layers=groups.layers(shape.layers),
            recompute=plan.recompute,
            precision=DTYPES.get(plan.precision),
        )
        loop = _Loop(workload, model, groups, corpus)
        losses = []
        for iteration in range(plan.iterations):
            losses.append(loop.iterate(iteration))
            if recorder is not None:
                recorder.step(loss=losses[-1], tokens=loop.tokens)
            if on_step is not None:
                on_step(iteration, losses[-1])
            if stop is not None and stop():
                break
        return losses
    finally:
        torch.set_num_threads(threads)


class _Loop:
    """Training state of one rank: model, optimizer and gradients."""

    def __init__(
        self,
        workload: Workload,
        model: GPT,
        groups: ParallelGroups,
        corpus: Corpus,
    ) -> None:
        plan, layout = workload.training, workload.layout
        self.workload, self.model, self.groups = workload, model, groups
        self.corpus = corpus
        self.tokens = plan.micro_batch * plan.accumulation * workload.model.window
        # what a layout does not need is not imported: fairscale's optimizers and
        # torch's pipelines load the compiler, 5 s of every rank's start
        sliced: list[nn.Parameter] = []
        if layout.tp > 1:
            from moetraffic.models.parallelism.tensor import split

            sliced = split(model, groups)
        model, self.device = placed(model, plan)
        for mixture in model.mixtures:
            mixture.balance_over(workload.gating.balance_scope, groups.dp)
        shares = ParameterSets.of(model, groups, sliced)
        self.updates: ParameterUpdate
        if layout.zero:
            from moetraffic.models.parallelism.zero import updates

            self.updates = updates(model, shares, groups, plan)
        else:
            self.updates = ReplicatedUpdate(model, shares, groups, plan)
        self.pipeline: Pipeline | None = None
        if layout.pp > 1:
            from moetraffic.models.parallelism.pipeline import Pipeline

            self.pipeline = Pipeline(model, workload, groups)

    def iterate(self, iteration: int) -> float:
        """Run one optimizer step; return this rank's cross-entropy."""
        plan = self.workload.training
        # Step 1: gradients of all micro-batches; tensor-parallel ranks draw alike.
        torch.manual_seed(
            seed_of(Stream.NOISE, plan.seed, iteration, self.groups.dp_rank)
        )
        self.updates.begin()
        loss = self._forward_and_backward(iteration)
        self.updates.reduce()
        # Step 2: one factor for the whole model, then the parameters move.
        if plan.clip > 0:
            clip(self.updates, self.groups, plan.clip)
        self.updates.step(learning_rate(plan, iteration))
        # Step 3: update adaptive routers with the load of the whole step.
        adapt(self.model.mixtures, self.groups.dp)
        return loss

    def _forward_and_backward(self, iteration: int) -> float:
        micro_batches = range(self.workload.training.accumulation)
        if self.pipeline is not None:
            return self.pipeline.run([self._batch(iteration, m) for m in micro_batches])
        loss = sum(self._micro_batch(iteration, m) for m in micro_batches)
        return loss / len(micro_batches)

    def _batch(self, iteration: int, micro_batch: int) -> tuple[Tensor, Tensor]:
        plan = self.workload.training
        tokens, targets = batch(
            self.corpus,
            self.workload.model,
            sequences=plan.micro_batch,
            seed=plan.seed,
            iteration=iteration,
            micro_batch=micro_batch,
            rank=self.groups.dp_rank,
        )
        return tokens.to(self.device), targets.to(self.device)

    def _micro_batch(self, iteration: int, micro_batch: int) -> float:
        tokens, targets = self._batch(iteration, micro_batch)
        with self.updates.micro_batch():
            losses: Losses = self.updates.module(tokens, targets)
            total = losses.total(self.workload.gating)
            scaled = total / self.workload.training.accumulation
            scaled.backward()  # type: ignore[no-untyped-call]
        return float(losses.cross_entropy.detach())


def placed(model: GPT, plan: Training) -> tuple[GPT, torch.device]:
    """Move a model to the device and dtype of the training plan.

    Raises
    ------
    LayoutError
        If this machine or torch has no such device or dtype.
    """
    device = _device(plan)
    return model.to(device, _dtype(plan)), device


def _device(plan: Training) -> torch.device:
    if plan.device not in ("cpu", "cuda"):
        raise LayoutError(
            f"the device is cpu or cuda, not {plan.device!r}: see --device"
        )
    if plan.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise LayoutError(
            "device cuda needs a CUDA GPU and a torch built for it, but torch "
            f"{torch.__version__} sees none: use --device cpu"
        )
    return torch.device("cuda", torch.cuda.current_device())


def _dtype(plan: Training) -> torch.dtype:
    found = DTYPES.get(plan.dtype)
    if found is None:
        raise LayoutError(
            f"the dtype is one of {', '.join(DTYPES)}, not {plan.dtype!r}: see --dtype"
        )
    return found

"""The training loop: one call trains one rank's share of a workload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from moetraffic.errors import LayoutError
from moetraffic.patterns import Training, Workload

from .corpus import Corpus, load
from .gpt import GPT
from .optimizer import AdamW, learning_rate
from .parallel import GradientBucket, ParallelGroups, clip, connect, synchronise

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
}
"""Element types of parameters and activations; routers compute in float32 at least."""


class StepRecorder(Protocol):
    """What the loop tells whoever records: where a step ends."""

    def step(self, *, loss: float, tokens: int) -> None:
        """One training step is done."""
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
    """Train a workload on this rank; all ranks of its layout call this together.

    The result depends on the workload, the corpus and the kind of machine alone: not on
    recording, and on the expert-parallel degree only by rounding.  On the CPU it is the
    same bit for bit each time; CUDA adds gradients of rows in no fixed order.

    Parameters
    ----------
    workload
        What to train.
    recorder
        Told the loss and tokens of each step; None: nobody is.
    on_step
        Called with (iteration, loss) after each step.
    groups
        This rank's process groups; None makes them.
    corpus
        The text; None reads ``workload.training.corpus``.
    stop
        Asked after each step; true ends training.

    Returns
    -------
    list of float
        The cross-entropy of each iteration on this rank, nats a token: the mean over
        its micro-batches.

    Raises
    ------
    LayoutError
        If the layout is not the ranks there are, or the corpus, device or dtype
        cannot be used.
    """
    shape, plan = workload.model, workload.training
    groups = groups or connect(workload.layout)
    corpus = corpus or load(
        plan.corpus, sequence=shape.sequence, vocabulary=shape.vocabulary
    )
    threads = torch.get_num_threads()
    if plan.device == "cpu":
        # ranks share the cores, and sums must not depend on how many threads there are
        torch.set_num_threads(1)
    try:
        model = GPT(shape, workload.gating, group=groups.ep, seed=plan.seed)
        model, device = placed(model, plan)
        loop = _Loop(workload, model, groups, corpus, device)
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
    """A model with its optimiser and gradients, advanced an iteration at a time."""

    def __init__(
        self,
        workload: Workload,
        model: GPT,
        groups: ParallelGroups,
        corpus: Corpus,
        device: torch.device,
    ) -> None:
        plan = workload.training
        self.workload, self.model, self.groups = workload, model, groups
        self.corpus, self.device = corpus, device
        self.tokens = plan.micro_batch * plan.accumulation * workload.model.sequence
        self.dense = GradientBucket(model.dense_parameters())
        self.experts = GradientBucket(model.expert_parameters())
        self.optimizer = AdamW(
            [*model.dense_parameters(), *model.expert_parameters()],
            weight_decay=plan.weight_decay,
        )

    def iterate(self, iteration: int) -> float:
        """One optimiser step; returns this rank's cross-entropy."""
        plan = self.workload.training
        self.dense.zero()
        self.experts.zero()
        loss = sum(self._micro_batch(iteration, m) for m in range(plan.accumulation))
        synchronise(self.dense, self.experts, self.groups)
        if plan.clip > 0:
            clip(self.dense, self.experts, self.groups, plan.clip)
        self.optimizer.step(learning_rate(plan, iteration))
        return loss / plan.accumulation

    def _micro_batch(self, iteration: int, micro_batch: int) -> float:
        plan = self.workload.training
        tokens, targets = self.corpus.batch(
            sequences=plan.micro_batch,
            length=self.workload.model.sequence,
            seed=plan.seed,
            iteration=iteration,
            micro_batch=micro_batch,
            rank=self.groups.dp_rank,
        )
        losses = self.model(tokens.to(self.device), targets.to(self.device))
        (losses.total(self.workload.gating) / plan.accumulation).backward()
        return float(losses.cross_entropy.detach())


def placed(model: GPT, plan: Training) -> tuple[GPT, torch.device]:
    """The model on the device and of the dtype that the plan names.

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

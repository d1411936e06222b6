"""ZeRO stages 1 to 3: sharded optimizer states, gradients and parameters.

Stages 1 and 2 are fairscale's: ``OSS`` gives each whole parameter to one rank, which
keeps its optimizer state and broadcasts it after the step; ``ShardedDataParallel``
reduces its gradient to that rank.  Stage 3 is torch's ``fully_shard`` (FSDP2): a part
of each parameter on every rank, gathered where it is used.  Dense parameters are
sharded over their data-parallel ranks, experts over the ranks that hold copies of them;
where there is one copy, nothing is.

References
----------
Rajbhandari et al., "ZeRO", arXiv 1910.02054, sections 5 and 7.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from moetraffic.capture import at
from moetraffic.errors import LayoutError
from moetraffic.models.gpt import GPT
from moetraffic.patterns import Training

from .gradients import GradientBucket, ParameterSets, ParameterUpdate, ReplicatedUpdate
from .groups import ParallelGroups
from .optimizer import BETA_1, BETA_2, EPSILON, AdamW, decaying

LABEL = "zero"


def updates(
    model: GPT, shares: ParameterSets, groups: ParallelGroups, plan: Training
) -> ParameterUpdate:
    """Create the parameter update of the layout's ZeRO stage, 1 to 3."""
    if groups.layout.zero == 3:
        return ShardedParameters(model, shares, groups, plan)
    optimizer = ShardedOptimizer(shares, groups, plan)
    if groups.layout.zero == 2:
        return ShardedGradients(model, shares, groups, optimizer)
    return ReplicatedUpdate(model, shares, groups, plan, optimizer)


class ShardedOptimizer(AdamW):
    """Optimizer whose states are sharded over the replicas of each parameter."""

    def __init__(
        self, shares: ParameterSets, groups: ParallelGroups, plan: Training
    ) -> None:
        layout = groups.layout
        self.sharded: list[Any] = []  # fairscale's OSS: dense, experts
        self.alone: list[nn.Parameter] = []  # of which there is one copy
        for parameters, group, copies in (
            (shares.dense, groups.dp, layout.dp),
            (shares.experts, groups.edp, layout.edp),
        ):
            if copies > 1 and parameters:
                self.sharded.append(_owner(parameters, group, plan))
            else:
                self.alone += parameters
        super().__init__(self.alone, weight_decay=plan.weight_decay)

    def step(self, rate: float) -> None:
        """Update this rank's shard of the parameters, and broadcast it."""
        super().step(rate)
        with at(label=LABEL):
            for owner in self.sharded:
                for part in owner.param_groups:
                    part["lr"] = rate
                owner.step()


class ShardedGradients(ParameterUpdate):
    """ZeRO stage 2: gradients are reduced to their owners in each micro-batch.

    fairscale would wait for the last micro-batch and hold all gradients until then.
    """

    sharded = True

    def __init__(
        self,
        model: GPT,
        shares: ParameterSets,
        groups: ParallelGroups,
        optimizer: ShardedOptimizer,
    ) -> None:
        from fairscale.nn.data_parallel import ShardedDataParallel

        super().__init__(model, shares, groups, optimizer)
        self.alone = GradientBucket(optimizer.alone)
        self.reducers: list[Any] = []
        self.owned: dict[nn.Parameter, Tensor] = {}
        for owner in optimizer.sharded:
            for part in owner.partition_parameters()[owner.rank]:
                self.owned |= {p: torch.zeros_like(p) for p in part["params"]}
            # each wraps the one before, and takes the parameters of its owner alone
            with _quietly():
                self.module = ShardedDataParallel(
                    self.module,
                    owner,
                    process_group=owner.group,
                    broadcast_buffers=False,
                    sync_models_at_startup=False,
                )
            self.reducers.append(self.module)

    def begin(self) -> None:
        """Set all gradients to zero."""
        self.alone.zero()
        for gradient in self.owned.values():
            gradient.zero_()
        self._forget()

    @contextmanager
    def micro_batch(self) -> Iterator[None]:
        """Reduce gradients in the backward pass; accumulate this rank's shard."""
        with at(label=LABEL):
            yield
        for p, gradient in self.owned.items():
            if p.grad is not None:
                gradient += p.grad
        self._forget()

    def reduce(self) -> None:
        """Set the accumulated gradients of this rank's parameters."""
        for p, gradient in self.owned.items():
            if p.grad is None:
                p.grad = gradient
            else:
                p.grad.copy_(gradient)  # a view of the reducer's bucket stays one
        super().reduce()

    def _forget(self) -> None:
        for reducer in self.reducers:
            reducer.zero_grad(set_to_none=True)


class ShardedParameters(ParameterUpdate):
    """ZeRO stage 3: sharded parameters, gradients and optimizer states.

    A block's parameters are gathered for its forward pass and again for its backward
    pass; gradients are reduce-scattered in each micro-batch.  What stands outside the
    blocks (embeddings, last norm) is gathered once a micro-batch.
    """

    sharded = True

    def __init__(
        self, model: GPT, shares: ParameterSets, groups: ParallelGroups, plan: Training
    ) -> None:
        layout = groups.layout
        slices = {id(p) for p in shares.split}
        sliced = [name for name, p in model.named_parameters() if id(p) in slices]
        experts = [m.experts for m in model.mixtures]
        alone = list(shares.experts) if layout.edp == 1 else []
        if layout.edp > 1:
            for module in experts:
                methods = ("batched", "ragged")
                _shard(module, groups.edp, methods=methods, cut=_cut(layout.edp))
        if layout.dp > 1:
            for block in model.blocks.values():
                _shard(block, groups.dp, besides=alone)
            _shard(model, groups.dp, besides=alone)
        # the parameters are others now, under the same names
        named = dict(model.named_parameters())
        shares = ParameterSets.of(model, groups, [named[name] for name in sliced])
        optimizer = AdamW(list(named.values()), weight_decay=plan.weight_decay)
        super().__init__(model, shares, groups, optimizer)

    @contextmanager
    def micro_batch(self) -> Iterator[None]:
        """Annotate the all-gathers and reduce-scatters of the micro-batch."""
        with at(label=LABEL), _quietly():
            yield


def _owner(
    parameters: Sequence[nn.Parameter], group: dist.ProcessGroup | None, plan: Training
) -> Any:
    """fairscale's OSS over torch's AdamW, numerically equal to stage 0."""
    from fairscale.optim import OSS

    parts = decaying(parameters, plan.weight_decay)
    with _quietly():
        return OSS(
            [{"params": p, "weight_decay": decay} for p, decay in parts if p],
            optim=torch.optim.AdamW,
            group=group,
            lr=plan.learning_rate,
            betas=(BETA_1, BETA_2),
            eps=EPSILON,
        )


def _cut(copies: int) -> Callable[[nn.Parameter], Any]:
    """Where experts are cut: along their second axis where they are fewer than their
    copies, so that nothing is padded.
    """
    from torch.distributed.tensor import Shard

    def second(p: nn.Parameter) -> Any:
        fewer = copies > p.shape[0] and p.shape[1] % copies == 0
        return Shard(1) if fewer else None

    return second


def _shard(
    module: nn.Module,
    group: dist.ProcessGroup | None,
    *,
    besides: Sequence[nn.Parameter] = (),
    methods: Sequence[str] = (),
    cut: Callable[[nn.Parameter], Any] | None = None,
) -> None:
    """Shard a module's remaining parameters except ``besides``; ``cut``: the axis."""
    try:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
    except ImportError as error:
        raise LayoutError(
            "ZeRO stage 3 needs torch's fully_shard as of release 2.6 or newer, but "
            f"this is torch {torch.__version__}: upgrade it or use --zero 2"
        ) from error
    device = next(module.parameters()).device.type
    mesh = DeviceMesh.from_group(cast("dist.ProcessGroup", group), device)
    more: dict[str, Any] = {"ignored_params": set(besides)} if besides else {}
    more |= {"shard_placement_fn": cut} if cut else {}
    fully_shard(module, mesh=mesh, reshard_after_forward=True, **more)
    for method in methods:  # where forward() is called another name
        register_fsdp_forward_method(module, method)


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress expected warnings of fairscale and torch."""
    with warnings.catch_warnings():
        # fairscale asks for a rank by a name that torch has given up
        warnings.filterwarnings("ignore", ".*_get_global_rank", FutureWarning)
        # a routing's weights are views; nobody changes them in place
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
        yield

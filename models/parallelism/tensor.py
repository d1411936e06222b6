"""Tensor parallelism with fairscale's column- and row-parallel layers.

Attention and feed-forward multiply first by matrices split by output (columns), then by
one split by input (rows), so that a layer has two all-reduces of its activations in the
forward pass and two in the backward pass (Shoeybi et al., arXiv 1909.08053, section 3).
Experts are split in the same way, each over all tensor-parallel ranks: their
all-reduces are of the token copies that arrived.  Embeddings, head, norms and routers
are whole on every rank, and stay equal there without communication.

The ranks of a tensor-parallel group see the same tokens, and each dispatches all of
them to its own expert-parallel group: the duplication that duplicate token dropping
would save (Singh et al., arXiv 2303.06318).
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, cast

import torch.distributed as dist
from fairscale.nn.model_parallel import initialize
from fairscale.nn.model_parallel.layers import ColumnParallelLinear, RowParallelLinear
from fairscale.nn.model_parallel.mappings import (
    copy_to_model_parallel_region,
    reduce_from_model_parallel_region,
)
from torch import Tensor, nn
from torch.nn import functional as F

from moetraffic.capture import at
from moetraffic.models.gpt import GPT
from moetraffic.models.layers.feedforward import LocalExperts
from moetraffic.models.layers.moe import MixtureOfExperts

from .groups import ParallelGroups

LABEL = "tensor_parallel"


def split(model: GPT, groups: ParallelGroups) -> list[nn.Parameter]:
    """Replace a model's matrices by this rank's tensor-parallel slices, in place.

    A module names the ``nn.Linear`` to split by output in its class attribute
    ``column_parallel`` and those to split by input in ``row_parallel``.  The model has
    its initial parameters on the CPU.  Returns the dense parameters of which this rank
    now holds a slice.
    """
    _hand_over(groups)
    slices: list[nn.Parameter] = []
    for name, block in model.blocks.items():
        layer = int(name)
        for module in list(block.modules()):
            if isinstance(module, MixtureOfExperts):
                # an nn.Module to mypy, which has Experts there
                halves = SplitExperts(module.experts, layer, groups)
                module.experts = cast("LocalExperts", halves)
            elif hasattr(type(module), "column_parallel"):
                slices += _split_linears(module, layer, groups)
    return slices


class SplitExperts(nn.Module):
    """Tensor-parallel experts: slices of each network along its width.

    The region begins after the dispatch and ends before the combine, so what the
    router's weights are multiplied with is whole and their gradient too.
    """

    def __init__(
        self, experts: LocalExperts, layer: int, groups: ParallelGroups
    ) -> None:
        super().__init__()
        for name, p in list(experts.named_parameters()):
            # up and gate are [L, h, f], down is [L, f, h]
            part = _slice(p, 1 if name == "down" else 2, groups)
            setattr(experts, name, nn.Parameter(part))
        self.inner = experts
        self.layer = layer

    def batched(self, x_lch: Tensor) -> Tensor:
        """Apply the experts to ``[L, C, h]`` rows, C per expert."""
        return _reduced(self.inner.batched(_copied(x_lch, self.layer)), self.layer)

    def ragged(self, x_ah: Tensor, counts: list[int]) -> Tensor:
        """Apply the experts to ``[A, h]`` rows, ``counts[i]`` for expert i in order."""
        y_ah = self.inner.ragged(_copied(x_ah, self.layer), counts)
        return _reduced(y_ah, self.layer)


class _Column(ColumnParallelLinear):  # type: ignore[misc]
    """fairscale's column-parallel layer without its gradient all-reduce.

    Query, key and value share their input: the module copies it into the region once,
    for all of them.
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class _Row(RowParallelLinear):  # type: ignore[misc]
    """fairscale's row-parallel layer with an annotated all-reduce."""

    layer = -1

    def forward(self, x: Tensor) -> Tensor:
        with at(layer=self.layer, label=LABEL):
            y: Tensor = super().forward(x)
        return y


def _hand_over(groups: ParallelGroups) -> None:
    """Set fairscale's process groups; its defaults put data parallelism outermost."""
    initialize._MODEL_PARALLEL_GROUP = groups.tp
    initialize._DATA_PARALLEL_GROUP = groups.dp
    initialize._PIPELINE_PARALLEL_GROUP = groups.pp


def _split_linears(
    module: nn.Module, layer: int, groups: ParallelGroups
) -> list[nn.Parameter]:
    slices: list[nn.Parameter] = []
    for name in cast("tuple[str, ...]", module.column_parallel):
        linear = cast("nn.Linear", getattr(module, name))
        column = _Column(gather_output=False, **_from(linear))
        if linear.bias is not None:
            column.bias = nn.Parameter(_slice(linear.bias, 0, groups))
            slices.append(column.bias)
        setattr(module, name, column)
        slices.append(column.weight)
    for name in cast("tuple[str, ...]", module.row_parallel):
        linear = cast("nn.Linear", getattr(module, name))
        row = _Row(input_is_parallel=True, **_from(linear))
        row.layer = layer
        if linear.bias is not None:
            row.bias = linear.bias  # added after the all-reduce: whole
        setattr(module, name, row)
        slices.append(row.weight)

    def enter(
        _: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        inputs = _copied(inputs[0], layer), *inputs[1:]
        if named.get("memory") is not None:  # keys and values are split too
            named = {**named, "memory": _copied(named["memory"], layer)}
        return inputs, named

    module.register_forward_pre_hook(enter, with_kwargs=True)
    return slices


def _from(linear: nn.Linear) -> dict[str, Any]:
    """Return the constructor arguments of fairscale's layer for a linear layer."""
    return {
        "in_features": linear.in_features,
        "out_features": linear.out_features,
        "bias": linear.bias is not None,
        "init_method": lambda whole: whole.copy_(linear.weight.detach()),
    }


def _slice(whole: Tensor, dim: int, groups: ParallelGroups) -> Tensor:
    parts = whole.detach().chunk(groups.layout.tp, dim)
    return parts[dist.get_rank(groups.tp)].contiguous()


def _copied(x: Tensor, layer: int) -> Tensor:
    """Return ``x``, whose gradient is all-reduced over the tensor-parallel ranks."""
    y: Tensor = copy_to_model_parallel_region(x)
    if y.grad_fn is not None:
        # the backward pass runs on a thread of autograd's own choice: annotate its
        # all-reduce there
        place = ExitStack()
        y.grad_fn.register_prehook(
            lambda _: place.enter_context(at(layer=layer, label=LABEL))
        )
        y.grad_fn.register_hook(lambda _, __: place.close())
    return y


def _reduced(y: Tensor, layer: int) -> Tensor:
    """All-reduce ``y`` over the tensor-parallel ranks; identity in backward."""
    with at(layer=layer, label=LABEL):
        whole: Tensor = reduce_from_model_parallel_region(y)
    return whole

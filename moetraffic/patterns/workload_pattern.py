"""Collectives of one iteration of ``moetraffic.models``, call by call.

Tensor parallelism is fairscale's, stages 1 and 2 of ZeRO too, stage 3 is torch's
``fully_shard``, pipelines are torch's 1F1B.  Where these differ from what is published
it stands here: embeddings and head are whole on each tensor rank, and activation
checkpointing ends a recomputation at the last tensor that a gradient needs, so that
the all-reduce behind a dense layer's last matrix is not sent again (torch,
``utils/checkpoint.py``: ``set_checkpoint_early_stop``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from .element_types import element_bytes
from .layer_calls import room
from .pattern import Call, Pattern
from .stage import Stage, pattern_of
from .synchronization import ROOT
from .tensors import ModelTensor, model_tensors
from .workloads.router_table import ROUTERS
from .workloads.workload import Workload

LIBRARIES = ("all-reduce", "oss", "sharded-ddp", "fsdp2")
"""How each ZeRO stage is done."""

ADAPTIVE = frozenset({"deepseek"})
"""Routers that are told the load of the step."""


def workload_pattern(
    workload: Workload,
    synchronization: str = "",
    *,
    bucket_mib: float = 0.0,
    keep: bool = False,
) -> Pattern:
    """The collectives of one iteration of a workload, all of its ranks.

    Where routing decides how much is sent (dropped and dropless dispatch) the calls'
    ``exact`` is false and all experts are taken to get as much; what a rank dispatches
    without dropping, and the gradient of what it gets back, is exact all the same.

    Parameters
    ----------
    workload
        What is trained.
    synchronization
        One of SYNCHRONIZATIONS in place of that of the workload's ZeRO stage, for a
        model that is wrapped otherwise.
    bucket_mib
        Of the synchronization "ddp"; 0: torch's.
    keep
        Of the synchronization "fsdp2": whether parameters stay gathered until the
        backward pass.
    """
    plan = replace(
        workload.parallelism,
        synchronization=synchronization or LIBRARIES[workload.layout.zero],
        bucket_mib=bucket_mib,
        keep=keep,
    )
    stages: list[Stage] = [
        _Stage(workload.model, plan, workload.gating, number, workload)
        for number in range(plan.pp)
    ]
    about = {"seed": workload.training.seed, "workload": workload.to_json()}
    return pattern_of(stages, about)


@dataclass(frozen=True)
class _Stage(Stage):
    """What the ranks of one pipeline stage call."""

    work: Workload
    shard_label: ClassVar[str] = "zero"

    # ---- the iteration -----------------------------------------------------------

    @property
    def handed_on(self) -> int:
        """Bytes of a micro-batch's activations between stages."""
        tokens = self.plan.micro_batch * self.shape.sequence
        return tokens * self.shape.hidden * element_bytes(self.plan.dtype)

    def end(self) -> list[Call]:
        """Behind the last backward pass."""
        work, p = self.work, self.plan
        sync, calls = self.sync, []
        if p.pp > 1:
            calls.append(_scalar("pp", "broadcast", 8, "loss", root=p.pp - 1))
        calls += sync.gradients() + self.embedding_sync()
        if work.training.clip > 0:
            calls += self._norm()
        calls += sync.parameters()
        layers = [layer for layer in self.chunks[0] if layer in work.model.moe_layers]
        if work.gating.router in ADAPTIVE and layers and p.dp > 1:
            size = 8 * len(layers) * work.model.experts
            calls.append(_scalar("dp", "all_reduce", size, "router_load", "int64"))
        return calls

    def _norm(self) -> list[Call]:
        """The gradient's norm, summed over those who have different parts of it."""
        p, kinds = self.plan, []
        if p.zero > 1 and p.dp > 1:
            kinds.append(("dp", 16))
        elif p.ep > 1:
            kinds.append(("ep", 8))
        kinds += [(kind, 8) for kind in ("tp", "pp") if getattr(p, kind) > 1]
        return [_scalar(kind, "all_reduce", n, "gradient_norm") for kind, n in kinds]

    # ---- a micro-batch ---------------------------------------------------------

    def forward(self, layers: range) -> list[Call]:
        """Layers alone: embedding and head are whole on each rank."""
        calls = self.sync.before_forward(ROOT)
        for layer in layers:
            calls += self.sync.before_forward(("block", layer))
            calls += self._block(layer, gathers=True)
        return calls

    def backward(self, layers: range) -> list[Call]:
        """The same, from the end."""
        sync, shape = self.sync, self.shape
        calls = sync.before_backward(ROOT)
        for layer in reversed(layers):
            unit = ("block", layer)
            calls += sync.before_backward(unit)
            if self.work.training.recompute:
                again = self._block(layer)
                multiplied = shape.norm_place == "post" or layer in shape.moe_layers
                if layer in shape.moe_layers and shape.shared_ffn:
                    multiplied = shape.norm_place == "post" or shape.shared_gate
                if not multiplied and self.plan.tp > 1:
                    again = again[:-1]  # the last sum is of no use to a gradient
                calls += [replace(c, direction="recompute") for c in again]
            calls += self._block_gradient(layer)
            calls += sync.after_backward(unit)
        return calls + sync.after_backward(ROOT) + sync.micro_batch()

    def _block(self, layer: int, *, gathers: bool = False) -> list[Call]:
        """A block's forward pass."""
        shape = self.shape
        crosses = shape.crosses(layer)
        tokens = self._tokens(layer)
        calls = [self._reduced(layer, tokens) for _ in range(1 + crosses)]
        if layer not in shape.moe_layers:
            return self._if_split([*calls, self._reduced(layer, tokens)])
        calls = self._if_split(calls)
        if self.gating.balance_scope == "global" and self.plan.dp > 1:
            counts = self._counts(layer)
            calls.append(counts)
        calls += self._exchanged(layer, "dispatch")
        if gathers:
            calls += self.experts_unit(layer, self.sync.before_forward)
        calls += self._if_split(self._of_experts(layer))
        calls += self._exchanged(layer, "combine")
        if shape.shared_ffn:
            calls += self._if_split([self._reduced(layer, tokens, self.sent_as)])
        return calls

    def _block_gradient(self, layer: int) -> list[Call]:
        shape = self.shape
        crosses = shape.crosses(layer)
        tokens, own = self._tokens(layer), self.work.training.dtype
        attention = [self._reduced(layer, tokens, own)]
        if crosses:  # what it asks, before what asks
            read = self.work.training.micro_batch * shape.sequence
            asked = self._reduced(layer, read, own)
            attention = [asked, *attention, *attention]
        if layer not in shape.moe_layers:
            calls = [self._reduced(layer, tokens, own), *attention]
            return [replace(c, direction="backward") for c in self._if_split(calls)]
        calls = []
        if shape.shared_ffn:
            calls += self._if_split([self._reduced(layer, tokens, self.sent_as)])
        calls += self._exchanged(layer, "combine_grad")
        calls += self.experts_unit(layer, self.sync.before_backward)
        calls += self._if_split(list(reversed(self._of_experts(layer))))
        calls += self.experts_unit(layer, self.sync.after_backward)
        calls += self._exchanged(layer, "dispatch_grad")
        calls += self._if_split(attention)
        return [replace(c, direction="backward") for c in calls]

    def _if_split(self, calls: list[Call]) -> list[Call]:
        return calls if self.plan.tp > 1 else []

    def _reduced(self, layer: int, rows: int, dtype: str = "") -> Call:
        dtype = dtype or self.products
        return Call(
            traffic="TP",
            group="tp",
            operation="all_reduce",
            size=rows * self.shape.hidden * element_bytes(dtype),
            dtype=dtype,
            layer=layer,
            label="tensor_parallel",
        )

    def _counts(self, layer: int) -> Call:
        size = 8 * self.shape.experts
        call = _scalar("dp", "all_reduce", size, "balance_counts", "int64")
        return replace(call, layer=layer)

    # ---- experts ---------------------------------------------------------------

    def _exchanged(self, layer: int, phase: str) -> list[Call]:
        """A token exchange, and before a dispatch how many rows will come."""
        work, calls = self.work, []
        if self.plan.ep == 1:
            return []
        padded = work.gating.dispatch == "padded"
        if phase == "dispatch" and not padded:
            counts = Call(
                traffic="control",
                group="ep",
                operation="all_to_all",
                size=8 * work.model.experts,
                dtype="int64",
                layer=layer,
                label="count_exchange",
                row_bytes=8,
            )
            calls.append(counts)
        row = work.model.hidden * element_bytes(self.sent_as)
        told = padded or (
            work.gating.dispatch == "dropless" and phase in ("dispatch", "combine_grad")
        )
        call = Call(
            traffic="EP",
            group="ep",
            operation="all_to_all",
            size=self._copies(layer) * row,
            dtype=self.sent_as,
            layer=layer,
            phase=phase,
            row_bytes=row,
            exact=told,
        )
        return [*calls, call]

    def _of_experts(self, layer: int) -> list[Call]:
        """The all-reduces of what this rank's experts computed."""
        gating = self.gating
        copies, local = self._copies(layer), self.shape.experts // self.plan.ep
        whole = self._reduced(layer, copies, self.sent_as)
        whole = replace(whole, exact=gating.dispatch == "padded" or self.plan.ep == 1)
        if gating.dispatch == "dropped":
            whole = replace(whole, exact=False)
        if gating.router != "fairscale":
            return [whole]
        dtype = self.work.training.dtype
        size = copies // local * self.shape.hidden * element_bytes(dtype)
        return [replace(whole, size=size, dtype=dtype)] * local  # one by one

    def _copies(self, layer: int) -> int:
        """Token copies that a rank sends, and gets if all experts get as much."""
        gating, tokens = self.gating, self._tokens(layer)
        routed = gating.k * tokens
        if gating.dispatch == "dropless":
            return routed
        whole = round(float(room(routed, self.shape.experts, gating.capacity_factor)))
        return whole if gating.dispatch == "padded" else min(routed, whole)

    # ---- sizes -----------------------------------------------------------------

    @property
    def products(self) -> str:
        """What matrices are multiplied in."""
        return self.work.training.precision or self.work.training.dtype

    @property
    def sent_as(self) -> str:
        """What token vectors are sent to experts in."""
        return "float32" if self.gating.router == "fairscale" else self.products

    def _tokens(self, layer: int) -> int:
        shape = self.shape
        sequence = shape.targets if shape.crosses(layer) else shape.sequence
        return self.work.training.micro_batch * sequence

    @cached_property
    def tensors(self) -> list[ModelTensor]:
        """What a rank of this stage holds."""
        spec = ROUTERS.get(self.gating.router)
        gate = spec is None or not spec.needs_ids
        whole = model_tensors(self.shape, layers=self.chunks[0], gate=gate)
        return [t.on_rank(tp=self.plan.tp, ep=self.plan.ep) for t in whole]

    @cached_property
    def dense(self) -> list[ModelTensor]:
        """The dense ones, those that tensor ranks share behind the whole ones."""
        dense = [t for t in self.tensors if t.part == "dense"]
        if self.plan.tp == 1:
            return dense
        shared = [t for t in dense if t.split >= 0]
        return [*(t for t in dense if t.split < 0), *_biases_first(shared)]

    @property
    def synchronization_options(self) -> Mapping[str, float]:
        """Options of the synchronization: experts without a copy count too."""
        experts = sum(t.elements for t in self.tensors if t.part == "expert")
        alone = 0 if self.plan.edp > 1 else experts
        return {"alone": alone, **super().synchronization_options}


def _biases_first(shared: Sequence[ModelTensor]) -> list[ModelTensor]:
    """A split matrix behind its bias, in the order of ``parallelism/tensor.py``."""
    names = {t.name for t in shared}
    order: list[ModelTensor] = []
    for tensor in shared:
        if tensor.name.endswith(".bias"):
            continue
        bias = tensor.name.removesuffix("weight") + "bias"
        order += [t for t in shared if t.name == bias and bias in names]
        order.append(tensor)
    return order


def _scalar(
    group: str,
    operation: str,
    size: int,
    label: str,
    dtype: str = "float64",
    root: int = 0,
) -> Call:
    return Call(
        traffic="control",
        group=group,
        operation=operation,
        size=size,
        dtype=dtype,
        label=label,
        root=root,
    )

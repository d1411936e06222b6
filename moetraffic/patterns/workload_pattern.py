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
from .layer_calls import LayerCalls, Part
from .layouts.configuration import Configuration
from .layouts.parallelism import Parallelism
from .layouts.violations import synchronization_rules
from .pattern import Call, Pattern
from .rules import refuse
from .shape import ModelShape
from .stage import Stage, control, pattern_of
from .tensors import ModelTensor, model_tensors
from .workloads.router_table import ROUTERS
from .workloads.routers import Gating
from .workloads.training import Training
from .workloads.workload import Workload

LIBRARIES = ("all-reduce", "oss", "sharded-ddp", "fsdp2")
"""How each ZeRO stage is done."""

ADAPTIVE = frozenset({"deepseek"})
"""Routers that are told the load of the step."""


def workload_pattern(workload: Workload) -> Pattern:
    """The collectives of one iteration of a workload, all of its ranks.

    Where routing decides how much is sent (dropped and dropless dispatch) the calls'
    ``exact`` is false and all experts are taken to get as much; what a rank dispatches
    without dropping, and the gradient of what it gets back, is exact all the same.

    Parameters
    ----------
    workload
        What is trained; its layout may name the synchronization of a model that is
        wrapped otherwise than in ``moetraffic.models``.

    Raises
    ------
    LayoutError
        If that does not go with the layout.
    """
    plan = workload.parallelism
    own = plan.synchronization or LIBRARIES[plan.zero]
    plan = replace(plan, synchronization=own)
    refuse(
        synchronization_rules(Configuration.of(workload.model, plan, workload.gating))
    )
    stages: list[Stage] = [
        _Stage(workload.model, plan, workload.gating, number, workload)
        for number in range(plan.pp)
    ]
    about = {"seed": workload.training.seed, "workload": workload.to_json()}
    return pattern_of(stages, about)


def trained_pattern(shape: ModelShape, plan: Parallelism, gating: Gating) -> Pattern:
    """The collectives of one iteration of training with ``moetraffic.models``.

    Raises
    ------
    LayoutError
        If that training does not support the plan.
    """
    training = Training(
        micro_batch=plan.micro_batch,
        accumulation=plan.accumulation,
        dtype=plan.dtype,
        recompute=plan.recompute == "full",
    )
    return workload_pattern(
        Workload(model=shape, gating=gating, layout=plan, training=training)
    )


class FairscaleCalls(LayerCalls):
    """Layers of fairscale's tensor parallelism, whose experts are split as layers are;
    embedding and head are whole on each rank."""

    def embedded(self) -> list[Part]:
        """Nothing."""
        return []

    embedded_gradient = predicted = predicted_gradient = embedded

    def _counts(self) -> list[Part]:
        size, parts = 8 * self.config.sizes.experts, []
        if self.gating and self.gating.balance_scope == "global" and self.config.dp > 1:
            parts.append(Part("control", "dp", "all_reduce", size, 1, "balance_counts"))
        if self._counted and self.config.ep > 1:
            of = "count_exchange"
            parts.append(Part("control", "ep", "all_to_all", size, 1, of))
        return parts

    def _split_experts(self, crosses: bool) -> list[Part]:
        size, times = self._exchanged[crosses, False], self._split
        if self.gating and self.gating.router == "fairscale":  # expert by expert
            local = self.config.sizes.experts / self.config.ep
            size, times = size / local, times * local
        return [Part("TP", "tp", "all_reduce", size, times, "experts")]


@dataclass(frozen=True)
class _Stage(Stage):
    """What the ranks of one pipeline stage call."""

    work: Workload
    dialect: ClassVar[type[LayerCalls]] = FairscaleCalls
    shard_label: ClassVar[str] = "zero"

    def end(self) -> list[Call]:
        """Behind the last backward pass."""
        work, p = self.work, self.plan
        sync, calls = self.sync, []
        if p.pp > 1:
            calls.append(control("pp", "broadcast", 8, "loss", root=p.pp - 1))
        calls += sync.at("gradients") + self.embedding_sync()
        if work.training.clip > 0:
            calls += self._norm()
        calls += sync.at("parameters")
        layers = [
            layer for layer in self.chunks[0].layers if layer in work.model.moe_layers
        ]
        if work.gating.router in ADAPTIVE and layers and p.dp > 1:
            size = 8 * len(layers) * work.model.experts
            calls.append(control("dp", "all_reduce", size, "router_load", "int64"))
        return calls

    def _norm(self) -> list[Call]:
        """The gradient's norm, summed over those who have different parts of it."""
        p, kinds = self.plan, []
        if p.zero > 1 and p.dp > 1:
            kinds.append(("dp", 16))
        elif p.ep > 1:
            kinds.append(("ep", 8))
        kinds += [(kind, 8) for kind in ("tp", "pp") if getattr(p, kind) > 1]
        return [control(kind, "all_reduce", n, "gradient_norm") for kind, n in kinds]

    def recomputed(self, calls: list[Call], layer: int) -> list[Call]:
        """A pass again, without the last sum where no gradient needs it."""
        shape, sparse = self.shape, layer in self.shape.moe_layers
        multiplied = sparse and (not shape.shared_ffn or shape.shared_gate)
        if shape.norm_place == "post" or multiplied or self.plan.tp == 1:
            return calls
        return calls[:-1]

    def call(self, part: Part, layer: int, direction: str) -> Call:
        """A part as a call, in the element type that it is sent in."""
        gating, training = self.gating, self.work.training
        products = training.precision or training.dtype
        # fairscale's router dispatches in 32 bits what experts compute in the own type
        sent_as = "float32" if gating.router == "fairscale" else products
        dtype = training.dtype if direction == "backward" else products
        if part.phase or part.label in ("experts", "shared"):
            dtype = sent_as
        if part.label == "experts" and gating.router == "fairscale":
            dtype = training.dtype
        label, row, exact = part.label, 0, True
        if part.traffic == "control":
            dtype, row = "int64", 8 * (part.operation == "all_to_all")
        else:
            element = element_bytes(dtype)
            size = part.buffer / element_bytes(training.dtype) * element
            part = part._replace(buffer=size)
            padded = gating.dispatch == "padded"
            if part.phase:
                row = self.shape.hidden * element
                sent = part.phase in ("dispatch", "combine_grad")
                exact = padded or (gating.dispatch == "dropless" and sent)
            else:
                label = "tensor_parallel"
            if part.label == "experts":
                whole = self.plan.ep == 1 and gating.dispatch == "dropless"
                exact = padded or whole
        made = super().call(part, layer, direction)
        return replace(made, dtype=dtype, label=label, row_bytes=row, exact=exact)

    # ---- what it holds -----------------------------------------------------------

    @cached_property
    def tensors(self) -> list[ModelTensor]:
        """What a rank of this stage holds."""
        spec = ROUTERS.get(self.gating.router)
        gate = spec is None or not spec.needs_ids
        whole = model_tensors(self.shape, layers=self.chunks[0].layers, gate=gate)
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

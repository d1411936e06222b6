"""Collectives of one iteration of ``moetraffic.models``, call by call.

Tensor parallelism is fairscale's, stages 1 and 2 of ZeRO too, stage 3 is torch's
``fully_shard``, pipelines are torch's 1F1B.  Where these differ from what is published
it stands here: embeddings and head are whole on each tensor rank, and activation
checkpointing ends a recomputation at the last tensor that a gradient needs, so that
the all-reduce behind a dense layer's last matrix is not sent again (torch,
``utils/checkpoint.py``: ``set_checkpoint_early_stop``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil

from .element_types import element_bytes
from .layout import ParallelLayout
from .pattern import Call, Event, Pattern
from .router_table import ROUTERS
from .schedules import handed_on, passes
from .synchronization import (
    ROOT,
    SYNCHRONIZATIONS,
    Copies,
    Synchronization,
    Unit,
)
from .tensors import ModelTensor, model_tensors
from .workload import Workload

LIBRARIES = ("all-reduce", "oss", "sharded-ddp", "fsdp2")
"""How each ZeRO stage is done."""

ADAPTIVE = frozenset({"deepseek"})
"""Routers that are told the load of the step."""


def workload_pattern(
    workload: Workload, synchronization: str = "", **options: float
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
    **options
        Of the synchronization, such as ``bucket_mib``.
    """
    plan = workload.training
    stages = [
        _Stage(workload, number, synchronization, options).program()
        for number in range(workload.layout.pp)
    ]
    m, g = workload.model, workload.gating
    about = {
        "model": m.name,
        "layers": m.layers,
        "hidden": m.hidden,
        "dtype": plan.dtype,
        "seed": plan.seed,
        "workload": workload.to_json(),
    }
    if m.experts:
        about |= {
            "experts": m.experts,
            "k": g.k,
            "router": g.router,
            "dispatch": g.dispatch,
            "capacity_factor": g.capacity_factor,
        }
    return Pattern(
        name=m.name,
        grid=workload.layout,
        programs=tuple(stages),
        about=tuple(about.items()),
    )


@dataclass(frozen=True)
class _Stage:
    """What the ranks of one pipeline stage call."""

    work: Workload
    number: int
    synchronization: str
    options: dict[str, float]

    # ---- the iteration -----------------------------------------------------------

    def program(self) -> tuple[Event, ...]:
        plan, stages = self.work.training, self.layout.pp
        forward, backward = self._forward(), self._backward()
        events: list[Event] = []
        for one in passes(self.number, stages, plan.accumulation):
            before, behind = handed_on(one, self.number, stages)
            if before:
                events.append(self._message(before, one.backward, one.micro_batch))
            calls = backward if one.backward else forward
            events += [Event(call, one.micro_batch) for call in calls]
            if behind:
                events.append(self._message(behind, one.backward, one.micro_batch))
        return (*events, *(Event(call) for call in self._end()))

    def _message(self, peers: tuple[int, int], backward: bool, slot: int) -> Event:
        call = Call(
            traffic="PP",
            group="pp",
            operation="send_recv",
            size=self.tokens * self.work.model.hidden * self.element,
            dtype=self.work.training.dtype,
            direction="backward" if backward else "forward",
            label="pipeline",
            peers=peers,
        )
        return Event(call, slot)

    def _end(self) -> list[Call]:
        """Behind the last backward pass."""
        work, p = self.work, self.layout
        sync, calls = self.sync, []
        if p.pp > 1:
            calls.append(_scalar("pp", "broadcast", 8, "loss", root=p.pp - 1))
        calls += sync.gradients()
        if p.pp > 1 and work.model.tied and self.number in (0, p.pp - 1):
            (table,) = (t for t in self.dense if t.name == "token.weight")
            calls.append(
                Call(
                    traffic="EmbTableSync",
                    group="embedding",
                    operation="all_reduce",
                    size=table.elements * self.element,
                    dtype=work.training.dtype,
                    label="embedding_sync",
                )
            )
        if work.training.clip > 0:
            calls += self._norm()
        calls += sync.parameters()
        layers = [layer for layer in self.layers if layer in work.model.moe_layers]
        if work.gating.router in ADAPTIVE and layers and p.dp > 1:
            size = 8 * len(layers) * work.model.experts
            calls.append(_scalar("dp", "all_reduce", size, "router_load", "int64"))
        return calls

    def _norm(self) -> list[Call]:
        """The gradient's norm, summed over those who have different parts of it."""
        p, kinds = self.layout, []
        if p.zero > 1 and p.dp > 1:
            kinds.append(("dp", 16))
        elif p.ep > 1:
            kinds.append(("ep", 8))
        kinds += [(kind, 8) for kind in ("tp", "pp") if getattr(p, kind) > 1]
        return [_scalar(kind, "all_reduce", n, "gradient_norm") for kind, n in kinds]

    # ---- a micro-batch ---------------------------------------------------------

    def _forward(self) -> list[Call]:
        calls = self.sync.before_forward(ROOT)
        for layer in self.layers:
            calls += self.sync.before_forward(("block", layer))
            calls += self._block(layer, gathers=True)
        return calls

    def _backward(self) -> list[Call]:
        sync, shape = self.sync, self.work.model
        calls = sync.before_backward(ROOT)
        for layer in reversed(self.layers):
            unit = ("block", layer)
            calls += sync.before_backward(unit)
            if self.work.training.recompute:
                again = self._block(layer)
                multiplied = shape.norm_place == "post" or layer in shape.moe_layers
                if layer in shape.moe_layers and shape.shared_ffn:
                    multiplied = shape.norm_place == "post" or shape.shared_gate
                if not multiplied and self.layout.tp > 1:
                    again = again[:-1]  # the last sum is of no use to a gradient
                calls += [replace(c, direction="recompute") for c in again]
            calls += self._block_gradient(layer)
            calls += sync.after_backward(unit)
        return calls + sync.after_backward(ROOT) + sync.micro_batch()

    def _block(self, layer: int, *, gathers: bool = False) -> list[Call]:
        """A block's forward pass."""
        shape = self.work.model
        crosses = shape.two_stacks and layer >= shape.encoder_layers
        tokens = self._tokens(layer)
        calls = [self._reduced(layer, tokens) for _ in range(1 + crosses)]
        if layer not in shape.moe_layers:
            return self._if_split([*calls, self._reduced(layer, tokens)])
        calls = self._if_split(calls)
        if self.work.gating.balance_scope == "global" and self.layout.dp > 1:
            counts = self._counts(layer)
            calls.append(counts)
        calls += self._exchanged(layer, "dispatch")
        if gathers:
            calls += self._unit(layer, self.sync.before_forward)
        calls += self._if_split(self._of_experts(layer))
        calls += self._exchanged(layer, "combine")
        if shape.shared_ffn:
            calls += self._if_split([self._reduced(layer, tokens, self.sent_as)])
        return calls

    def _block_gradient(self, layer: int) -> list[Call]:
        shape = self.work.model
        crosses = shape.two_stacks and layer >= shape.encoder_layers
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
        calls += self._unit(layer, self.sync.before_backward)
        calls += self._if_split(list(reversed(self._of_experts(layer))))
        calls += self._unit(layer, self.sync.after_backward)
        calls += self._exchanged(layer, "dispatch_grad")
        calls += self._if_split(attention)
        return [replace(c, direction="backward") for c in calls]

    def _unit(self, layer: int, hook: object) -> list[Call]:
        """What the experts' own unit sends, where experts have copies."""
        unit: Unit = ("experts", layer)
        if unit not in self.sync.units or not callable(hook):
            return []
        found: list[Call] = hook(unit)
        return found

    def _if_split(self, calls: list[Call]) -> list[Call]:
        return calls if self.layout.tp > 1 else []

    def _reduced(self, layer: int, rows: int, dtype: str = "") -> Call:
        dtype = dtype or self.products
        return Call(
            traffic="TP",
            group="tp",
            operation="all_reduce",
            size=rows * self.work.model.hidden * element_bytes(dtype),
            dtype=dtype,
            layer=layer,
            label="tensor_parallel",
        )

    def _counts(self, layer: int) -> Call:
        size = 8 * self.work.model.experts
        call = _scalar("dp", "all_reduce", size, "balance_counts", "int64")
        return replace(call, layer=layer)

    # ---- experts ---------------------------------------------------------------

    def _exchanged(self, layer: int, phase: str) -> list[Call]:
        """A token exchange, and before a dispatch how many rows will come."""
        work, calls = self.work, []
        if self.layout.ep == 1:
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
        gating = self.work.gating
        copies, local = self._copies(layer), self.work.model.experts // self.layout.ep
        whole = self._reduced(layer, copies, self.sent_as)
        whole = replace(whole, exact=gating.dispatch == "padded" or self.layout.ep == 1)
        if gating.dispatch == "dropped":
            whole = replace(whole, exact=False)
        if gating.router != "fairscale":
            return [whole]
        dtype = self.work.training.dtype
        size = copies // local * self.work.model.hidden * element_bytes(dtype)
        return [replace(whole, size=size, dtype=dtype)] * local  # one by one

    def _copies(self, layer: int) -> int:
        """Token copies that a rank sends, and gets if all experts get as much."""
        gating, tokens = self.work.gating, self._tokens(layer)
        routed = gating.k * tokens
        if gating.dispatch == "dropless":
            return routed
        factor = Fraction(repr(float(gating.capacity_factor)))
        experts = self.work.model.experts
        room = experts * ceil(factor * routed / experts)
        return room if gating.dispatch == "padded" else min(routed, room)

    # ---- sizes -----------------------------------------------------------------

    @property
    def layout(self) -> ParallelLayout:
        return self.work.layout

    @property
    def layers(self) -> range:
        return self.layout.stages(self.work.model.layers)[self.number]

    @property
    def element(self) -> int:
        return element_bytes(self.work.training.dtype)

    @property
    def products(self) -> str:
        """What matrices are multiplied in."""
        return self.work.training.precision or self.work.training.dtype

    @property
    def sent_as(self) -> str:
        """What token vectors are sent to experts in."""
        return "float32" if self.work.gating.router == "fairscale" else self.products

    @property
    def tokens(self) -> int:
        return self.work.training.micro_batch * self.work.model.sequence

    def _tokens(self, layer: int) -> int:
        shape = self.work.model
        decodes = shape.two_stacks and layer >= shape.encoder_layers
        sequence = shape.targets if decodes else shape.sequence
        return self.work.training.micro_batch * sequence

    @cached_property
    def tensors(self) -> list[ModelTensor]:
        """What a rank of this stage holds."""
        spec = ROUTERS.get(self.work.gating.router)
        gate = spec is None or not spec.needs_ids
        whole = model_tensors(self.work.model, layers=self.layers, gate=gate)
        return [t.on_rank(tp=self.layout.tp, ep=self.layout.ep) for t in whole]

    @cached_property
    def dense(self) -> list[ModelTensor]:
        """The dense ones, those that tensor ranks share behind the whole ones."""
        dense = [t for t in self.tensors if t.part == "dense"]
        if self.layout.tp == 1:
            return dense
        shared = [t for t in dense if t.split >= 0]
        return [*(t for t in dense if t.split < 0), *_biases_first(shared)]

    @cached_property
    def sync(self) -> Synchronization:
        plan, p = self.work.training, self.layout
        experts = [t for t in self.tensors if t.part == "expert"]
        every = (
            (self.dense, "dp", p.dp, "gradient_sync"),
            (experts, "edp", p.edp, "expert_gradient_sync"),
        )
        copies = [
            Copies(
                tensors=tensors,
                group=group,
                ranks=ranks,
                dtype=plan.dtype,
                element=self.element,
                gradient=self.element,
                gradient_dtype=plan.dtype,
                label=label,
            )
            for tensors, group, ranks, label in every
            if ranks > 1 and tensors
        ]
        if not copies:
            return Synchronization(copies=())
        units: list[Unit] = []
        for layer in self.layers:
            if p.edp > 1 and layer in self.work.model.moe_layers:
                units.append(("experts", layer))
            units.append(("block", layer))
        alone = 0 if p.edp > 1 else sum(t.elements for t in experts)
        return SYNCHRONIZATIONS[self.synchronization or LIBRARIES[p.zero]](
            copies=copies,
            units=[*units, ROOT],
            label="zero",
            options={"alone": alone, **self.options},
        )


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

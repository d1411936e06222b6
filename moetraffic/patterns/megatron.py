"""What Megatron-LM's parallelism sends in an iteration, call by call.

Tensor parallelism (Shoeybi et al., arXiv 1909.08053, section 3) with embedding, head
and cross-entropy split by vocabulary; sequence parallelism (Korthikanti et al., arXiv
2205.05198, section 4.2.2), whose backward pass gathers the inputs of the matrices that
are split by output once more; pipelines with and without virtual stages; experts whose
tokens go through an all-to-all and, where they are split, an all-gather and a
reduce-scatter between (Megatron-LM, ``token_dispatcher.py``,
``MoEAlltoAllTokenDispatcher``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil

from .element_types import element_bytes
from .parallelism import Parallelism, check
from .pattern import Call, Event, Pattern
from .routers import Gating
from .schedules import chunk_layers, handed_on, passes
from .shape import ModelShape
from .synchronization import ROOT, SYNCHRONIZATIONS, Copies, Synchronization, Unit
from .tensors import ModelTensor, model_tensors, sees_own_tokens


def megatron_pattern(
    shape: ModelShape, plan: Parallelism, gating: Gating | None = None
) -> Pattern:
    """The collectives of one iteration, all ranks.

    Parameters
    ----------
    shape
        The model.
    plan
        How it is trained.
    gating
        Of a mixture of experts.  Where routing decides how much is sent, all experts
        are taken to get as much, and the calls' ``exact`` is false.

    Raises
    ------
    LayoutError
        If the model cannot be spread so.
    """
    gating = gating or Gating(k=1)
    check(shape, gating, plan)
    programs = tuple(
        _Stage(shape, plan, gating, number).program() for number in range(plan.pp)
    )
    about: dict[str, object] = {
        "model": shape.name,
        "layers": shape.layers,
        "hidden": shape.hidden,
        "dtype": plan.dtype,
    }
    if shape.experts:
        about |= {
            "experts": shape.experts,
            "k": gating.k,
            "router": gating.router,
            "dispatch": gating.dispatch,
            "capacity_factor": gating.capacity_factor,
        }
    return Pattern(
        name=shape.name, grid=plan, programs=programs, about=tuple(about.items())
    )


@dataclass(frozen=True)
class _Stage:
    """What the ranks of one pipeline stage call."""

    shape: ModelShape
    plan: Parallelism
    gating: Gating
    number: int

    # ---- the iteration -----------------------------------------------------------

    def program(self) -> tuple[Event, ...]:
        plan, stages = self.plan, self.plan.pp
        forward = [self._forward(layers) for layers in self.chunks]
        backward = [self._backward(layers) for layers in self.chunks]
        events: list[Event] = []
        for one in passes(self.number, stages, plan.accumulation, plan.virtual):
            before, behind = handed_on(one, self.number, stages, plan.virtual)
            if before:
                events.append(self._message(before, one.backward, one.micro_batch))
            calls = (backward if one.backward else forward)[one.chunk]
            events += [Event(call, one.micro_batch) for call in calls]
            if behind:
                events.append(self._message(behind, one.backward, one.micro_batch))
        return (*events, *(Event(call) for call in self._end()))

    def _message(self, peers: tuple[int, int], backward: bool, slot: int) -> Event:
        call = Call(
            traffic="PP",
            group="pp",
            operation="send_recv",
            size=self._bytes(self._own(self.shape.sequence)),
            dtype=self.plan.dtype,
            direction="backward" if backward else "forward",
            label="pipeline",
            peers=peers,
        )
        return Event(call, slot)

    def _end(self) -> list[Call]:
        """Behind the last backward pass (``finalize_model_grads.py``)."""
        plan = grid = self.plan
        gradient = element_bytes(plan.gradients)
        calls = self.sync.gradients()
        if plan.sequence_parallel and grid.tp > 1:
            alike = sum(t.elements for t in self.dense if sees_own_tokens(t))
            calls.append(
                self._tensor("all_reduce", alike * gradient, "norm_gradient_sync")
            )
        ends = self.number in (0, grid.pp - 1)
        if grid.pp > 1 and self.shape.tied and ends:
            table = next(t for t in self.dense if t.name == "token.weight")
            calls.append(
                Call(
                    traffic="EmbTableSync",
                    group="embedding",
                    operation="all_reduce",
                    size=table.elements * gradient,
                    dtype=plan.gradients,
                    label="embedding_sync",
                )
            )
        shards = plan.synchronized not in ("all-reduce", "ddp", "oss")
        if grid.world > 1 and (shards or grid.tp * grid.pp > 1):
            calls.append(
                Call(
                    traffic="control",
                    group="world" if shards else "mp",
                    operation="all_reduce",
                    size=4,
                    dtype="float32",
                    label="gradient_norm",
                )
            )
        return calls + self.sync.parameters()

    # ---- a chunk and micro-batch ----------------------------------------------

    def _forward(self, layers: range) -> list[Call]:
        calls, sequence = self.sync.before_forward(ROOT), self.shape.sequence
        if 0 in layers:
            calls += self._summed(sequence, "embedding")
        for layer in layers:
            calls += self.sync.before_forward(("block", layer))
            calls += self._block(layer)
        if self.shape.layers - 1 in layers:
            calls += self._gathered(self.shape.targets, "head")
            calls += self._entropy()
        return calls

    def _backward(self, layers: range) -> list[Call]:
        calls, sync = self.sync.before_backward(ROOT), self.sync
        if self.shape.layers - 1 in layers:
            head = self._gathered(self.shape.targets, "head")
            calls += [*head, *self._summed(self.shape.targets, "head")]
        for layer in reversed(layers):
            unit: Unit = ("block", layer)
            calls += sync.before_backward(unit)
            if self.plan.recompute == "full":
                again = self._block(layer, gathers=False)
                calls += [replace(c, direction="recompute") for c in again]
            calls += self._block_gradient(layer)
            calls += sync.after_backward(unit)
        if 0 in layers:
            # without sequence parallelism a lookup's gradient needs nobody else
            calls += self._gathered(self.shape.sequence, "embedding")
        calls += sync.after_backward(ROOT) + sync.micro_batch()
        return [
            c if c.direction == "recompute" else replace(c, direction="backward")
            for c in calls
        ]

    def _block(self, layer: int, *, gathers: bool = True) -> list[Call]:
        sequence, calls = self._sequence(layer), []
        for crosses in range(1 + self._crosses(layer)):
            calls += self._gathered(sequence, "attention", layer)
            if crosses:  # keys and values are of what the encoder read
                calls += self._gathered(self.shape.sequence, "attention", layer)
            calls += self._context(layer, backward=False)
            calls += self._summed(sequence, "attention", layer)
        if layer not in self.shape.moe_layers:
            return calls + self._matrices(sequence, "mlp", layer)
        calls += self._exchange(layer, "dispatch")
        if gathers:
            calls += self._experts_unit(layer, self.sync.before_forward)
        calls += self._split_experts(layer, ("all_gather", "reduce_scatter"))
        calls += self._exchange(layer, "combine")
        if self.shape.shared_ffn:
            calls += self._matrices(sequence, "shared", layer)
        return calls

    def _block_gradient(self, layer: int) -> list[Call]:
        sequence, calls = self._sequence(layer), []
        if layer not in self.shape.moe_layers:
            calls += self._matrices_gradient(sequence, "mlp", layer)
        else:
            if self.shape.shared_ffn:
                calls += self._matrices_gradient(sequence, "shared", layer)
            calls += self._exchange(layer, "combine_grad")
            calls += self._experts_unit(layer, self.sync.before_backward)
            calls += self._split_experts(layer, ("all_gather", "reduce_scatter"))
            calls += self._experts_unit(layer, self.sync.after_backward)
            calls += self._exchange(layer, "dispatch_grad")
        for asked in reversed(range(1 + self._crosses(layer))):
            calls += self._gathered(sequence, "attention", layer)
            calls += self._context(layer, backward=True)
            if asked:  # the encoder's output again, and its gradient
                calls += self._matrices(self.shape.sequence, "attention", layer)
            # the input of query, key and value again, then its gradient
            calls += self._gathered(sequence, "attention", layer)
            calls += self._summed(sequence, "attention", layer)
        return calls

    def _matrices(self, sequence: int, label: str, layer: int) -> list[Call]:
        """A matrix split by output and one split by input, forward."""
        gathered = self._gathered(sequence, label, layer)
        return gathered + self._summed(sequence, label, layer)

    def _matrices_gradient(self, sequence: int, label: str, layer: int) -> list[Call]:
        gathered = self._gathered(sequence, label, layer)
        return 2 * gathered + self._summed(sequence, label, layer)

    # ---- tensor and sequence parallelism ------------------------------------------

    def _tensor(self, operation: str, size: int, label: str, layer: int = -1) -> Call:
        return Call(
            traffic="TP",
            group="tp",
            operation=operation,
            size=size,
            dtype=self.plan.dtype,
            layer=layer,
            label=label,
        )

    def _gathered(self, sequence: int, label: str, layer: int = -1) -> list[Call]:
        """All tokens of a sequence, where each tensor rank has some."""
        if self.plan.tp == 1 or not self.plan.sequence_parallel:
            return []
        size = self._bytes(self._own(sequence))
        return [self._tensor("all_gather", size, label, layer)]

    def _summed(self, sequence: int, label: str, layer: int = -1) -> list[Call]:
        """The sum over tensor ranks, or each one's tokens of it."""
        if self.plan.tp == 1:
            return []
        one = "reduce_scatter" if self.plan.sequence_parallel else "all_reduce"
        size = self._bytes(self._shared(sequence))
        return [self._tensor(one, size, label, layer)]

    def _entropy(self) -> list[Call]:
        """The vocabulary-parallel loss: largest logit, right one's, sum of powers."""
        if self.plan.tp == 1:
            return []
        size = 4 * self._shared(self.shape.targets)
        call = self._tensor("all_reduce", size, "cross_entropy")
        return [replace(call, dtype="float32")] * 3

    # ---- context parallelism -------------------------------------------------------

    def _context(self, layer: int, *, backward: bool) -> list[Call]:
        """What one attention sends so that its tokens see the whole sequence."""
        ranks = self.plan.cp
        if ranks == 1:
            return []
        m, tokens = self.shape, self._shared(self._sequence(layer))
        element, tp = element_bytes(self.plan.dtype), self.plan.tp
        heads = m.heads if m.kv_rank else max(m.groups, tp)
        key = m.head_width + (m.rope_size if m.kv_rank else 0)
        widths = {"q": m.heads * key, "k": heads * key, "v": heads * m.value_width}
        widths["out"] = m.heads * m.value_width
        both = tokens * (widths["k"] + widths["v"]) // tp * element
        call = Call(
            traffic="CP",
            group="cp",
            operation="send_recv",
            size=both,
            dtype=self.plan.dtype,
            layer=layer,
            label="context",
            shift=1,
        )
        if self.plan.context == "ring":
            # keys and values, and on the way back their gradients behind them
            return [call] * ((ranks - 1) * (2 if backward else 1))
        call = replace(call, shift=0)
        if self.plan.context == "all-gather":
            gathered = replace(call, operation="all_gather")
            if not backward:
                return [gathered]
            whole = replace(call, operation="reduce_scatter", size=both * ranks)
            return [gathered, whole]
        return [
            replace(call, operation="all_to_all", size=tokens * width // tp * element)
            for width in widths.values()
        ]

    # ---- experts ---------------------------------------------------------------

    def _exchange(self, layer: int, phase: str) -> list[Call]:
        """A token exchange, and before a dispatch how many copies will come."""
        grid, calls = self.plan, []
        padded = self.gating.dispatch == "padded"
        if phase == "dispatch" and not padded and grid.expert_tp * grid.ep > 1:
            calls.append(
                Call(
                    traffic="control",
                    group="etp_ep",
                    operation="all_gather",
                    size=8 * self.shape.experts,
                    dtype="int64",
                    layer=layer,
                    label="count_exchange",
                )
            )
        if grid.ep == 1:
            return calls
        row = self._bytes(1)
        call = Call(
            traffic="EP",
            group="ep",
            operation="all_to_all",
            size=self._copies(layer) * row,
            dtype=self.plan.dtype,
            layer=layer,
            phase=phase,
            row_bytes=row,
            exact=padded,
        )
        return [*calls, call]

    def _split_experts(self, layer: int, operations: Sequence[str]) -> list[Call]:
        """Tensor ranks of an expert see all copies of all of them."""
        ranks = self.plan.expert_tp
        if ranks == 1:
            return []
        mine = self._copies(layer) * self._bytes(1)
        call = Call(
            traffic="TP",
            group="etp",
            operation="",
            size=mine,
            dtype=self.plan.dtype,
            layer=layer,
            label="experts",
            exact=self.gating.dispatch == "padded",
        )
        sizes = {"all_gather": mine, "reduce_scatter": mine * ranks}
        return [replace(call, operation=o, size=sizes[o]) for o in operations]

    def _experts_unit(self, layer: int, hook: object) -> list[Call]:
        """What the experts' own unit sends, where experts have copies."""
        unit: Unit = ("experts", layer)
        if unit not in self.sync.units or not callable(hook):
            return []
        found: list[Call] = hook(unit)
        return found

    def _copies(self, layer: int) -> int:
        """Token copies that a rank sends, and gets if all experts get as much."""
        g, experts = self.gating, self.shape.experts
        routed = g.k * self._own(self._sequence(layer))
        if g.dispatch == "dropless":
            return routed
        room = Fraction(repr(float(g.capacity_factor))) * routed / experts
        whole = experts * ceil(room)
        return whole if g.dispatch == "padded" else min(routed, whole)

    # ---- sizes -----------------------------------------------------------------

    def _bytes(self, tokens: int) -> int:
        return tokens * self.shape.hidden * element_bytes(self.plan.dtype)

    def _shared(self, sequence: int) -> int:
        """Tokens of a micro-batch that a tensor-parallel group has."""
        return self.plan.micro_batch * sequence // self.plan.cp

    def _own(self, sequence: int) -> int:
        """Tokens of it that a rank has between the split matrices."""
        ranks = self.plan.tp if self.plan.sequence_parallel else 1
        return self._shared(sequence) // ranks

    def _crosses(self, layer: int) -> bool:
        return self.shape.two_stacks and layer >= self.shape.encoder_layers

    def _sequence(self, layer: int) -> int:
        return self.shape.targets if self._crosses(layer) else self.shape.sequence

    @property
    def chunks(self) -> list[range]:
        """Global layers of this stage's chunks."""
        pp, virtual = self.plan.pp, self.plan.virtual
        return list(chunk_layers(self.shape.layers, pp, virtual)[self.number :: pp])

    @cached_property
    def tensors(self) -> list[ModelTensor]:
        """What a rank of this stage holds."""
        grid, held = self.plan, []
        for layers in self.chunks:
            for t in model_tensors(self.shape, layers=layers, vocabulary_split=grid.tp):
                tp = grid.expert_tp if t.part == "expert" else grid.tp
                if t.split >= 0 and t.sizes[t.split] % tp:
                    tp = t.sizes[t.split]  # heads of which ranks have copies
                held.append(t.on_rank(tp=tp, ep=grid.ep))
        return held

    @property
    def dense(self) -> list[ModelTensor]:
        return [t for t in self.tensors if t.part == "dense"]

    @cached_property
    def sync(self) -> Synchronization:
        plan = grid = self.plan
        experts = [t for t in self.tensors if t.part == "expert"]
        replicas = "dp_cp" if grid.cp > 1 else "dp"
        every = (
            (self.dense, replicas, grid.dp * grid.cp, "gradient_sync"),
            (experts, "edp", grid.edp, "expert_gradient_sync"),
        )
        copies = [
            Copies(
                tensors=tensors,
                group=group,
                ranks=ranks,
                dtype=plan.dtype,
                element=element_bytes(plan.dtype),
                gradient=element_bytes(plan.gradients),
                gradient_dtype=plan.gradients,
                label=label,
            )
            for tensors, group, ranks, label in every
            if ranks > 1 and tensors
        ]
        if not copies:
            return Synchronization(copies=())
        units: list[Unit] = []
        for layer in (layer for chunk in self.chunks for layer in chunk):
            if grid.edp > 1 and layer in self.shape.moe_layers:
                units.append(("experts", layer))
            units.append(("block", layer))
        return SYNCHRONIZATIONS[plan.synchronized](
            copies=copies,
            units=[*units, ROOT],
            options={"bucket_mib": plan.bucket_mib},
        )

"""What Megatron-LM's parallelism sends in an iteration, call by call.

What a layer sends is :mod:`.layer_calls`; here stages, schedules and synchronization.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from .element_types import element_bytes
from .layer_calls import Halves, LayerCalls, Part, room
from .layouts.configuration import Configuration, refuse_unsound
from .layouts.parallelism import Parallelism
from .pattern import Call, Pattern
from .shape import ModelShape
from .stage import Stage, pattern_of
from .synchronization import ROOT
from .tensors import ModelTensor, model_tensors, sees_own_tokens
from .workloads.routers import Gating


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
    config = Configuration.of(shape, plan, gating)
    refuse_unsound(config)
    calls = layer_calls(config, gating)
    return pattern_of([_Stage(shape, plan, gating, n, calls) for n in range(plan.pp)])


def layer_calls(config: Configuration, gating: Gating) -> LayerCalls:
    """What a layer sends, with the exchange of counts, and what capacity drops."""
    found = LayerCalls.of(config, counted=int(gating.dispatch != "padded"))
    if gating.dispatch != "dropped":
        return found
    kept = {}
    for name in ("source_copies", "target_copies"):
        routed, experts = getattr(found, name), config.sizes.experts
        kept[name] = np.minimum(routed, room(routed, experts, gating.capacity_factor))
    return replace(found, **kept)


@dataclass(frozen=True)
class _Stage(Stage):
    """What the ranks of one pipeline stage call."""

    layer_calls: LayerCalls

    def end(self) -> list[Call]:
        """Behind the last backward pass (``finalize_model_grads.py``)."""
        plan = self.plan
        gradient = element_bytes(plan.gradients)
        own = sum(t.elements for t in self.dense if sees_own_tokens(t))
        calls = self.sync.gradients()
        calls += self._listed(self.layer_calls.norms(own, gradient))
        calls += self.embedding_sync()
        shards = plan.synchronized not in ("all-reduce", "ddp", "oss")
        if plan.world > 1 and (shards or plan.tp * plan.pp > 1):
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

    def forward(self, layers: range) -> list[Call]:
        """Embedding, layers, head and loss, as far as they are in the chunk."""
        calls = self.sync.before_forward(ROOT)
        if 0 in layers:
            calls += self._listed(self.layer_calls.embedded())
        for layer in layers:
            calls += self._layer(layer)
        if self.shape.layers - 1 in layers:
            calls += self._listed(self.layer_calls.predicted())
            for layer in self.shape.predicting_layers:
                calls += self._listed(self.layer_calls.embedded())
                calls += self._listed(self.layer_calls.joined(), layer)
                calls += self._layer(layer)
                calls += self._listed(self.layer_calls.predicted())
        return calls

    def backward(self, layers: range) -> list[Call]:
        """The same, from the end."""
        calls, sync = self.sync.before_backward(ROOT), self.sync
        if self.shape.layers - 1 in layers:
            for layer in reversed(self.shape.predicting_layers):
                calls += self._listed(self.layer_calls.predicted_gradient())
                calls += self._layer_gradient(layer, self.layer_calls.joined())
                calls += self._listed(self.layer_calls.joined_gradient(), layer)
                calls += self._listed(self.layer_calls.embedded_gradient())
            calls += self._listed(self.layer_calls.predicted_gradient())
        for layer in reversed(layers):
            calls += self._layer_gradient(layer)
        if 0 in layers:
            calls += self._listed(self.layer_calls.embedded_gradient())
        calls += sync.after_backward(ROOT) + sync.micro_batch()
        return [
            c if c.direction == "recompute" else replace(c, direction="backward")
            for c in calls
        ]

    def _layer(self, layer: int) -> list[Call]:
        """A layer's forward pass."""
        calls = self.sync.before_forward(("block", layer))
        halves = self._pass(self.layer_calls.forward, layer)
        calls += self._listed(halves.before, layer)
        calls += self.experts_unit(layer, self.sync.before_forward)
        return calls + self._listed(halves.experts + halves.behind, layer)

    def _layer_gradient(self, layer: int, ahead: Sequence[Part] = ()) -> list[Call]:
        """Its backward pass; ``ahead`` is computed again with it."""
        sync, unit = self.sync, ("block", layer)
        calls = sync.before_backward(unit)
        if self.plan.recompute == "full":
            again = [*ahead, *self._pass(self.layer_calls.forward, layer).all]
            calls += [
                replace(c, direction="recompute") for c in self._listed(again, layer)
            ]
        halves = self._pass(self.layer_calls.backward, layer)
        calls += self._listed(halves.before, layer)
        calls += self.experts_unit(layer, sync.before_backward)
        calls += self._listed(halves.experts, layer)
        calls += self.experts_unit(layer, sync.after_backward)
        calls += self._listed(halves.behind, layer)
        return calls + sync.after_backward(unit)

    def _pass(self, of: Callable[..., Halves], layer: int) -> Halves:
        sparse, crosses = self.shape.sparse(layer), self.shape.crosses(layer)
        return of(sparse=sparse, crosses=crosses)

    def _listed(self, parts: Sequence[Part], layer: int = -1) -> list[Call]:
        """Parts call by call."""
        calls = []
        for part in parts:
            call = self._call(part, layer)
            calls += [call] * int(part.times)
        return calls

    def _call(self, part: Part, layer: int) -> Call:
        plan, size = self.plan, round(float(part.buffer))
        padded = self.gating.dispatch == "padded"
        mixed = 1 < plan.ulysses < plan.cp
        out = part.phase in ("dispatch", "combine_grad")
        dtypes = {"cross_entropy": "float32", "count_exchange": "int64"}
        if part.operation == "all_gather":
            rings = plan.cp // max(plan.ulysses, 1)
            groups = {"tp": plan.tp, "cp_ring": rings, "etp": plan.expert_tp}
            size //= groups.get(part.group, plan.expert_tp * plan.ep)
        if out or (part.label, part.operation) == ("experts", "all_gather"):
            dtype = plan.dispatched
        else:
            dtype = dtypes.get(part.label, plan.dtype)
        row = plan.row_bytes(self.shape.hidden, dispatched=out) if part.phase else 0
        return Call(
            traffic=part.traffic,
            group="cp" if part.traffic == "CP" and not mixed else part.group,
            operation=part.operation,
            size=size,
            dtype=dtype,
            layer=layer,
            label=part.label,
            phase=part.phase,
            row_bytes=row,
            shift=int(part.operation == "send_recv"),
            exact=padded or not (part.phase or part.label == "experts"),
        )

    # ---- sizes -----------------------------------------------------------------

    @property
    def handed_on(self) -> int:
        """Bytes of a micro-batch's activations between stages."""
        return round(float(self.layer_calls.handed_on))

    @cached_property
    def tensors(self) -> list[ModelTensor]:
        """What a rank of this stage holds."""
        grid = self.plan
        held: list[ModelTensor] = []
        for layers in self.chunks:
            for t in model_tensors(self.shape, layers=layers, vocabulary_split=grid.tp):
                tp = grid.expert_tp if t.part == "expert" else grid.tp
                if t.split >= 0 and t.sizes[t.split] % tp:
                    tp = t.sizes[t.split]  # heads of which ranks have copies
                if t.name == "token.weight" and t.name in {h.name for h in held}:
                    continue  # both ends of a tied model share it
                held.append(t.on_rank(tp=tp, ep=grid.ep))
        return held

"""What the ranks of one pipeline stage call, whatever library trains.

Passes, what their layers send (:mod:`.layer_calls`), messages between stages, copies
that are kept equal, and the tied embedding are the same in all libraries; where these
differ, each library's pattern has a dialect.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, NamedTuple

from .element_types import element_bytes
from .layer_calls import Halves, LayerCalls, Part
from .layouts.configuration import Configuration
from .layouts.parallelism import Parallelism
from .layouts.schedules import chunk_layers, handed_on, passes
from .pattern import Call, Event, Pattern
from .shape import ModelShape
from .synchronization import ROOT, SYNCHRONIZATIONS, Copies, Synchronization, Unit
from .tensors import ModelTensor
from .workloads.routers import Gating

Shares = tuple[tuple[float, ...], ...]
"""Of an exchange's token copies, by measured layer and expert-parallel rank."""


class Chunk(NamedTuple):
    """What a micro-batch passes at once on a stage."""

    layers: range  # global
    first: bool  # whether the embedding is in front of them
    last: bool  # whether norm, head and further predictions are behind them


@dataclass(frozen=True)
class Stage:
    """A stage of a pipeline; of one stage where there is no pipeline."""

    shape: ModelShape
    plan: Parallelism
    gating: Gating
    number: int
    shares: Shares = field(default=(), kw_only=True)

    # ---- what a library adds -----------------------------------------------------

    @abstractmethod
    def end(self) -> list[Call]:
        """Behind the last backward pass."""

    @property
    @abstractmethod
    def tensors(self) -> list[ModelTensor]:
        """What a rank of this stage holds."""

    dialect: ClassVar[type[LayerCalls]] = LayerCalls
    shard_label: ClassVar[str] = ""  # of calls that ZeRO adds; empty: as of gradients

    @property
    def synchronization_options(self) -> Mapping[str, float]:
        """Options of the synchronization."""
        return {"bucket_mib": self.plan.bucket_mib, "keep": self.plan.keep}

    def recomputed(self, calls: list[Call], layer: int) -> list[Call]:
        """What of a layer's forward pass is sent again before its backward pass."""
        return calls

    @cached_property
    def layer_calls(self) -> LayerCalls:
        """What a layer sends."""
        config = Configuration.of(self.shape, self.plan, self.gating)
        return self.dialect(config=config, gating=self.gating)

    # ---- the iteration -----------------------------------------------------------

    def program(self) -> tuple[Event, ...]:
        """The calls of an iteration, in order."""
        plan, stages = self.plan, self.plan.pp
        forward = [self.forward(chunk) for chunk in self.chunks]
        backward = [self.backward(chunk) for chunk in self.chunks]
        events: list[Event] = []
        how = plan.virtual, plan.schedule
        parts = self.layer_calls.received()
        received = [self.listed(parts, -1, way) for way in ("forward", "backward")]
        for one in passes(self.number, stages, plan.accumulation, *how):
            before, behind = handed_on(one, self.number, stages, *how)
            if before:
                events.append(self._message(before, one.backward, one.micro_batch))
                gathered = received[one.backward]
                events += [Event(call, one.micro_batch) for call in gathered]
            calls = (backward if one.backward else forward)[one.chunk]
            events += [Event(call, one.micro_batch) for call in calls]
            if behind:
                events.append(self._message(behind, one.backward, one.micro_batch))
        return (*events, *(Event(call) for call in self.end()))

    def _message(self, peers: tuple[int, int], backward: bool, slot: int) -> Event:
        call = Call(
            traffic="PP",
            group="pp",
            operation="send_recv",
            size=round(float(self.layer_calls.handed_on)),
            dtype=self.plan.dtype,
            direction="backward" if backward else "forward",
            label="pipeline",
            peers=peers,
        )
        return Event(call, slot)

    # ---- a chunk and micro-batch ------------------------------------------------

    def forward(self, chunk: Chunk) -> list[Call]:
        """Embedding, layers, head and loss, as far as they are in the chunk."""
        calls, parts = self.sync.at("before_forward", ROOT), self.layer_calls
        embedded, predicted = map(self.listed, (parts.embedded(), parts.predicted()))
        if chunk.first:
            calls += embedded
        for layer in chunk.layers:
            calls += self._layer(layer)
        if chunk.last:
            calls += predicted
            for layer in self.shape.predicting_layers:
                calls += embedded + self.listed(parts.joined(), layer)
                calls += self._layer(layer) + predicted
        return calls

    def backward(self, chunk: Chunk) -> list[Call]:
        """The same, from the end."""
        calls, sync = self.sync.at("before_backward", ROOT), self.sync
        parts = self.layer_calls
        embedded, predicted = (
            self.listed(of, -1, "backward")
            for of in (parts.embedded_gradient(), parts.predicted_gradient())
        )
        if chunk.last:
            for layer in reversed(self.shape.predicting_layers):
                calls += predicted + self._layer_gradient(layer, parts.joined())
                calls += self.listed(parts.joined_gradient(), layer, "backward")
                calls += embedded
            calls += predicted
        for layer in reversed(chunk.layers):
            calls += self._layer_gradient(layer)
        if chunk.first:
            calls += embedded
        calls += sync.at("after_backward", ROOT)
        return calls + (sync.at("micro_batch") if chunk == self.chunks[0] else [])

    def _layer(self, layer: int) -> list[Call]:
        """A layer's forward pass."""
        calls = self.sync.at("before_forward", ("block", layer))
        halves = self._pass(self.layer_calls.forward, layer)
        calls += self.listed(halves.before, layer)
        calls += self.experts_unit(layer, "before_forward")
        return calls + self.listed(halves.experts + halves.behind, layer)

    def _layer_gradient(self, layer: int, ahead: Sequence[Part] = ()) -> list[Call]:
        """Its backward pass; ``ahead`` is computed again with it."""
        sync, unit = self.sync, ("block", layer)
        calls = sync.at("before_backward", unit)
        if self.plan.recompute == "full":
            again = [*ahead, *self._pass(self.layer_calls.forward, layer).all]
            calls += self.recomputed(self.listed(again, layer, "recompute"), layer)
        halves = self._pass(self.layer_calls.backward, layer)
        calls += self.listed(halves.before, layer, "backward")
        calls += self.experts_unit(layer, "before_backward")
        calls += self.listed(halves.experts, layer, "backward")
        calls += self.experts_unit(layer, "after_backward")
        calls += self.listed(halves.behind, layer, "backward")
        return calls + sync.at("after_backward", unit)

    def _pass(self, of: Callable[..., Halves], layer: int) -> Halves:
        sparse, crosses = self.shape.sparse(layer), self.shape.crosses(layer)
        return of(sparse=sparse, crosses=crosses)

    def listed(
        self, parts: Sequence[Part], layer: int = -1, direction: str = "forward"
    ) -> list[Call]:
        """Parts call by call."""
        calls = []
        for part in parts:
            calls += [self.call(part, layer, direction)] * int(part.times)
        return calls

    def call(self, part: Part, layer: int, direction: str) -> Call:
        """A part as a member of its group calls it."""
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
            direction=direction,
            label=part.label,
            phase=part.phase,
            row_bytes=row,
            shares=self._shares_of(layer) if part.phase else (),
            shift=int(part.operation == "send_recv"),
            exact=padded or not (part.phase or part.label == "experts"),
        )

    def _shares_of(self, layer: int) -> tuple[float, ...]:
        """Shares of a layer, that of the measured ones at the same depth."""
        if not self.shares:
            return ()
        sparse = self.shape.moe_layers
        place = min(bisect_left(sparse, layer), len(sparse) - 1)
        return self.shares[place * len(self.shares) // len(sparse)]

    def experts_unit(self, layer: int, point: str) -> list[Call]:
        """What the experts' own unit sends, where experts have copies."""
        unit: Unit = ("experts", layer)
        return self.sync.at(point, unit) if unit in self.sync.units else []

    def embedding_sync(self) -> list[Call]:
        """The embedding's gradient, where the first and the last stage use it."""
        shared = self.shape.tied or self.shape.mtp
        if self.plan.pp == 1 or not shared or self._twice:
            return []
        if self.number not in (0, self.plan.pp - 1):
            return []
        table = next(t for t in self.dense if t.name == "token.weight")
        call = Call(
            traffic="EmbTableSync",
            group="embedding",
            operation="all_reduce",
            size=table.elements * element_bytes(self.plan.gradients),
            dtype=self.plan.gradients,
            label="embedding_sync",
        )
        return [call]

    # ---- what it holds ---------------------------------------------------------

    @property
    def chunks(self) -> list[Chunk]:
        """This stage's chunks."""
        plan, number = self.plan, self.number
        ends = plan.embedding_layers, plan.head_layers
        layers = chunk_layers(self.shape.layers, plan.pp, plan.virtual, *ends)
        last = len(layers) - 1
        every = [Chunk(of, at == 0, at == last) for at, of in enumerate(layers)]
        if self._twice:
            return [every[number], every[last - number]]
        return every[number :: plan.pp]

    @property
    def _twice(self) -> bool:
        """Whether a stage's parameters are on the mirrored stage's ranks too."""
        return bool(self.plan.schedule == "dualpipe")

    @property
    def dense(self) -> list[ModelTensor]:
        """Tensors outside experts, in the order in which an optimizer has them."""
        return [t for t in self.tensors if t.part == "dense"]

    @cached_property
    def sync(self) -> Synchronization:
        """How copies of this stage's parameters are kept equal."""
        plan = self.plan
        experts = [t for t in self.tensors if t.part == "expert"]
        replicas = "dp_cp" if plan.cp > 1 else "dp"
        # kind, ranks, those among which they are sharded, label
        every = [
            (self.dense, replicas, plan.dp * plan.cp, plan.shards, "gradient_sync"),
            (experts, "edp", plan.edp, plan.expert_shards, "expert_gradient_sync"),
        ]
        if self._twice:
            every = [
                (tensors, f"{group.partition('_')[0]}_pair", 2 * ranks, 2 * ranks, of)
                for tensors, group, ranks, _, of in every
            ]
        copies = [
            Copies(
                tensors=tensors,
                group=f"{group.partition('_')[0]}_shard" if shards < ranks else group,
                ranks=shards,
                across=ranks // shards,
                across_group=f"{group.partition('_')[0]}_replicate",
                dtype=plan.dtype,
                element=element_bytes(plan.dtype),
                gradient=element_bytes(plan.gradients),
                gradient_dtype=plan.gradients,
                label=label,
            )
            for tensors, group, ranks, shards, label in every
            if ranks > 1 and tensors
        ]
        if not copies:
            return Synchronization(copies=())
        units: list[Unit] = []
        held = [layer for chunk in self.chunks for layer in chunk.layers]
        if any(chunk.last for chunk in self.chunks):
            held += self.shape.predicting_layers
        for layer in held:
            if plan.edp > 1 and self.shape.sparse(layer):
                units.append(("experts", layer))
            units.append(("block", layer))
        return SYNCHRONIZATIONS[plan.synchronized](
            copies=copies,
            units=[*units, ROOT],
            label=self.shard_label,
            options=self.synchronization_options,
        )


def pattern_of(
    stages: list[Stage], about: Mapping[str, object] | None = None
) -> Pattern:
    """The pattern of all stages of a pipeline, with further properties of the run."""
    first = stages[0]
    shape, gating = first.shape, first.gating
    known: dict[str, object] = {
        "model": shape.name,
        "layers": shape.layers,
        "hidden": shape.hidden,
        "dtype": first.plan.dtype,
        **(about or {}),
    }
    if shape.experts:
        known |= {
            "experts": shape.experts,
            "k": gating.k,
            "router": gating.router,
            "dispatch": gating.dispatch,
            "capacity_factor": gating.capacity_factor,
        }
    return Pattern(
        name=shape.name,
        grid=first.plan,
        programs=tuple(stage.program() for stage in stages),
        about=tuple(known.items()),
    )


def control(
    group: str,
    operation: str,
    size: int,
    label: str,
    dtype: str = "float64",
    root: int = 0,
) -> Call:
    """A call of a few bytes: a norm, a loss, counts."""
    return Call(
        traffic="control",
        group=group,
        operation=operation,
        size=size,
        dtype=dtype,
        label=label,
        root=root,
    )

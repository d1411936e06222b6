"""What the ranks of one pipeline stage call, whatever library trains.

The schedule's passes in order, messages between stages, copies that are kept equal, and
the tied embedding are the same in all libraries; what a pass and the end of an
iteration send, each library's pattern adds.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from .element_types import element_bytes
from .layouts.parallelism import Parallelism
from .layouts.schedules import chunk_layers, handed_on, passes
from .pattern import Call, Event, Pattern
from .shape import ModelShape
from .synchronization import ROOT, SYNCHRONIZATIONS, Copies, Synchronization, Unit
from .tensors import ModelTensor
from .workloads.routers import Gating


@dataclass(frozen=True)
class Stage:
    """A stage of a pipeline; of one stage where there is no pipeline."""

    shape: ModelShape
    plan: Parallelism
    gating: Gating
    number: int

    # ---- what a library adds -----------------------------------------------------

    @abstractmethod
    def forward(self, layers: range) -> list[Call]:
        """A micro-batch's forward pass through a chunk of layers."""

    @abstractmethod
    def backward(self, layers: range) -> list[Call]:
        """Its backward pass."""

    @abstractmethod
    def end(self) -> list[Call]:
        """Behind the last backward pass."""

    @property
    @abstractmethod
    def handed_on(self) -> int:
        """Bytes of a micro-batch's activations between stages."""

    @property
    @abstractmethod
    def tensors(self) -> list[ModelTensor]:
        """What a rank of this stage holds."""

    shard_label: ClassVar[str] = ""  # of calls that ZeRO adds; empty: as of gradients

    @property
    def synchronization_options(self) -> Mapping[str, float]:
        """Options of the synchronization."""
        return {"bucket_mib": self.plan.bucket_mib, "keep": self.plan.keep}

    # ---- the iteration -----------------------------------------------------------

    def program(self) -> tuple[Event, ...]:
        """The calls of an iteration, in order."""
        plan, stages = self.plan, self.plan.pp
        forward = [self.forward(layers) for layers in self.chunks]
        backward = [self.backward(layers) for layers in self.chunks]
        events: list[Event] = []
        how = plan.virtual, plan.schedule
        for one in passes(self.number, stages, plan.accumulation, *how):
            before, behind = handed_on(one, self.number, stages, *how)
            if before:
                events.append(self._message(before, one.backward, one.micro_batch))
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
            size=self.handed_on,
            dtype=self.plan.dtype,
            direction="backward" if backward else "forward",
            label="pipeline",
            peers=peers,
        )
        return Event(call, slot)

    def experts_unit(
        self, layer: int, hook: Callable[[Unit], list[Call]]
    ) -> list[Call]:
        """What the experts' own unit sends, where experts have copies."""
        unit: Unit = ("experts", layer)
        return hook(unit) if unit in self.sync.units else []

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
    def chunks(self) -> list[range]:
        """Global layers of this stage's chunks."""
        pp, virtual = self.plan.pp, self.plan.virtual
        chunks = chunk_layers(self.shape.layers, pp, virtual)
        if self._twice:
            return [chunks[self.number], chunks[-1 - self.number]]
        return list(chunks[self.number :: pp])

    @property
    def _twice(self) -> bool:
        """Whether a stage's parameters are on the mirrored stage's ranks too."""
        return self.plan.schedule == "dualpipe"

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
        held = [layer for chunk in self.chunks for layer in chunk]
        if self.shape.layers - 1 in held:
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
    """The pattern of all stages of a pipeline.

    Parameters
    ----------
    stages
        In order.
    about
        Further properties of the run.
    """
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

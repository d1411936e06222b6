"""A model, its parallelism and routing as numbers, for patterns and estimates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from moetraffic.errors import LayoutError
from moetraffic.patterns.model_sizes import ModelSizes, model_sizes
from moetraffic.patterns.rules import choose
from moetraffic.patterns.shape import ModelShape
from moetraffic.patterns.synchronization import SYNCHRONIZATIONS
from moetraffic.patterns.values import Values, anywhere, numbers, where
from moetraffic.patterns.workloads.routers import Gating

from .parallelism import CONTEXTS, DISPATCHERS, RECOMPUTE, Parallelism
from .schedules import SCHEDULES
from .stage_layers import StageLayers, stage_layers

NAMED = {
    "recompute": RECOMPUTE,
    "context": CONTEXTS,
    "schedule": SCHEDULES,
    "dispatcher": DISPATCHERS,
}
"""Fields that are one of some names, which are held as places among them."""

SAID = (
    *("model", "order", "synchronization", "bucket_mib", "keep"),
    *("dtype", "dispatch_dtype", "gradient_dtype"),
)
"""Fields that are kept as given."""


@dataclass(frozen=True, kw_only=True)
class Configuration(Parallelism):
    """A parallelism with its model and routing; numbers are float64, or arrays of it.

    What peers disagree about is a field here, or of
    :class:`~moetraffic.patterns.time_model.Conventions`; nothing is assumed silently.
    """

    model: ModelShape | Sequence[ModelShape]  # several: of an array's elements
    k: Values = 0  # experts of a token; of no matter to a dense model
    capacity_factor: Values = 0  # of padded buffers of experts; 0: what is routed
    imbalance: Values = 1  # busiest expert-parallel rank over the mean

    def __post_init__(self, global_batch: Values) -> None:
        super().__post_init__(global_batch)
        choose("synchronization", self.synchronization, ("", *SYNCHRONIZATIONS))
        for name in NUMBERS:
            given = getattr(self, name)
            given = _places(name, given) if name in NAMED else given
            object.__setattr__(self, name, numbers(name, given))
        _ = self.shape  # refuses arrays that do not broadcast
        experts = self.sizes.experts
        if anywhere((experts > 0) & (self.k < 1)):
            raise LayoutError(
                f"a token selects 1 to {np.max(experts):g} experts, but k is 0: give k"
            )
        object.__setattr__(self, "k", where(experts > 0, self.k, 0.0))

    @classmethod
    def of(
        cls,
        shape: ModelShape,
        plan: Parallelism,
        gating: Gating | None = None,
        **more: Values,
    ) -> Configuration:
        """Describe a training as a pattern is; ``more`` are further fields."""
        gating = gating or Gating(k=1)
        padded = shape.experts and gating.dispatch == "padded"
        held = {f.name: getattr(plan, f.name) for f in fields(Parallelism)}
        held |= {"k": gating.k, "capacity_factor": gating.capacity_factor * padded}
        return cls(model=shape, **{**held, **more})

    @cached_property
    def sizes(self) -> ModelSizes:
        """Numbers of the model's shape."""
        return model_sizes(self.model)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Of all fields together."""
        parts = {getattr(self, name).shape for name in NUMBERS}
        elements = self.element_bytes, self.gradient_bytes, self.dispatched_bytes
        parts |= {np.shape(size) for size in (self.sizes.layers, *elements)}
        try:
            return np.broadcast_shapes(*parts) if parts != {()} else ()
        except ValueError:
            shapes = sorted(str(part) for part in parts if part)
            raise LayoutError(
                "the arrays of a configuration broadcast together, but have the shapes "
                f"{', '.join(shapes)}: give them one"
            ) from None

    @cached_property
    def tokens(self) -> Values:
        """Of a micro-batch on a rank, ``b s`` over the context-parallel ranks."""
        return self.micro_batch * self.sizes.sequence / self.cp

    def copies(self, tokens: Values) -> Values:
        """Token copies of sequences that a rank routes in a layer, or their room."""
        m = self.sizes
        ranks = self.cp * where(self.sequence_parallel > 0, self.tp, 1)
        routed = self.k * self.micro_batch * tokens / ranks
        if not anywhere(self.capacity_factor):
            return routed * self.imbalance
        padded = room(routed, m.experts, self.capacity_factor)
        return where(self.capacity_factor > 0, padded, routed * self.imbalance)

    @cached_property
    def most_imbalance(self) -> Values:
        """The busiest rank's load over the mean where all tokens go to its E/ep experts
        and, being k distinct ones, to others if these are fewer."""
        experts = self.sizes.experts / np.maximum(self.k, 1)
        return where(self.sizes.experts > 0, np.minimum(self.ep, experts), 1.0)

    @cached_property
    def stages(self) -> StageLayers:
        """Layers and ends of the stages that may have most."""
        ends = self.embedding_layers, self.head_layers
        how = self.pp, self.virtual, self.pair > 1, *ends
        return stage_layers(self.model, *how, dimensions=len(self.shape))

    @cached_property
    def stage_layers(self) -> Values:
        """Layers that a micro-batch passes on the rank that has most."""
        return self.stages.total.max(axis=0) / self.pair

    @cached_property
    def idle(self) -> Values:
        """Passes through a stage in which it waits under 1F1B: ``(p - 1)/v`` of chunks
        of the same length."""
        return self.stages.idle / self.stage_layers

    @cached_property
    def pair(self) -> Values:
        """Stages that a rank holds, and copies of a stage in a pipeline: 2 of DualPipe,
        which are mirrored."""
        return where(self.schedule == SCHEDULES.index("dualpipe"), 2.0, 1.0)

    @cached_property
    def last(self) -> Values:
        """1 where a rank of the first stage is one of the last too, otherwise 0."""
        return where((self.pp > 1) & (self.pair < 2), 0.0, 1.0)

    @cached_property
    def copies_held(self) -> Values:
        """Ranks that hold the same dense parameters."""
        return self.dp * self.cp * self.pair

    @cached_property
    def stage_held(self) -> Values:
        """Parameters of a rank of each of the stages ``[S, ...]``, without experts."""
        m, of = self.sizes, self.stages
        found = of.dense * (m.dense_split / self.tp + m.dense_whole)
        found = found + of.sparse * (m.sparse_split / self.tp + m.sparse_whole)
        found = found + of.first * m.first_whole + of.last * m.last_whole
        found = found + of.last * m.mtp * (m.mtp_split / self.tp + m.mtp_whole)
        looked_up = np.maximum(of.first, of.last * where(m.mtp > 0, 1.0, 0.0))
        tables = where(m.tied > 0, np.maximum(of.first, of.last), looked_up + of.last)
        return found + (tables + of.last * m.row_bias / m.hidden) * self.table

    @cached_property
    def held(self) -> Values:
        """Parameters of a rank of the first stage, without experts."""
        return self.stage_held[0]

    @cached_property
    def table(self) -> Values:
        """Parameters of a rank's embedding, the vocabulary padded as by Megatron-LM."""
        rows = np.ceil(self.sizes.vocabulary / (128 * self.tp)) * 128
        return rows * self.sizes.hidden

    @cached_property
    def stage_experts(self) -> Values:
        """Parameters of experts of a rank of each of the stages ``[S, ...]``."""
        m, of = self.sizes, self.stages
        layers = of.sparse + of.last * m.mtp * m.mtp_sparse
        return layers * m.experts * m.expert_weights / (self.expert_tp * self.ep)

    @cached_property
    def ffn(self) -> Values:
        """Feed-forward width that a token passes through in a mean layer."""
        m, moe = self.sizes, self.sizes.moe_layers
        passed = (m.layers - moe) * m.dense_ffn
        passed = passed + moe * (self.k * m.expert_ffn + m.shared_ffn)
        return passed / m.layers

    @cached_property
    def inner(self) -> Values:
        """Context-parallel ranks that exchange heads for tokens; 1: none do."""
        all_do = self.context == CONTEXTS.index("all-to-all")
        return where(all_do, self.cp, np.maximum(self.ulysses, 1))

    @cached_property
    def near(self) -> Values:
        """Ranks of an expert-parallel group on a node, in the usual order of ranks."""
        per = where(self.gpus_per_node > 0, self.gpus_per_node, np.inf)
        near = np.minimum(np.floor(per / self.expert_tp), self.ep)
        return np.maximum(near, 1.0)

    @cached_property
    def expert_copies(self) -> Values:
        """Ranks that hold the same experts."""
        return self.pair * self.edp


NUMBERS = tuple(f.name for f in fields(Configuration) if f.name not in SAID)
"""Fields that are float64."""


def _places(field: str, given: Values) -> Values:
    """Names of a field's choices, or their places among them, as places."""
    names = NAMED[field]
    if isinstance(given, str) and given in names:
        return float(names.index(given))
    made = np.asarray(given)
    if made.dtype.kind in "US":
        for name in sorted(set(made.ravel().tolist())):
            choose(field, name, names)
        return np.select([made == name for name in names], np.arange(len(names)) + 0.0)
    return where(made, len(names) - 1.0, 0.0) if made.dtype == bool else given


def room(routed: Values, experts: Values, capacity_factor: Values) -> Values:
    """Token copies of padded buffers: ``E ceil(factor k T / E)``, for all experts.

    Examples
    --------
    >>> float(room(2 * 100, 8, 1.1))
    224.0
    """
    number = np.maximum(experts, 1)
    # a factor as it is written: 1.1 x 10 is 11
    return number * np.ceil(np.round(capacity_factor * routed, 6) / number)

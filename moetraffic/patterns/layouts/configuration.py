"""A configuration: how a model is spread, batched and stored.  Fields may be arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from moetraffic.errors import LayoutError
from moetraffic.patterns.dispatchers import DISPATCHERS, dispatcher_rules
from moetraffic.patterns.element_types import element_bytes
from moetraffic.patterns.layer_calls import CONTEXTS, room
from moetraffic.patterns.model_sizes import ModelSizes, model_sizes
from moetraffic.patterns.rules import Rule, choose, positive, refuse
from moetraffic.patterns.shape import ModelShape
from moetraffic.patterns.values import Values, anywhere, numbers, where
from moetraffic.patterns.workloads.routers import Gating

from .axes import RECOMPUTE, Axes, Steps, layout_rules, split_rules
from .parallelism import Parallelism
from .schedules import SCHEDULES, schedule_rules
from .stage_layers import StageLayers, stage_layers

SHARED = tuple(field.name for field in (*fields(Axes), *fields(Steps)))
"""Fields of a :class:`~moetraffic.patterns.Parallelism`, too."""

NAMED = {
    "recompute": RECOMPUTE,
    "context": CONTEXTS,
    "schedule": SCHEDULES,
    "dispatcher": DISPATCHERS,
}
"""Fields that are one of some names, which arrays hold as places among them."""


@dataclass(frozen=True, kw_only=True)
class Configuration(Axes[Values], Steps[Values]):
    """Parallel sizes, batch and storage; numbers or arrays that broadcast together.

    What peers disagree about is a field here, or of
    :class:`~moetraffic.patterns.time_model.Conventions`; nothing is assumed silently.
    """

    model: ModelShape | Sequence[ModelShape]  # several: of an array's elements
    k: Values = 0  # experts of a token; of no matter to a dense model
    global_batch: Values = 1  # B sequences of an iteration
    element_bytes: Values = 2  # e of weights and activations
    gradient_bytes: Values = 4  # g as reduced: 4 in Megatron's bf16, 2 in fp16
    state_bytes: Values = 12  # of the optimizer's states of a parameter; Adam: master
    # copy and two moments in fp32; 8 without the copy
    dispatch_bytes: Values = 0  # of an element sent to experts; 0: element_bytes
    gathers: Values = 1  # calls of a layer in which ZeRO 3 gathers its parameters
    prefetch: Values = 1  # layers that ZeRO 3 gathers ahead; 0: none
    capacity_factor: Values = 0  # of padded buffers of experts; 0: what is routed
    fused_attention: Values = False  # scores never leave the multiprocessors, and only
    # the causal half of them is computed (FlashAttention)
    fp8: Values = False  # products of layers' weights in 8 bits
    imbalance: Values = 1  # busiest expert-parallel rank over the mean

    def __post_init__(self) -> None:
        for field in fields(self):
            given = getattr(self, field.name)
            if field.name in NAMED:
                given = _places(field.name, given)
            if field.name != "model":
                object.__setattr__(self, field.name, numbers(field.name, given))
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
        """Describe a model's training as its pattern is described.

        Parameters
        ----------
        shape, plan, gating
            As of :func:`~moetraffic.patterns.megatron_pattern`.
        **more
            Further fields, or others in place of these.
        """
        gating = gating or Gating(k=1)
        padded = shape.experts and gating.dispatch == "padded"
        row = plan.row_bytes(shape.hidden, dispatched=True)
        fields_: dict[str, Values] = {
            **{name: getattr(plan, name) for name in SHARED},
            "k": gating.k,
            "global_batch": plan.micro_batch * plan.accumulation * plan.dp,
            "element_bytes": element_bytes(plan.dtype),
            "gradient_bytes": element_bytes(plan.gradients),
            "dispatch_bytes": row / shape.hidden if plan.dispatch_dtype else 0,
            "capacity_factor": gating.capacity_factor if padded else 0,
        }
        return cls(model=shape, **{**fields_, **more})

    @cached_property
    def sizes(self) -> ModelSizes:
        """Numbers of the model's shape."""
        return model_sizes(self.model)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Of all fields together."""
        parts = {getattr(self, f.name).shape for f in fields(self) if f.name != "model"}
        parts.add(self.sizes.layers.shape)
        try:
            return np.broadcast_shapes(*parts) if parts != {()} else ()
        except ValueError:
            shapes = sorted(str(part) for part in parts if part)
            raise LayoutError(
                "the arrays of a configuration broadcast together, but have the shapes "
                f"{', '.join(shapes)}: give them one"
            ) from None

    @cached_property
    def micro_batches(self) -> Values:
        """``m = B/(b d)``; not whole where :func:`unmet` says so."""
        return self.global_batch / (self.micro_batch * self.dp)

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
    def stages(self) -> StageLayers:
        """Layers and ends of the stages that may have most."""
        twice, dimensions = self.pair > 1, len(self.shape)
        return stage_layers(self.model, self.pp, self.virtual, twice, dimensions)

    @cached_property
    def stage_layers(self) -> Values:
        """Layers that a micro-batch passes on the rank that has most, each of its
        virtual stages taken to be as long as the longest."""
        longest = np.ceil(self.sizes.layers / (self.pp * self.virtual)) * self.virtual
        own = self.stages.total.max(axis=0) / self.pair
        return where(self.virtual > 1, longest, own)

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
    def experts_held(self) -> Values:
        """Parameters of experts of a rank of the first stage."""
        return self.stage_experts[0]

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

    def shards(self, copies: Values) -> Values:
        """Ranks among which ZeRO shards parameters that so many ranks hold."""
        if not anywhere(self.shard):
            return copies
        some = np.maximum(copies * self.shard / (self.dp * self.cp), 1)
        return where(self.shard > 0, some, copies)

    @cached_property
    def expert_copies(self) -> Values:
        """Ranks that hold the same experts."""
        return self.pair * self.edp


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


def unmet(config: Configuration) -> list[Rule]:
    """The rules of a configuration, broken or not; they are those of a pattern, too."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return _rules(config)


def refuse_unsound(config: Configuration) -> None:
    """Refuse a configuration with any element that cannot exist.

    Raises
    ------
    LayoutError
        If a rule is broken anywhere.
    """
    refuse(unmet(config))


def _rules(config: Configuration) -> list[Rule]:
    c, m = config, config.sizes
    batches, sparse = c.micro_batches, m.experts > 0
    spread = c.cp * where(c.sequence_parallel > 0, c.tp, 1)
    told = any(anywhere(x != 0) for x in (c.dispatcher, c.node_limit, c.gpus_per_node))
    return [
        *layout_rules(c),
        *(
            positive(getattr(c, name), name.replace("_", "-"))
            for name in ("micro_batch", "global_batch")
        ),
        Rule(
            (c.prefetch < 0) | (c.prefetch % 1 > 0),
            "ZeRO 3 gathers a whole number of layers ahead, but prefetch is {}",
            (c.prefetch,),
            "change --prefetch",
        ),
        Rule(
            batches != np.round(batches),
            "micro-batch x dp must divide the global batch, but is {} x {} for {}",
            (c.micro_batch, c.dp, c.global_batch),
            "change --global-batch, --micro-batch or --dp",
        ),
        Rule(
            ~sparse & ((c.ep > 1) | ((c.etp > 1) & (c.etp != c.tp))),
            "a dense model has no experts to spread, but ep is {} and etp is {}",
            (c.ep, c.etp),
            "set --ep 1",
        ),
        *split_rules(c, m, c.virtual),
        Rule(
            # gradients may be sharded within a pipeline (Llama 3, arXiv 2407.21783,
            # section 3.3.2), parameters not: its passes would wait for gathers
            (c.pp > 1) & (c.zero > 2 - (c.pair > 1)),
            "a pipeline goes with ZeRO stage 0, 1 or 2, DualPipe with 0 or 1, but pp is"
            " {} and zero is {}",
            (c.pp, c.zero),
            "use --zero 1 or --pp 1",
        ),
        Rule(
            (m.key_heads % c.tp != 0) & (c.tp % m.key_heads != 0),
            "tp must divide the key and value heads, or they tp, but there are {} for "
            "tp {}",
            (m.key_heads, c.tp),
            "change --tp",
        ),
        Rule(
            (m.source % spread != 0) | (m.targets % spread != 0),
            "ranks that share a sequence must divide it, but it has {} tokens for {} "
            "ranks",
            (where(m.source % spread != 0, m.source, m.targets), spread),
            "change --cp or --tp, or leave out --sequence-parallel",
        ),
        Rule(
            sparse & (c.tp > 1) & (c.sequence_parallel == 0),
            "experts under tensor parallelism have each token once with sequence "
            "parallelism alone, but tp is {}",
            (c.tp,),
            "give --sequence-parallel",
        ),
        Rule(
            m.heads % (c.tp * c.inner) != 0,
            "context ranks that exchange heads for tokens divide a tensor rank's heads,"
            " but there are {} heads for tp x cp = {} x {}",
            (m.heads, c.tp, c.inner),
            "change --cp, --ulysses or --context",
        ),
        Rule(
            (c.ulysses > 0) & (c.inner != c.ulysses),
            "all context ranks exchange heads where --context is all-to-all, but "
            "ulysses is {} and cp is {}",
            (c.ulysses, c.cp),
            "leave out --ulysses, or use --context ring",
        ),
        Rule(
            sparse & (c.k > m.experts),
            "a token's k experts are distinct, but k is {} and there are {} experts",
            (c.k, m.experts),
            "lower --k",
        ),
        *schedule_rules(c.pp, batches, c.virtual, c.schedule, c.shard),
        *(dispatcher_rules(c) if told else ()),
        Rule(
            (c.shard > 0) & (c.zero < 1),
            "shards are ZeRO's, but shard is {} and zero is {}",
            (c.shard, c.zero),
            "give --zero 1, 2 or 3, or leave out --shard",
        ),
        Rule(
            (c.recompute < 0) | (c.recompute > 3) | (c.recompute % 1 > 0),
            "recompute is 0, 1, 2 or 3, but it is {}",
            (c.recompute,),
            "change --recompute",
        ),
    ]

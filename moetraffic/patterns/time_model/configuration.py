"""A configuration: how a model is spread, batched and stored.  Fields may be arrays."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import numpy.typing as npt

from moetraffic.errors import LayoutError
from moetraffic.patterns.element_types import element_bytes
from moetraffic.patterns.layer_calls import CONTEXTS, room
from moetraffic.patterns.parallelism import Parallelism
from moetraffic.patterns.routers import Gating
from moetraffic.patterns.schedules import SCHEDULES
from moetraffic.patterns.shape import ModelShape
from moetraffic.patterns.values import Float64, Values, anywhere, numbers

from .architecture import Architecture

Bool = npt.NDArray[np.bool_]

SIZES = ("pp", "tp", "dp", "ep", "cp", "virtual", "micro_batch", "global_batch")

RECOMPUTE = ("none", "selective", "full")
"""What is computed again in backward; selective: the attention matrices alone
(Korthikanti et al., arXiv 2205.05198, section 5)."""


PLANNED = (
    *("pp", "tp", "dp", "ep", "cp", "virtual", "micro_batch", "zero", "recompute"),
    *("context", "sequence_parallel", "shard", "schedule"),
)
"""Fields that a configuration and a :class:`~moetraffic.patterns.Parallelism` share."""

NAMED = {"recompute": RECOMPUTE, "context": CONTEXTS, "schedule": SCHEDULES}
"""Fields that are one of some names, which arrays hold as places among them."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Parallel sizes, batch and storage; numbers or arrays that broadcast together.

    What peers disagree about is a field here, or of
    :class:`~moetraffic.patterns.time_model.Conventions`; nothing is assumed silently.
    """

    model: Architecture
    pp: Values = 1  # pipeline stages p
    tp: Values = 1  # tensor-parallel ranks t
    dp: Values = 1  # data-parallel ranks d, those of ep included
    ep: Values = 1  # expert-parallel ranks
    expert_tp: Values = 0  # tensor-parallel ranks of an expert; 0: tp
    cp: Values = 1  # context-parallel ranks of a sequence
    virtual: Values = 1  # pipeline stages a rank holds v (interleaved schedule)
    schedule: Values = "1f1b"  # one of SCHEDULES
    micro_batch: Values = 1  # b sequences of a rank in one pass
    global_batch: Values = 1  # B sequences of an iteration
    element_bytes: Values = 2  # e of weights and activations
    gradient_bytes: Values = 4  # g as reduced: 4 in Megatron's bf16, 2 in fp16
    state_bytes: Values = 12  # of the optimizer's states of a parameter; Adam: master
    # copy and two moments in fp32; 8 without the copy
    recompute: Values = "none"  # one of RECOMPUTE
    context: Values = "ring"  # one of CONTEXTS: attention over the ranks of cp
    dispatch_bytes: Values = 0  # of an element sent to experts; 0: element_bytes
    sequence_parallel: Values = False  # Megatron's, over the tensor-parallel ranks
    scatter_gather: Values = False  # a stage's tp ranks send a t-th each (SC'21, 4.1)
    zero: Values = 0  # stage: 1 shards optimizer states, 2 gradients, 3 parameters
    shard: Values = 0  # copies among which ZeRO shards (HSDP); 0: all
    deduplicated: Values = False  # dispatch sends a token once to each node (DeepEP)
    node_limit: Values = 0  # nodes that the experts of a token lie on; 0: any
    gathers: Values = 1  # calls of a layer in which ZeRO 3 gathers its parameters
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
            **{name: getattr(plan, name) for name in PLANNED},
            "expert_tp": plan.etp,
            "global_batch": plan.micro_batch * plan.accumulation * plan.dp,
            "element_bytes": element_bytes(plan.dtype),
            "gradient_bytes": element_bytes(plan.gradients),
            "dispatch_bytes": row / shape.hidden if plan.dispatch_dtype else 0,
            "capacity_factor": gating.capacity_factor if padded else 0,
        }
        model = Architecture.of(shape, k=gating.k if shape.experts else 0)
        return cls(model=model, **{**fields_, **more})

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Of all fields together."""
        parts = [getattr(self, f.name) for f in fields(self) if f.name != "model"]
        parts += [getattr(self.model, f.name) for f in fields(self.model)]
        try:
            return np.broadcast_shapes(*(part.shape for part in parts))
        except ValueError:
            shapes = sorted({str(part.shape) for part in parts if part.shape})
            raise LayoutError(
                "the arrays of a configuration broadcast together, but have the shapes "
                f"{', '.join(shapes)}: give them one"
            ) from None

    @cached_property
    def world(self) -> Values:
        """Ranks."""
        return self.pp * self.tp * self.dp * self.cp

    @cached_property
    def micro_batches(self) -> Values:
        """``m = B/(b d)``; not whole where :func:`unmet` says so."""
        return self.global_batch / (self.micro_batch * self.dp)

    @cached_property
    def tokens(self) -> Values:
        """Of a micro-batch on a rank, ``b s`` over the context-parallel ranks."""
        return self.micro_batch * self.model.sequence / self.cp

    def copies(self, tokens: Values) -> Values:
        """Token copies of sequences that a rank routes in a layer, or their room."""
        m = self.model
        ranks = self.cp * np.where(self.sequence_parallel > 0, self.tp, 1)
        routed = m.k * self.micro_batch * tokens / ranks
        if not anywhere(self.capacity_factor):
            return routed * self.imbalance
        padded = room(routed, m.experts, self.capacity_factor)
        return np.where(self.capacity_factor > 0, padded, routed * self.imbalance)

    @cached_property
    def stage_layers(self) -> Values:
        """Layers of the rank that has most: uneven where the stages do not divide them.

        Every virtual stage of it is as large as the largest.
        """
        return np.ceil(self.model.layers / (self.pp * self.virtual)) * self.virtual

    @cached_property
    def pair(self) -> Values:
        """Stages that a rank holds, and copies of a stage in a pipeline: 2 of DualPipe,
        which are mirrored."""
        return np.where(self.schedule == SCHEDULES.index("dualpipe"), 2.0, 1.0)

    @cached_property
    def last(self) -> Values:
        """1 where a rank of the first stage is one of the last too, otherwise 0."""
        return np.where((self.pp > 1) & (self.pair < 2), 0.0, 1.0)

    @cached_property
    def copies_held(self) -> Values:
        """Ranks that hold the same dense parameters."""
        return self.dp * self.cp * self.pair

    @cached_property
    def held(self) -> Values:
        """Parameters of a rank of the first stage, without experts."""
        m, alone = self.model, self.last
        found = (
            self.stage_layers * self.pair * (m.layer_split / self.tp + m.layer_whole)
        )
        found = found + m.first_whole + alone * m.last_whole
        found = found + alone * m.mtp * (m.mtp_split / self.tp + m.mtp_whole)
        found = found + self.table * (1 + alone * np.where(m.tied > 0, 0.0, 1.0))
        return found + alone * m.row_bias * self.table / m.hidden

    @cached_property
    def table(self) -> Values:
        """Parameters of a rank's embedding, the vocabulary padded as by Megatron-LM."""
        rows = np.ceil(self.model.vocabulary / (128 * self.tp)) * 128
        return rows * self.model.hidden

    @cached_property
    def experts_held(self) -> Values:
        """Parameters of a rank's experts."""
        m = self.model
        of_layer = m.experts * m.expert_weights * m.moe_layers / m.layers
        further = self.last * m.mtp * m.mtp_sparse * m.experts * m.expert_weights
        layers = self.stage_layers * self.pair * of_layer + further
        return layers / (self.split * self.ep)

    @cached_property
    def split(self) -> Values:
        """Tensor-parallel ranks of an expert."""
        return np.where(self.expert_tp > 0, self.expert_tp, self.tp)

    def shards(self, copies: Values) -> Values:
        """Ranks among which ZeRO shards parameters that so many ranks hold."""
        if not anywhere(self.shard):
            return copies
        some = np.maximum(copies * self.shard / (self.dp * self.cp), 1)
        return np.where(self.shard > 0, some, copies)

    @cached_property
    def expert_copies(self) -> Values:
        """Ranks that hold the same experts: expert parallelism is folded over the other
        ranks of a stage (Liu et al., arXiv 2504.14960)."""
        return self.pair * self.tp * self.cp * self.dp / (self.split * self.ep)


def _places(field: str, given: Values) -> Values:
    """Names of a field's choices, or their places among them, as places."""
    names = NAMED[field]
    if isinstance(given, str) and given in names:
        return float(names.index(given))
    made = np.asarray(given)
    if made.dtype.kind in "US":
        unknown = set(made.ravel().tolist()) - set(names)
        if unknown:
            raise LayoutError(
                f"{field} is one of {', '.join(names)}, not "
                f"{sorted(unknown)[0]!r}: choose one"
            )
        return np.select([made == name for name in names], np.arange(len(names)) + 0.0)
    return np.where(made, len(names) - 1.0, 0.0) if made.dtype == bool else given


def unmet(config: Configuration) -> list[tuple[Bool, str, str]]:
    """The rules of a configuration, and where it breaks them.

    Returns
    -------
    list of (ndarray, str, str)
        Of each rule: bool, of the configuration's shape, true where it is broken; the
        rule; the remedy.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        rules = _rules(config)
    shape = config.shape
    if not shape:
        return [(np.asarray(broken), rule, remedy) for broken, rule, remedy in rules]
    return [
        (np.broadcast_to(np.asarray(broken), shape), rule, remedy)
        for broken, rule, remedy in rules
    ]


def _rules(config: Configuration) -> list[tuple[Values, str, str]]:
    c, m = config, config.model
    positive = [(getattr(c, n) < 1, f"{n} is at least 1", f"raise {n}") for n in SIZES]
    batches, blocks = c.micro_batches, c.shards(c.expert_copies)
    return [
        *positive,
        (
            batches != np.round(batches),
            "micro_batch times dp divides the global batch",
            "change the global batch, micro_batch or dp",
        ),
        (m.heads % c.tp != 0, "tp divides the attention heads", "change tp"),
        (m.hidden % c.tp != 0, "tp divides the hidden size", "change tp"),
        (
            m.layers < c.pp * c.virtual,
            "each stage has a layer",
            "change pp, virtual or layers",
        ),
        (
            (m.experts > 0) & (c.tp > 1) & (c.sequence_parallel == 0),
            "experts under tensor parallelism need sequence parallelism",
            "set sequence_parallel (--sequence-parallel)",
        ),
        ((c.virtual > 1) & (c.pp < 2), "virtual stages need a pipeline", "raise pp"),
        (
            (c.virtual > 1) & (batches % c.pp != 0),
            "an interleaved schedule has a multiple of pp micro-batches (SC'21, 2.2)",
            "change the global batch or virtual",
        ),
        (
            c.expert_copies % c.pair != 0,
            "ep divides dp (with expert_tp, ep times it divides tp x cp x dp)",
            "change ep or dp",
        ),
        (
            (c.ep > 1) & (m.experts % np.maximum(c.ep, 1) != 0),
            "ep divides the experts",
            "change ep",
        ),
        (
            (c.ep > 1) & (m.experts < 1),
            "a dense model has no experts to spread",
            "set ep to 1",
        ),
        (
            (m.source % c.cp != 0) | (m.targets % c.cp != 0),
            "cp divides the sequence",
            "change cp",
        ),
        (
            (c.context == CONTEXTS.index("all-to-all"))
            & (m.heads % (c.tp * c.cp) != 0),
            "tp x cp divides the heads that an all-to-all gives to context ranks",
            "change cp or context",
        ),
        (
            (c.zero < 0) | (c.zero > 3) | (c.zero % 1 > 0),
            "the ZeRO stage is 0 to 3",
            "change zero",
        ),
        (
            (c.pp > 1) & (c.zero > 1),
            "a pipeline goes with ZeRO stage 0 or 1",
            "lower zero or pp",
        ),
        (
            (c.shard > 0)
            & ((c.dp * c.cp % np.maximum(c.shard, 1) != 0) | (c.zero < 1)),
            "shard divides dp x cp, and a ZeRO stage shards",
            "change shard or zero",
        ),
        (
            (c.schedule > 0) & ((c.pp < 2) | (c.virtual > 1)),
            "zero-bubble schedules and DualPipe have several stages, one of each rank",
            "change schedule, pp or virtual",
        ),
        (
            (c.pair > 1)
            & (
                (c.pp % 2 > 0)
                | (batches % 2 > 0)
                | (batches < 2 * c.pp)
                | (c.shard > 0)
            ),
            "DualPipe has an even number of stages and of micro-batches, two for each "
            "stage at least, and no shards of some ranks",
            "change pp, the global batch or shard",
        ),
        (
            blocks != np.round(blocks),
            "as many copies of an expert are in each block of shards",
            "change shard or ep",
        ),
        (
            (c.recompute < 0) | (c.recompute > 2) | (c.recompute % 1 > 0),
            "recompute is 0, 1 or 2",
            "change recompute",
        ),
    ]


def refuse_unsound(
    config: Configuration, rules: list[tuple[Bool, str, str]] | None = None
) -> None:
    """Refuse a configuration with any element that cannot exist.

    Parameters
    ----------
    config
        Any.
    rules
        What :func:`unmet` gave for it, if that is known.

    Raises
    ------
    LayoutError
        If a rule is broken anywhere.
    """
    for broken, rule, remedy in unmet(config) if rules is None else rules:
        if anywhere(broken):
            where = ", ".join(
                f"{name} {_first(getattr(config, name), broken):g}" for name in SIZES
            )
            raise LayoutError(f"{rule}, but not with {where}: {remedy}")


def _first(values: Float64, broken: Bool) -> float:
    """Of the first element that breaks a rule."""
    return float(np.broadcast_to(values, broken.shape)[broken].flat[0])

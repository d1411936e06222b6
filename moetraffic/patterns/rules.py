"""What a layout must keep to: one table, for one layout or for arrays of them.

A rule is a condition under which it is broken, of :meth:`.layout.Layout.arrays`, and
one sentence with its values and the option that is to be changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from moetraffic.arrays import Bool
from moetraffic.workload.rules import Broken, Rule, Values, broken, refuse

if TYPE_CHECKING:
    from .layout import Layout

ORDER = "tp-cp-ep-dp-pp"
AXES = ("tp", "cp", "ep", "dp", "pp")

IN_EACH_PASS = ("sharded-ddp", "fsdp1", "fsdp2")
"""Synchronizations whose calls in each micro-batch do not go with a pipeline."""

SHARDED = ("distributed-optimizer", "zero-2", "fsdp1", "fsdp2")
"""Those that can shard over some of the copies and replicate over the others."""


def violations(layout: Layout, rules: Sequence[Rule] = ()) -> list[Broken]:
    """The rules that a layout with its model breaks somewhere, with their remedies."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return broken(rules or RULES, layout.arrays())


def check(layout: Layout, rules: Sequence[Rule] = ()) -> None:
    """Refuse a layout that breaks a rule somewhere.

    Raises
    ------
    LayoutError
        Of the first rule that is broken.
    """
    refuse(violations(layout, rules))


def sound(layout: Layout) -> Bool:
    """Whether each of the layouts can exist, ``layout.shape``."""
    c = layout.arrays()
    kept = np.ones(c.shape, bool)
    with np.errstate(divide="ignore", invalid="ignore"):
        for breaks, _ in RULES:
            kept &= ~np.asarray(breaks(c), bool)
    return kept


def _spread(c: Layout) -> Values:
    """Ranks that share a sequence."""
    return c.cp * np.where(c.sequence_parallel > 0, c.tp, 1)


def _copies(c: Layout) -> Values:
    return np.maximum(c.dp * c.cp, 1)


def _blocks(c: Layout) -> Values:
    """Copies of an expert in a block of shards."""
    split = np.maximum(c.expert_tp * c.ep, 1)
    shards = np.where(c.shard > 0, c.shard, _copies(c))
    return c.tp * c.cp * c.dp / split * shards / _copies(c)


def _pipelines_differ(c: Layout) -> Values:
    """Of one layout with another order than the usual one."""
    if c.order == ORDER or c.shape or sorted(c.order.split("-")) != sorted(AXES):
        return False
    return c.pp > 1 and c.stride("pp") != c.stride("pp", dense=False)


def _uneven_nodes(c: Layout) -> Values:
    """Whether nodes have different numbers of expert-parallel ranks."""
    node, step, span = np.maximum(c.gpus_per_node, 1), c.expert_tp, c.ep * c.expert_tp
    even = ((node % step == 0) | (step % node == 0)) & (
        (span % node == 0) | (node % span == 0)
    )
    return (c.dispatcher != "plain") & (c.ep > 1) & (c.gpus_per_node > 0) & ~even


def _few_nodes(c: Layout) -> Values:
    """Whether a token's nodes have fewer experts than it."""
    nodes = c.ep / c.near
    limit = np.where(c.node_limit > 0, np.minimum(c.node_limit, nodes), nodes)
    return _deduplicated(c) & (c.k * nodes > limit * c.sizes.experts)


def _deduplicated(c: Layout) -> Values:
    return (c.dispatcher == "deduplicated") & (c.ep > 1)


def _each_pass(c: Layout) -> Values:
    how = c.synchronization
    return (how in IN_EACH_PASS) | ((c.zero == 3) & (how == ""))


def _at_least(least: int, *names: str) -> list[Rule]:
    """Fields have a least value."""

    def rule(name: str) -> Rule:
        text = f"{option(name)} must be at least {least}, but is {{0.{name}}}: raise "
        return lambda c: getattr(c, name) < least, f"{text}--{option(name)}"

    return [rule(name) for name in names]


def _whole(*names: str) -> list[Rule]:
    """Fields are whole numbers of 0 or more."""

    def rule(name: str) -> Rule:
        text = f"{option(name)} is a whole number, but is {{0.{name}}}: change "
        return (
            lambda c: (getattr(c, name) < 0) | (getattr(c, name) % 1 > 0),
            f"{text}--{option(name)}",
        )

    return [rule(name) for name in names]


def _divides(name: str, size: str, what: str, change: str) -> Rule:
    """A field divides a size of the model."""
    return (
        lambda c: getattr(c.sizes, size) % np.maximum(getattr(c, name), 1) != 0,
        f"{name} must divide {what}, but there are {{0.sizes.{size}}} for {name} "
        f"{{0.{name}}}: change {change} or --{name}",
    )


def option(name: str) -> str:
    """The option of a field, without its dashes."""
    return "virtual-stages" if name == "virtual" else name.replace("_", "-")


LAYOUT_RULES: tuple[Rule, ...] = (
    (
        lambda c: sorted(c.order.split("-")) != sorted(AXES),
        f"the order must name {', '.join(AXES)} once each, but is {{0.order}}: give "
        f"--order {ORDER}",
    ),
    *_at_least(1, *AXES),
    *_at_least(0, "etp"),
    (
        lambda c: c.tp * c.cp * c.dp % np.maximum(c.expert_tp * c.ep, 1) != 0,
        "ep must divide dp (where experts are folded over other ranks, etp x ep must "
        "divide tp x cp x dp), but etp x ep is {0.expert_tp} x {0.ep} and tp x cp x dp "
        "is {0.tp} x {0.cp} x {0.dp}: change --ep, --etp or --dp",
    ),
    (
        lambda c: (c.shard < 0) | ((c.shard > 0) & (_copies(c) % c.shard != 0)),
        "shard must divide dp x cp, but is {0.shard} for {0.dp} x {0.cp}: change "
        "--shard",
    ),
    (
        lambda c: (_blocks(c) > 1) & (_blocks(c) % 1 > 0),
        "each block of shards must have as many copies of an expert, but with "
        "shard {0.shard}, dp {0.dp} and ep {0.ep} it has not: change --shard or --ep",
    ),
    (
        lambda c: (c.zero < 0) | (c.zero > 3) | (c.zero % 1 > 0),
        "the ZeRO stage is one of 0, 1, 2, 3, but zero is {0.zero}: change --zero",
    ),
    (
        _pipelines_differ,
        "both grids must have the same pipelines, but with the order {0.order} they "
        "differ: put pp last, or first, in --order",
    ),
)
"""Of a layout's sizes and order of ranks, without its model."""

SYNCHRONIZATION_RULES: tuple[Rule, ...] = (
    (
        lambda c: not c.bucket_mib >= 0,
        "a bucket has some MiB, or 0 for what torch does, but bucket-mib is "
        "{0.bucket_mib}: raise --bucket-mib",
    ),
    (
        lambda c: (c.pp > 1) & _each_pass(c),
        "a pipeline gathers no parameters between its passes (ZeRO stage 0, 1 or 2), "
        "but pp is {0.pp}, zero {0.zero} and the synchronization {0.synchronization!r}:"
        " use --zero 1, another --synchronization or --pp 1",
    ),
    (
        lambda c: (c.shard > 0) & (c.synchronization not in ("", *SHARDED)),
        "shards are ZeRO's, but {0.synchronization} has none of the {0.shard} that are "
        "asked for: give --zero 1, 2 or 3, or leave out --shard",
    ),
)
"""Of how copies are kept equal."""

SPLIT_RULES: tuple[Rule, ...] = (
    _divides("ep", "experts", "the experts", "--experts"),
    _divides("tp", "heads", "the attention heads", "--heads"),
    (
        lambda c: (
            c.sizes.layers + c.embedding_layers + c.head_layers < c.pp * c.virtual
        ),
        "every chunk of a pipeline holds a layer, but there are {0.sizes.layers} layers"
        " for pp x virtual = {0.pp} x {0.virtual}: lower --pp or --virtual-stages, or "
        "count the ends as layers (--set embedding_layers=1, head_layers=1)",
    ),
    *_whole("embedding_layers", "head_layers"),
    (
        lambda c: (
            (np.maximum(c.embedding_layers, c.head_layers) > c.chunk_layers)
            & (c.pp * c.virtual > 1)
        ),
        "embedding and output layer count as many layers as a chunk at most, but as "
        "{0.embedding_layers} and {0.head_layers} where chunks have {0.chunk_layers}: "
        "lower --set embedding_layers and head_layers",
    ),
    _divides("tp", "dense_ffn", "every feed-forward width", "--set ffn"),
    _divides("tp", "shared_ffn", "every feed-forward width", "--set shared_ffn"),
    (
        lambda c: (
            (c.sizes.experts > 0)
            & ((c.expert_tp != c.tp) | (c.sizes.expert_ffn != c.sizes.dense_ffn))
            & (c.sizes.expert_ffn % np.maximum(c.expert_tp, 1) != 0)
        ),
        "etp must divide an expert's width, but it is {0.sizes.expert_ffn} for etp "
        "{0.expert_tp}: change --etp",
    ),
    (
        lambda c: (c.pp > 1) & (c.sizes.encoder_layers > 0),
        "a pipeline's stages hand on one decoder's activations, but the model has "
        "{0.sizes.encoder_layers} encoder layers and pp is {0.pp}: use --pp 1",
    ),
    (
        lambda c: (c.sizes.cross_layers > 0) & ((c.tp > 1) | (c.cp > 1)),
        "attention of one stack is split over ranks, but the model has an encoder and "
        "a decoder, and tp is {0.tp} and cp {0.cp}: use --tp 1 and --cp 1",
    ),
)
"""Of a model that is split, whoever trains it."""

RULES: tuple[Rule, ...] = (
    *LAYOUT_RULES,
    *SYNCHRONIZATION_RULES,
    *_at_least(1, "micro_batch"),
    (
        lambda c: c.accumulation <= 0,
        "an iteration has at least one micro-batch, but there are {0.accumulation}: "
        "give --global-batch or --accumulation a positive number",
    ),
    (
        lambda c: (c.prefetch < 0) | (c.prefetch % 1 > 0),
        "ZeRO 3 gathers a whole number of layers ahead, but prefetch is {0.prefetch}: "
        "change --prefetch",
    ),
    (
        lambda c: c.accumulation != np.round(c.accumulation),
        "micro-batch x dp must divide the global batch, but is {0.micro_batch} x "
        "{0.dp} for {0.sequences}: change --global-batch, --micro-batch or --dp",
    ),
    (
        lambda c: (
            (c.sizes.experts == 0) & ((c.ep > 1) | ((c.etp > 1) & (c.etp != c.tp)))
        ),
        "a dense model has no experts to spread, but ep is {0.ep} and etp is {0.etp}: "
        "set --ep 1",
    ),
    *SPLIT_RULES,
    (
        # gradients may be sharded within a pipeline (Llama 3, arXiv 2407.21783, section
        # 3.3.2)
        lambda c: (c.pair > 1) & (c.zero > 1),
        "DualPipe goes with ZeRO stage 0 or 1, but zero is {0.zero}: use --zero 1 or "
        "--pp 1",
    ),
    (
        lambda c: (c.sizes.key_heads % c.tp != 0) & (c.tp % c.sizes.key_heads != 0),
        "tp must divide the key and value heads, or they tp, but there are "
        "{0.sizes.key_heads} for tp {0.tp}: change --tp",
    ),
    (
        lambda c: (
            (c.sizes.source % _spread(c) != 0) | (c.sizes.targets % _spread(c) != 0)
        ),
        "ranks that share a sequence must divide it, but it has {0.sizes.source} tokens"
        " (targets: {0.sizes.targets}) for cp {0.cp} and tp {0.tp}: change --cp or "
        "--tp, or leave out --sequence-parallel",
    ),
    (
        lambda c: (c.sizes.experts > 0) & (c.tp > 1) & (c.sequence_parallel == 0),
        "a model with experts and tensor parallelism needs sequence parallelism, as "
        "tensor ranks hold the same tokens otherwise, but tp is {0.tp} without it: "
        "give --sequence-parallel",
    ),
    (
        lambda c: c.sizes.heads % (c.tp * c.inner) != 0,
        "context ranks that exchange heads for tokens divide a tensor rank's heads, "
        "but there are {0.sizes.heads} heads for tp x cp = {0.tp} x {0.inner}: change "
        "--cp, or context",
    ),
    (
        lambda c: (c.sizes.experts > 0) & ((c.k < 1) | (c.k > c.sizes.experts)),
        "a token selects 1 to {0.sizes.experts} experts, but k is {0.k}: change --k",
    ),
    (
        lambda c: c.imbalance > c.most_imbalance * (1 + 1e-9),
        "the busiest of {0.ep} expert-parallel ranks has at most {0.most_imbalance} x "
        "the mean load (k experts of a token are distinct), but the imbalance is "
        "{0.imbalance}: change --imbalance-from, --ep or --k",
    ),
    *_at_least(1, "virtual"),
    (
        lambda c: (c.shard > 0) & (c.pair > 1),
        "copies of DualPipe are on two stages, not in blocks that shard them, but "
        "shard is {0.shard}: leave out --shard",
    ),
    (
        lambda c: (
            (c.virtual > 1) & ((c.pp < 2) | (c.accumulation % np.maximum(c.pp, 1) != 0))
        ),
        "an interleaved schedule has several stages and a multiple of them of "
        "micro-batches, but there are {0.pp} stages and {0.accumulation} micro-batches:"
        " change --pp, --virtual-stages or the micro-batches",
    ),
    (
        lambda c: (c.schedule != "1f1b") & ((c.pp < 2) | (c.virtual > 1)),
        "ZB-H1 and DualPipe are of several stages, each of a rank, but there are "
        "{0.pp} stages and {0.virtual} virtual ones of a rank: raise --pp, or leave "
        "out --schedule or --virtual-stages",
    ),
    (
        lambda c: (
            (c.pair > 1)
            & ((c.pp % 2 > 0) | (c.accumulation % 2 > 0) | (c.accumulation < 2 * c.pp))
        ),
        "DualPipe has an even number of stages and of micro-batches, at least two for "
        "each stage, but there are {0.pp} stages and {0.accumulation} micro-batches: "
        "change --pp or the micro-batches",
    ),
    # dispatchers
    (
        lambda c: (c.dispatcher != "plain") & (c.sizes.experts == 0),
        "a dense model sends no tokens to experts, but the dispatcher is "
        "{0.dispatcher}: leave out --dispatcher",
    ),
    *_whole("gpus_per_node"),
    (
        _uneven_nodes,
        "a dispatcher of two levels has as many expert-parallel ranks on each node, but"
        " {0.ep} ranks, each {0.expert_tp} after the other, lie on nodes of "
        "{0.gpus_per_node}: change --ep or --gpus-per-node, or use --dispatcher plain",
    ),
    (
        lambda c: (c.node_limit > 0) & (c.dispatcher != "deduplicated"),
        "a limit of nodes needs a dispatcher that sends a token once to each, but "
        "node-limit is {0.node_limit} and the dispatcher {0.dispatcher}: give "
        "--dispatcher deduplicated, or leave out node_limit",
    ),
    (
        _few_nodes,
        "the nodes that a token's experts lie on have as many experts as it has, but k "
        "is {0.k} and node-limit {0.node_limit} with {0.sizes.experts} experts on "
        "{0.ep} ranks: raise node_limit",
    ),
    (
        lambda c: _deduplicated(c) & ((c.expert_tp > 1) | (c.capacity_factor > 0)),
        "deduplicated tokens go to whole experts without padding, but etp is "
        "{0.expert_tp} and the capacity factor {0.capacity_factor} (0: none): give "
        "--etp 1 and --set dispatch=dropless, or use --dispatcher plain",
    ),
    (
        lambda c: (c.shard > 0) & (c.zero < 1),
        "shards are ZeRO's, but shard is {0.shard} and zero is {0.zero}: give --zero "
        "1, 2 or 3, or leave out --shard",
    ),
    (
        lambda c: (c.dispatcher != "plain") & (c.order != ORDER),
        "nodes of expert-parallel ranks are known in the usual order of ranks, but it "
        "is {0.order} and the dispatcher {0.dispatcher}: leave out --order, or "
        "--dispatcher",
    ),
)
"""Of a layout with its model."""

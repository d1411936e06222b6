"""Rules of a training's layout, model and batch, for one configuration or arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moetraffic.patterns.dispatchers import dispatcher_rules
from moetraffic.patterns.model_sizes import ModelSizes, model_sizes
from moetraffic.patterns.rules import Broken, Rule, positive, sentences
from moetraffic.patterns.shape import ModelShape
from moetraffic.patterns.synchronization import IN_EACH_PASS, SHARDED
from moetraffic.patterns.values import Values, anywhere, where

from .parallelism import Parallelism, layout_rules, nested
from .schedules import schedule_rules

if TYPE_CHECKING:
    from .configuration import Configuration


def violations(config: Configuration) -> list[Rule]:
    """The rules of a model's training, broken or not: where, and the sentence."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return _rules(config)


def _rules(config: Configuration) -> list[Rule]:
    c, m = config, config.sizes
    batches, sparse = c.accumulation, m.experts > 0
    spread = c.cp * where(c.sequence_parallel > 0, c.tp, 1)
    told = any(anywhere(x != 0) for x in (c.dispatcher, c.node_limit, c.gpus_per_node))
    return [
        *layout_rules(c),
        *synchronization_rules(c),
        positive(c.micro_batch, "micro-batch"),
        Rule(
            batches <= 0,
            "an iteration has at least one micro-batch, but there are {}: give "
            "--global-batch or --accumulation a positive number",
            (batches,),
        ),
        Rule(
            (c.prefetch < 0) | (c.prefetch % 1 > 0),
            "ZeRO 3 gathers a whole number of layers ahead, but prefetch is {}: "
            "change --prefetch",
            (c.prefetch,),
        ),
        Rule(
            batches != np.round(batches),
            "micro-batch x dp must divide the global batch, but is {} x {} for {}: "
            "change --global-batch, --micro-batch or --dp",
            (c.micro_batch, c.dp, c.sequences),
        ),
        Rule(
            ~sparse & ((c.ep > 1) | ((c.etp > 1) & (c.etp != c.tp))),
            "a dense model has no experts to spread, but ep is {} and etp is {}: set "
            "--ep 1",
            (c.ep, c.etp),
        ),
        *split_rules(c, m, c.virtual),
        Rule(
            # gradients may be sharded within a pipeline (Llama 3, arXiv 2407.21783,
            # section 3.3.2)
            (c.pair > 1) & (c.zero > 1),
            "DualPipe goes with ZeRO stage 0 or 1, but zero is {}: use --zero 1 or "
            "--pp 1",
            (c.zero,),
        ),
        Rule(
            (m.key_heads % c.tp != 0) & (c.tp % m.key_heads != 0),
            "tp must divide the key and value heads, or they tp, but there are {} for "
            "tp {}: change --tp",
            (m.key_heads, c.tp),
        ),
        Rule(
            (m.source % spread != 0) | (m.targets % spread != 0),
            "ranks that share a sequence must divide it, but it has {} tokens for {} "
            "ranks: change --cp or --tp, or leave out --sequence-parallel",
            (where(m.source % spread != 0, m.source, m.targets), spread),
        ),
        Rule(
            sparse & (c.tp > 1) & (c.sequence_parallel == 0),
            "a model with experts and tensor parallelism needs sequence parallelism, "
            "as tensor ranks hold the same tokens otherwise, but tp is {} without it: "
            "give --sequence-parallel",
            (c.tp,),
        ),
        Rule(
            m.heads % (c.tp * c.inner) != 0,
            "context ranks that exchange heads for tokens divide a tensor rank's "
            "heads, but there are {} heads for tp x cp = {} x {}: change --cp, "
            "--ulysses or --context",
            (m.heads, c.tp, c.inner),
        ),
        Rule(
            (c.ulysses > 0) & (c.inner != c.ulysses),
            "all context ranks exchange heads where --context is all-to-all, but "
            "ulysses is {} and cp is {}: leave out --ulysses, or use --context ring",
            (c.ulysses, c.cp),
        ),
        Rule(
            sparse & (c.k > m.experts),
            "a token's k experts are distinct, but k is {} and there are {} experts: "
            "lower --k",
            (c.k, m.experts),
        ),
        Rule(
            c.imbalance > c.most_imbalance * (1 + 1e-9),
            "the busiest of {} expert-parallel ranks has at most {} x the mean load (k "
            "experts of a token are distinct), but the imbalance is {}: change "
            "--imbalance, --imbalance-from, --ep or --k",
            (c.ep, c.most_imbalance, c.imbalance),
        ),
        *schedule_rules(c.pp, batches, c.virtual, c.schedule, c.shard),
        *(dispatcher_rules(c) if told else ()),
        Rule(
            (c.shard > 0) & (c.zero < 1),
            "shards are ZeRO's, but shard is {} and zero is {}: give --zero 1, 2 or "
            "3, or leave out --shard",
            (c.shard, c.zero),
        ),
        Rule(
            (c.recompute < 0) | (c.recompute > 3) | (c.recompute % 1 > 0),
            "recompute is 0, 1, 2 or 3, but it is {}: change --recompute",
            (c.recompute,),
        ),
        Rule(
            (c.dispatcher > 0) & (c.order != Parallelism.order),
            "nodes of expert-parallel ranks are known in the usual order of ranks, "
            "but it is {} and the dispatcher another than plain: leave out --order, "
            "or --dispatcher",
            (c.order,),
        ),
    ]


def synchronization_rules(c: Configuration) -> list[Rule]:
    """The rules of how copies are kept equal, where that is asked for by name."""
    how = c.synchronization
    each_pass = (how in IN_EACH_PASS) | ((c.zero == 3) & (how == ""))
    return [
        Rule(
            not c.bucket_mib >= 0,
            "a bucket has some MiB, or 0 for what torch does, but bucket-mib is {}: "
            "raise it",
            (c.bucket_mib,),
        ),
        Rule(
            (c.pp > 1) & each_pass,
            "a pipeline gathers no parameters between its passes (ZeRO stage 0, 1 or "
            "2), but pp is {} and {} sends in each micro-batch: use --zero 1, another "
            "--synchronization or --pp 1",
            (c.pp, how or "fsdp2"),
        ),
        Rule(
            (c.shard > 0) & (how != "") & (how not in SHARDED),
            "shards are ZeRO's, but {} has none of the {} that are asked for: give "
            "--zero 1, 2 or 3, or leave out --shard",
            (how, c.shard),
        ),
    ]


def split_rules(c: Parallelism, m: ModelSizes, virtual: Values = 1) -> list[Rule]:
    """The rules of a model that is split, whoever trains it."""
    embedding, head = c.embedding_layers, c.head_layers
    chunks = np.maximum(c.pp * virtual, 1)
    each = (m.layers + embedding + head) // chunks
    return [
        Rule(
            m.experts % np.maximum(c.ep, 1) != 0,
            "ep must divide the experts, but there are {} experts for ep {}: change "
            "--experts or --ep",
            (m.experts, c.ep),
        ),
        Rule(
            m.heads % np.maximum(c.tp, 1) != 0,
            "tp must divide the attention heads, but there are {} heads for tp {}: "
            "change --heads or --tp",
            (m.heads, c.tp),
        ),
        Rule(
            m.layers + embedding + head < c.pp * virtual,
            "every chunk of a pipeline holds a layer, but there are {} layers for pp "
            "x virtual = {} x {}: lower --pp or --virtual-stages, or count the ends "
            "as layers, as Megatron-LM can (--embedding-layers, --head-layers)",
            (m.layers, c.pp, virtual),
        ),
        *(
            Rule(
                (counted < 0)
                | (counted % 1 > 0)
                | ((counted > each) & (c.pp * virtual > 1)),
                f"{what} counts as a whole number of layers, at most those of a chunk, "
                f"but --{name}-layers is {{}} and chunks have {{}}: correct it",
                (counted, each),
            )
            for what, name, counted in (
                ("the embedding", "embedding", embedding),
                ("the output layer", "head", head),
            )
            if anywhere(counted)
        ),
        *(
            Rule(
                width % np.maximum(c.tp, 1) != 0,
                "tp must divide every feed-forward width, but for tp {} one is {}: "
                "change --ffn, --expert-ffn, --shared-ffn or --tp",
                (c.tp, width),
            )
            for width in (m.dense_ffn, m.shared_ffn)
        ),
        Rule(
            (m.experts > 0)
            & ((c.expert_tp != c.tp) | (m.expert_ffn != m.dense_ffn))
            & (m.expert_ffn % np.maximum(c.expert_tp, 1) != 0),
            "etp must divide an expert's width, but it is {} for etp {}: change --etp",
            (m.expert_ffn, c.expert_tp),
        ),
        Rule(
            (c.pp > 1) & (m.encoder_layers > 0),
            "a pipeline's stages hand on one decoder's activations, but the model has "
            "{} encoder layers and pp is {}: use --pp 1",
            (m.encoder_layers, c.pp),
        ),
    ]


UNTRAINED = {
    "virtual": "--virtual-stages",
    **{
        name: f"--{name.replace('_', '-')}"
        for name in (
            *("sequence_parallel", "context", "ulysses", "schedule", "dispatcher"),
            *("node_limit", "gradient_dtype", "dispatch_dtype", "scatter_gather"),
            *("embedding_layers", "head_layers"),
        )
    },
}
"""Fields that moetraffic's own training does not have, and their options."""


def training_rules(
    layout: Parallelism, shape: ModelShape, *, accumulation: int
) -> list[Broken]:
    """The rules that a model and its training by this library break under a layout.

    Returns each broken rule with its values, and the remedy.
    """
    p, m, usual = layout, shape, Parallelism()
    if broken := sentences(layout_rules(p)):
        return broken
    left = [of for n, of in UNTRAINED.items() if getattr(p, n) != getattr(usual, n)]
    left += [f"--recompute {p.recompute}"] * (p.recompute not in ("none", "full"))
    own = [
        Rule(
            bool(left),
            "moetraffic's own training does not have {}: leave these out, or use "
            "--library megatron",
            (", ".join(left),),
        ),
        *split_rules(p, model_sizes(m)),
        Rule(
            m.groups % p.tp != 0,
            "tp must divide the key and value heads, but there are {} for tp {}: "
            "change --kv-heads or --tp",
            (m.groups, p.tp),
        ),
        Rule(
            p.tp > 1 and bool(m.kv_rank or m.qk_norm or m.positions == "relative"),
            "tensor parallelism splits attention by heads alone, but latent "
            "attention, norms of query and key and relative positions have parameters "
            "that all heads share, and tp is {}: use --tp 1",
            (p.tp,),
        ),
        Rule(
            p.pp > 1 and accumulation < p.pp,
            "1F1B needs as many micro-batches as stages, but accumulation is {} for pp "
            "{}: "
            f"give --accumulation {p.pp} or more",
            (accumulation, p.pp),
        ),
        Rule(
            # as DeepSpeed refuses it: each micro-batch's backward would reduce, or
            # gather, while its stage's neighbors wait
            p.pp > 1 and p.zero > 1,
            "a pipeline goes with ZeRO stage 0 or 1, whose gradients wait for all "
            "micro-batches, but pp is {} and zero is {}: use --zero 1 or --pp 1",
            (p.pp, p.zero),
        ),
        Rule(
            p.shard > 0,
            "training shards over all copies, but shard is {}: leave out --shard",
            (p.shard,),
        ),
        Rule(
            not nested(p) and p.cp == 1,
            "training splits experts as their layers and copies them over "
            "data-parallel ranks, but etp is {}, tp is {} and the order is {}: leave "
            "out --etp, and put ep next to dp in --order",
            (p.expert_tp, p.tp, p.order),
        ),
        Rule(
            p.cp > 1,
            "training does not support context parallelism, but cp is {}: leave out "
            "--cp",
            (p.cp,),
        ),
    ]
    return sentences(own)

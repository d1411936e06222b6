"""Fields of a parallel run that a pattern and the time model share, and their rules.

A layout has whole numbers, the time model also arrays that broadcast together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np

from moetraffic.patterns.model_sizes import ModelSizes
from moetraffic.patterns.rules import Rule
from moetraffic.patterns.values import Values, where

AXES = ("tp", "cp", "ep", "dp", "pp")
ZERO_STAGES = (0, 1, 2, 3)  # Rajbhandari et al., arXiv 1910.02054, section 5; 0: none

RECOMPUTE = ("none", "selective", "full", "modules")
"""What is computed again in backward; selective: the attention matrices alone
(Korthikanti et al., arXiv 2205.05198, section 5); modules: norms, activation functions
and up-projections of latent attention (DeepSeek-V3, arXiv 2412.19437, section 3.2.3;
Megatron-LM, ``--recompute-modules layernorm moe_act mla_up_proj``)."""

Size = TypeVar("Size")
ONE: Any = 1
NONE: Any = 0


@dataclass(frozen=True, kw_only=True)
class Axes(Generic[Size]):
    """Sizes of the parallel axes, and what of a model is sharded among copies."""

    tp: Size = ONE  # tensor-parallel ranks of a layer t
    cp: Size = ONE  # context-parallel ranks of a sequence c
    dp: Size = ONE  # replicas d, each with its own data; those of ep included
    pp: Size = ONE  # pipeline stages p
    ep: Size = ONE  # ranks that share one set of experts
    etp: Size = NONE  # tensor-parallel ranks of an expert; 0: tp
    zero: Size = (
        NONE  # ZeRO stage: 1 shards optimizer states, 2 gradients, 3 parameters
    )
    # neighboring context-parallel ranks that exchange heads for tokens, while those
    # between them form rings (Fang and Zhao, arXiv 2405.07719); 0: none, or all of cp
    ulysses: Size = NONE
    # neighboring copies of the dense parameters among which ZeRO shards them, such as a
    # node's (HSDP; Zhao et al., arXiv 2304.11277, section 3.2.2); 0: all copies
    shard: Size = NONE

    @cached_property
    def world(self) -> Size:
        """Number of ranks."""
        found: Size = _product(self.tp, self.cp, self.dp, self.pp)
        return found

    @cached_property
    def expert_tp(self) -> Size:
        """Tensor-parallel ranks of an expert."""
        etp: Any = self.etp
        found: Size = etp + _product(self.tp, etp == 0)
        return found

    @cached_property
    def edp(self) -> Size:
        """Copies of each expert on a stage: expert parallelism is folded over its other
        ranks (Liu et al., arXiv 2504.14960)."""
        ranks = _product(self.tp, self.cp, self.dp)
        found: Size = ranks // _product(self.expert_tp, self.ep)
        return found


def _product(*sizes: Any) -> Any:
    return prod(sizes)


@dataclass(frozen=True, kw_only=True)
class Steps(Generic[Size]):
    """How a rank passes through its layers."""

    micro_batch: Size = ONE  # sequences of a replica in one forward pass b
    virtual: Size = ONE  # chunks of layers on each pipeline stage v
    schedule: Any = "1f1b"  # one of SCHEDULES
    sequence_parallel: Any = False  # Megatron's, over the tensor-parallel ranks
    recompute: Any = "none"  # one of RECOMPUTE
    context: Any = "ring"  # one of CONTEXTS: attention over the ranks of cp
    scatter_gather: Any = False  # tensor ranks hand a t-th each to the next stage, and
    # gather it there (SC'21, arXiv 2104.04473, section 4.1)
    dispatcher: Any = "plain"  # one of DISPATCHERS: how tokens travel to experts
    node_limit: Size = NONE  # nodes that the experts of a token lie on; 0: any
    gpus_per_node: Size = NONE  # neighboring ranks of a node; 0: all are on one


def layout_rules(c: Axes[Values]) -> list[Rule]:
    """The rules of a layout's sizes, or of arrays of them."""
    ranks, copies = c.tp * c.cp * c.dp, np.maximum(c.dp * c.cp, 1)
    shards = where(c.shard > 0, c.shard, copies)
    split = np.maximum(c.expert_tp * c.ep, 1)
    # copies of an expert that are shards, of which one rank has a whole number
    blocks = ranks / split * shards / copies
    return [
        *(
            Rule(
                getattr(c, axis) < 1,
                f"every parallel size must be at least 1, but {axis} is {{}}",
                (getattr(c, axis),),
                f"give --{axis} a positive number",
            )
            for axis in AXES
        ),
        Rule(
            c.etp < 0,
            "etp must be at least 1, or 0 for that of tp, but is {}",
            (c.etp,),
            "give --etp a positive number",
        ),
        Rule(
            ranks % split != 0,
            "ep must divide dp (where experts are folded over other ranks, etp x ep "
            "must divide tp x cp x dp), but etp x ep is {} x {} and tp x cp x dp is "
            "{} x {} x {}",
            (c.expert_tp, c.ep, c.tp, c.cp, c.dp),
            "change --ep, --etp or --dp",
        ),
        Rule(
            (c.ulysses < 0) | (c.cp % np.maximum(c.ulysses, 1) != 0),
            "ulysses must divide cp, but is {} for cp {}",
            (c.ulysses, c.cp),
            "change --ulysses or --cp",
        ),
        Rule(
            (c.shard < 0) | (copies % shards != 0),
            "shard must divide dp x cp, but is {} for {} x {}",
            (c.shard, c.dp, c.cp),
            "change --shard",
        ),
        Rule(
            (blocks > 1) & (blocks % 1 > 0),
            "each block of shards must have as many copies of an expert, but with shard"
            " {}, dp {} and ep {} it has not",
            (c.shard, c.dp, c.ep),
            "change --shard or --ep",
        ),
        Rule(
            (c.zero < 0) | (c.zero > ZERO_STAGES[-1]) | (c.zero % 1 > 0),
            f"the ZeRO stage is one of {', '.join(map(str, ZERO_STAGES))}, but zero is "
            "{}",
            (c.zero,),
            "choose one of them with --zero",
        ),
    ]


def split_rules(c: Axes[Values], m: ModelSizes, virtual: Values = 1) -> list[Rule]:
    """The rules of a model that is split, whoever trains it.

    Parameters
    ----------
    c
        Sizes of a layout.
    m
        Numbers of the model.
    virtual
        Chunks of layers on each stage.
    """
    return [
        Rule(
            m.experts % np.maximum(c.ep, 1) != 0,
            "ep must divide the experts, but there are {} experts for ep {}",
            (m.experts, c.ep),
            "change --experts or --ep",
        ),
        Rule(
            m.heads % np.maximum(c.tp, 1) != 0,
            "tp must divide the attention heads, but there are {} heads for tp {}",
            (m.heads, c.tp),
            "change --heads or --tp",
        ),
        Rule(
            m.layers < c.pp * virtual,
            "every chunk of a pipeline holds a layer, but there are {} layers for "
            "pp x virtual = {} x {}",
            (m.layers, c.pp, virtual),
            "raise --layers, or lower --pp or --virtual-stages",
        ),
        *(
            Rule(
                width % np.maximum(c.tp, 1) != 0,
                "tp must divide every feed-forward width, but for tp {} one is {}",
                (c.tp, width),
                "change --ffn, --expert-ffn, --shared-ffn or --tp",
            )
            for width in (m.dense_ffn, m.shared_ffn)
        ),
        Rule(
            (m.experts > 0)
            & ((c.expert_tp != c.tp) | (m.expert_ffn != m.dense_ffn))
            & (m.expert_ffn % np.maximum(c.expert_tp, 1) != 0),
            "etp must divide an expert's width, but it is {} for etp {}",
            (m.expert_ffn, c.expert_tp),
            "change --etp",
        ),
        Rule(
            (c.pp > 1) & (m.encoder_layers > 0),
            "a pipeline's stages hand on one decoder's activations, but the model has "
            "{} encoder layers and pp is {}",
            (m.encoder_layers, c.pp),
            "use --pp 1",
        ),
    ]

"""How a model is trained in parallel: one description, of one run or of many at once.

Fields are numbers, or arrays that broadcast together.  A pattern lists the calls of one
run, the time model sums those of arrays of them: what a field means, and what cannot be
(:mod:`.violations`), is the same for both.

Dense layers use the grid (tp, cp, dp, pp), experts a second one (etp, ep, edp, pp) over
the same ranks: a rank's place in the one says nothing of its place in the other but for
the pipeline stage, which both share.  Both are numbered in the same order of axes, the
leftmost varies fastest: in the default order tp-cp-ep-dp-pp a rank of the first grid is
``tp + t (cp + c (dp + d pp))``.

References
----------
Megatron-LM, ``megatron/core/parallel_state.py``: ``RankGenerator`` and its two
instances, ``decoder_rank_generator`` and ``expert_decoder_rank_generator``.
Narayanan et al., arXiv 2104.04473, section 3 (tensor ranks beside each other).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass
from functools import cached_property
from math import prod

import numpy as np

from moetraffic.patterns.element_types import element_bytes
from moetraffic.patterns.rules import Rule, choose, refuse, sentences
from moetraffic.patterns.values import Values, anywhere, numbers, where

Groups = tuple[tuple[int, ...], ...]

DENSE_KINDS: Mapping[str, tuple[str, ...]] = {
    "tp": ("tp",),
    "cp": ("cp",),
    "dp": ("dp",),
    "dp_cp": ("cp", "dp"),  # copies of the dense parameters
    "pp": ("pp",),
    "mp": ("tp", "pp"),  # one copy of the model: its gradient's norm
    "world": ("tp", "cp", "dp", "pp"),
}
EXPERT_KINDS: Mapping[str, tuple[str, ...]] = {
    "etp": ("etp",),
    "ep": ("ep",),
    "edp": ("edp",),  # copies of the experts
    "etp_ep": ("etp", "ep"),
}
PAIR_KINDS = ("dp_pair", "edp_pair")
"""Of copies on a stage and on the mirrored one, which DualPipe has."""

SHARD_KINDS = ("dp_shard", "dp_replicate", "edp_shard", "edp_replicate")
"""Of copies that ZeRO shards within some ranks and replicates over the others."""

CONTEXT_KINDS = ("cp_heads", "cp_ring")
"""Of context-parallel ranks that exchange heads for tokens, and that form rings."""

NODE_KINDS = ("ep_within", "ep_across")
"""Of ranks of experts on a node, and at the same place of their nodes."""

KINDS = (
    *(*DENSE_KINDS, *EXPERT_KINDS, *CONTEXT_KINDS, *SHARD_KINDS, *PAIR_KINDS),
    *(*NODE_KINDS, "embedding"),
)
"""Kinds of process groups; "embedding": the first and the last stage of each pipeline,
which both hold a tied embedding."""

ZERO_STAGES = (0, 1, 2, 3)  # Rajbhandari et al., arXiv 1910.02054, section 5; 0: none

AXES = ("tp", "cp", "ep", "dp", "pp")

RECOMPUTE = ("none", "selective", "full", "modules")
"""What is computed again in backward; selective: the attention matrices alone
(Korthikanti et al., arXiv 2205.05198, section 5); modules: norms, activation functions
and up-projections of latent attention (DeepSeek-V3, arXiv 2412.19437, section 3.2.3;
Megatron-LM, ``--recompute-modules layernorm moe_act mla_up_proj``)."""

CONTEXTS = ("ring", "all-gather", "all-to-all")
"""How attention sees the whole sequence: keys and values round a ring (Liu et al.,
arXiv 2310.01889), gathered (Llama 3, arXiv 2407.21783, section 3.3.2), or heads for
tokens exchanged (Ulysses, Jacobs et al., arXiv 2309.14509).  Neighbors may exchange
heads while those between them form rings, or gather (Fang and Zhao, arXiv 2405.07719;
``a2a+p2p`` of Megatron-LM)."""

DISPATCHERS = ("plain", "two-level", "deduplicated")
"""One all-to-all; one inside each node and one between the ranks of each place; a token
once for each node, and from there once for each rank, that has some of its experts."""

TWO_LEVEL, DEDUPLICATED = 1, 2

FLOAT8_TILE = 128
"""Elements of a token's vector that share a 32-bit scale where it is sent in 8 bits
(DeepSeek-V3, arXiv 2412.19437, section 3.3.1)."""

OF_STAGE = ("all-reduce", "distributed-optimizer", "zero-2", "fsdp2")
"""How copies are kept equal where the ZeRO stage alone is given."""


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """Layout, schedule, batch, storage and the libraries' ways of a training.

    Of arrays are only the time model's; process groups are of numbers.  Whether a run
    can exist is asked by those who use it: :func:`~.violations.violations`.

    Parameters
    ----------
    global_batch
        Sequences of an iteration, in place of ``accumulation``.
    """

    tp: Values = 1  # tensor-parallel ranks of a layer t
    cp: Values = 1  # context-parallel ranks of a sequence c
    dp: Values = 1  # replicas d, each with its own data; those of ep included
    pp: Values = 1  # pipeline stages p
    ep: Values = 1  # ranks that share one set of experts
    etp: Values = 0  # tensor-parallel ranks of an expert; 0: tp
    zero: Values = 0  # ZeRO stage: 1 shards optimizer states, 2 gradients, 3 parameters
    # neighboring context-parallel ranks that exchange heads for tokens, while those
    # between them form rings (Fang and Zhao, arXiv 2405.07719); 0: none, or all of cp
    ulysses: Values = 0
    # neighboring copies of the dense parameters among which ZeRO shards them, such as a
    # node's (HSDP; Zhao et al., arXiv 2304.11277, section 3.2.2); 0: all copies
    shard: Values = 0
    order: str = "tp-cp-ep-dp-pp"  # of axes over world ranks, the fastest first
    # how a rank passes through its layers
    micro_batch: Values = 1  # sequences of a replica in one forward pass b
    accumulation: Values = 1  # micro-batches of an iteration m
    global_batch: InitVar[Values] = None
    virtual: Values = 1  # chunks of layers on each pipeline stage v
    embedding_layers: Values = 0  # that the embedding counts as, where layers are
    head_layers: Values = 0  # divided among chunks, and the output layer and loss
    schedule: Values = "1f1b"  # one of SCHEDULES
    sequence_parallel: Values = False  # Megatron's, over the tensor-parallel ranks
    recompute: Values = "none"  # one of RECOMPUTE
    context: Values = "ring"  # one of CONTEXTS: attention over the ranks of cp
    scatter_gather: Values = False  # tensor ranks hand a t-th each to the next stage,
    # and gather it there (SC'21, arXiv 2104.04473, section 4.1)
    dispatcher: Values = "plain"  # one of DISPATCHERS: how tokens travel to experts
    node_limit: Values = 0  # nodes that the experts of a token lie on; 0: any
    gpus_per_node: Values = 0  # neighboring ranks of a node; 0: all are on one
    # how copies are kept equal: one of SYNCHRONIZATIONS in place of that of the stage
    synchronization: str = ""
    bucket_mib: float = 0.0  # of the synchronization "ddp"; 0: torch's 1, then 25
    keep: bool = False  # of "fsdp2": parameters stay gathered until backward
    gathers: Values = 1  # calls of a layer in which ZeRO 3 gathers its parameters
    prefetch: Values = 1  # layers that ZeRO 3 gathers ahead; 0: none
    # elements, by name or in bytes
    dtype: Values = "bfloat16"  # of parameters and activations
    dispatch_dtype: Values = ""  # of tokens sent to experts; empty: as dtype
    gradient_dtype: Values = ""  # empty: float32 for bfloat16, as Megatron-LM, or dtype
    state_bytes: Values = 12  # of the optimizer's states of a parameter; Adam: master
    # copy and two moments in fp32; 8 without the copy
    fused_attention: Values = False  # scores never leave the multiprocessors, and only
    # the causal half of them is computed (FlashAttention)
    fp8: Values = False  # products of layers' weights in 8 bits

    def __post_init__(self, global_batch: Values) -> None:
        if global_batch is not None:
            a_pass = numbers("micro-batch", self.micro_batch) * numbers("dp", self.dp)
            whole_batch: Values = numbers("global-batch", global_batch)
            found = whole_batch / np.maximum(a_pass, 1)  # less than 1 is refused later
            whole = not found.ndim and found % 1 == 0
            object.__setattr__(self, "accumulation", int(found) if whole else found)

    # ---- sizes -----------------------------------------------------------------

    @cached_property
    def world(self) -> Values:
        """Number of ranks."""
        return self.tp * self.cp * self.dp * self.pp

    @cached_property
    def expert_tp(self) -> Values:
        """Tensor-parallel ranks of an expert."""
        return where(self.etp != 0, self.etp, self.tp)

    @cached_property
    def edp(self) -> Values:
        """Copies of each expert on a stage: expert parallelism is folded over its other
        ranks (Liu et al., arXiv 2504.14960)."""
        return self.tp * self.cp * self.dp // (self.expert_tp * self.ep)

    @cached_property
    def sequences(self) -> Values:
        """Of an iteration: the global batch B."""
        return self.micro_batch * self.accumulation * self.dp

    def among(self, copies: Values) -> Values:
        """Ranks among which ZeRO shards parameters that so many ranks hold: of all, or
        of a block of as many as shard dense parameters, one at least."""
        if not anywhere(self.shard):
            return copies
        some = copies * self.shard // (self.dp * self.cp)
        return where(self.shard > 0, where(some > 1, some, 1), copies)

    @property
    def shards(self) -> Values:
        """Ranks among which ZeRO shards dense parameters."""
        return self.among(self.dp * self.cp)

    @property
    def expert_shards(self) -> Values:
        """Ranks among which ZeRO shards experts."""
        return self.among(self.edp)

    # ---- elements --------------------------------------------------------------

    @property
    def synchronized(self) -> str:
        """How copies of one run are kept equal, one of SYNCHRONIZATIONS."""
        return self.synchronization or OF_STAGE[self.zero]

    @property
    def gradients(self) -> Values:
        """Element type in which gradients are reduced."""
        if _told(self.gradient_dtype):
            return self.gradient_dtype
        return "float32" if _is(self.dtype, "bfloat16") else self.dtype

    @property
    def dispatched(self) -> Values:
        """Element type in which tokens go to experts; what returns has ``dtype``."""
        return self.dispatch_dtype if _told(self.dispatch_dtype) else self.dtype

    @cached_property
    def element_bytes(self) -> Values:
        """Bytes e of an element of parameters and activations."""
        return element_bytes(self.dtype)

    @cached_property
    def gradient_bytes(self) -> Values:
        """Bytes g of an element of a gradient as it is reduced."""
        return element_bytes(self.gradients)

    @cached_property
    def dispatched_bytes(self) -> Values:
        """Bytes of an element of tokens that go to experts."""
        return element_bytes(self.dispatched)

    def row_bytes(self, hidden: Values, *, dispatched: bool = False) -> Values:
        """Bytes of a token's vector of ``hidden`` elements, with the scales of one in 8
        bits; ``dispatched``: of one that goes to an expert."""
        size = self.dispatched_bytes if dispatched else self.element_bytes
        scales = where(size == 1, -(-hidden // FLOAT8_TILE), 0)
        return hidden * size + 4 * scales

    # ---- ranks -----------------------------------------------------------------

    @property
    def stage_of(self) -> tuple[int, ...]:
        """The pipeline stage of each world rank."""
        step = stride(self, "pp")
        return tuple(rank // step % self.pp for rank in range(self.world))

    def groups(self, kind: str) -> Groups:
        """Process groups of one kind, one of :data:`KINDS`.

        Returns
        -------
        tuple of tuple of int
            World ranks, ascending in each group; groups by their first rank.

        Raises
        ------
        LayoutError
            If there is no such kind, or the layout cannot be.
        """
        refuse(layout_rules(self))
        return _groups_of(self, kind)


def _is(dtype: Values, name: str) -> bool:
    return isinstance(dtype, str) and dtype == name


def _told(dtype: Values) -> bool:
    return not _is(dtype, "")


def layout_rules(c: Parallelism) -> list[Rule]:
    """The rules of a layout's sizes and of its order of ranks."""
    ranks, copies = c.tp * c.cp * c.dp, np.maximum(c.dp * c.cp, 1)
    shards = where(c.shard > 0, c.shard, copies)
    split = np.maximum(c.expert_tp * c.ep, 1)
    # copies of an expert that are shards, of which one rank has a whole number
    blocks = ranks / split * shards / copies
    rules = [
        Rule(
            sorted(c.order.split("-")) != sorted(AXES),
            f"the order must name {', '.join(AXES)} once each, but is {{}}: "
            f"the default is {Parallelism.order!r}",
            (repr(c.order),),
        ),
        *(
            Rule(
                getattr(c, axis) < 1,
                f"every parallel size must be at least 1, but {axis} is {{}}: "
                f"give --{axis} a positive number",
                (getattr(c, axis),),
            )
            for axis in AXES
        ),
        Rule(
            c.etp < 0,
            "etp must be at least 1, or 0 for that of tp, but is {}: give --etp a "
            "positive number",
            (c.etp,),
        ),
        Rule(
            ranks % split != 0,
            "ep must divide dp (where experts are folded over other ranks, etp x ep "
            "must divide tp x cp x dp), but etp x ep is {} x {} and tp x cp x dp is "
            "{} x {} x {}: change --ep, --etp or --dp",
            (c.expert_tp, c.ep, c.tp, c.cp, c.dp),
        ),
        Rule(
            (c.ulysses < 0) | (c.cp % np.maximum(c.ulysses, 1) != 0),
            "ulysses must divide cp, but is {} for cp {}: change --ulysses or --cp",
            (c.ulysses, c.cp),
        ),
        Rule(
            (c.shard < 0) | (copies % shards != 0),
            "shard must divide dp x cp, but is {} for {} x {}: change --shard",
            (c.shard, c.dp, c.cp),
        ),
        Rule(
            (blocks > 1) & (blocks % 1 > 0),
            "each block of shards must have as many copies of an expert, but with "
            "shard {}, dp {} and ep {} it has not: change --shard or --ep",
            (c.shard, c.dp, c.ep),
        ),
        Rule(
            (c.zero < 0) | (c.zero > ZERO_STAGES[-1]) | (c.zero % 1 > 0),
            f"the ZeRO stage is one of {', '.join(map(str, ZERO_STAGES))}, but zero is "
            "{}: choose one of them with --zero",
            (c.zero,),
        ),
    ]
    # of arrays the order is the usual one, which both grids have in common
    if c.order != Parallelism.order and not sentences(rules):
        apart = c.pp > 1 and stride(c, "pp") != stride(c, "pp", dense=False)
        rules.append(
            Rule(
                apart,
                "both grids must have the same pipelines, but with the order {} they "
                "differ: put pp last, or first",
                (c.order,),
            )
        )
    return rules


def _groups_of(p: Parallelism, kind: str) -> Groups:
    """Process groups of one kind, one of :data:`KINDS`."""
    choose("a group kind", kind, KINDS)
    if kind == "embedding":
        return tuple(tuple(sorted({line[0], line[-1]})) for line in _groups_of(p, "pp"))
    if kind in PAIR_KINDS:
        mirrored = {
            rank: line[-1 - stage]
            for line in _groups_of(p, "pp")
            for stage, rank in enumerate(line)
        }
        of = _groups_of(p, "dp_cp" if kind == "dp_pair" else "edp")
        pairs = {tuple(sorted({*g, *(mirrored[r] for r in g)})) for g in of}
        return tuple(sorted(pairs))
    if kind in SHARD_KINDS:
        base, _, part = kind.partition("_")
        size = p.shards if base == "dp" else p.expert_shards
        of = _groups_of(p, "dp_cp" if base == "dp" else base)
        return _blocks(of, size, across=part != "shard")
    if kind in CONTEXT_KINDS:
        return _blocks(_groups_of(p, "cp"), max(p.ulysses, 1), across=kind == "cp_ring")
    if kind in NODE_KINDS:
        size = p.gpus_per_node or p.world
        found: list[tuple[int, ...]] = []
        for group in _groups_of(p, "ep"):
            nodes = sorted({rank // size for rank in group})
            near = [tuple(r for r in group if r // size == node) for node in nodes]
            found += zip(*near, strict=True) if kind == "ep_across" else near
        return tuple(sorted(found))
    dense = kind in DENSE_KINDS
    varying = DENSE_KINDS[kind] if dense else EXPERT_KINDS[kind]
    return _groups(_grid(p, dense=dense), varying)


def nested(p: Parallelism) -> bool:
    """Whether experts are split as their layers are, and their copies are some of those
    of the dense parameters."""
    beside = p.tp == 1 or stride(p, "tp") == stride(p, "etp", dense=False)
    return bool(p.expert_tp == p.tp and p.cp == 1 and beside)


def stride(p: Parallelism, axis: str, *, dense: bool = True) -> int:
    """Ranks between neighbors on an axis of one of the grids."""
    sizes = _grid(p, dense=dense)
    names = list(sizes)
    return prod(sizes[name] for name in names[: names.index(axis)])


def _grid(p: Parallelism, *, dense: bool) -> dict[str, int]:
    """Sizes of the dense grid or of that of experts, the fastest axis first."""
    if dense:
        own = {name: (name, getattr(p, name)) for name in ("tp", "cp", "dp", "pp")}
    else:
        own = {"tp": ("etp", p.expert_tp), "ep": ("ep", p.ep)}
        own |= {"dp": ("edp", p.edp), "pp": ("pp", p.pp)}
    return dict(own[axis] for axis in p.order.split("-") if axis in own)


def _blocks(of: Groups, size: int, *, across: bool) -> Groups:
    """Blocks of so many neighbors of each group, or their members of the same place."""
    found: list[tuple[int, ...]] = []
    for group in of:
        blocks = [group[i : i + size] for i in range(0, len(group), size)]
        found += zip(*blocks, strict=True) if across else blocks
    return tuple(sorted(found))


def _groups(sizes: Mapping[str, int], varying: Sequence[str]) -> Groups:
    """Ranks of a grid that differ in some axes alone; the first axis varies fastest."""
    slowest = list(sizes)[::-1]
    order = sorted(range(len(slowest)), key=lambda at: slowest[at] in varying)
    grid = np.arange(prod(sizes.values())).reshape([sizes[name] for name in slowest])
    members = prod(size for name, size in sizes.items() if name in varying)
    return tuple(map(tuple, grid.transpose(order).reshape(-1, members).tolist()))

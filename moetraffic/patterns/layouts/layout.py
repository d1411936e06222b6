"""The parallel layout: which world ranks form which process groups.

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
from dataclasses import dataclass
from math import prod

import numpy as np

from moetraffic.errors import LayoutError
from moetraffic.patterns.rules import Broken, Rule, choose, refuse, sentences
from moetraffic.patterns.shape import ModelShape
from moetraffic.patterns.values import Values

from .schedules import chunk_layers

AXES = ("tp", "cp", "ep", "dp", "pp")
ZERO_STAGES = (0, 1, 2, 3)  # Rajbhandari et al., arXiv 1910.02054, section 5; 0: none

RULED = (*AXES, "etp", "ulysses", "zero", "shard")
"""Fields of which :func:`layout_rules` are."""

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

KINDS = (
    *(*DENSE_KINDS, *EXPERT_KINDS, *CONTEXT_KINDS, *SHARD_KINDS, *PAIR_KINDS),
    "embedding",
)
"""Kinds of process groups."""


@dataclass(frozen=True, kw_only=True)
class ParallelLayout:
    """Sizes of the parallel axes and their order over world ranks.

    Raises
    ------
    LayoutError
        If a size is below one, the second grid does not fit the ranks, the order does
        not name each axis once, or there is no such ZeRO stage.
    """

    tp: int = 1  # tensor-parallel ranks of a layer t
    cp: int = 1  # context-parallel ranks of a sequence c
    dp: int = 1  # replicas d, each with its own data
    pp: int = 1  # pipeline stages p
    ep: int = 1  # ranks that share one set of experts
    etp: int = 0  # tensor-parallel ranks of an expert; 0: tp
    order: str = "tp-cp-ep-dp-pp"  # fastest-varying axis first
    zero: int = 0  # ZeRO stage: 1 shards optimizer states, 2 gradients, 3 parameters
    # neighboring context-parallel ranks that exchange heads for tokens, while those
    # between them form rings (Fang and Zhao, arXiv 2405.07719); 0: none, or all of cp
    ulysses: int = 0
    # neighboring copies of the dense parameters among which ZeRO shards them, such as a
    # node's (HSDP; Zhao et al., arXiv 2304.11277, section 3.2.2); 0: all copies
    shard: int = 0

    def __post_init__(self) -> None:
        if sorted(self.order.split("-")) != sorted(AXES):
            raise LayoutError(
                f"the order must name {', '.join(AXES)} once each, but is "
                f"{self.order!r}: the default is 'tp-cp-ep-dp-pp'"
            )
        refuse(layout_rules(**{name: getattr(self, name) for name in RULED}))
        if self.pp > 1 and self._stride("pp") != self._expert_stride("pp"):
            raise LayoutError(
                "both grids must have the same pipelines, but with the order "
                f"{self.order} they differ: put pp last, or first"
            )

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def expert_tp(self) -> int:
        """Tensor-parallel ranks of an expert."""
        return self.etp or self.tp

    @property
    def edp(self) -> int:
        """Copies of each expert."""
        return self.tp * self.cp * self.dp // (self.expert_tp * self.ep)

    @property
    def shards(self) -> int:
        """Ranks among which ZeRO shards dense parameters."""
        return self.shard or self.dp * self.cp

    @property
    def expert_shards(self) -> int:
        """Ranks among which ZeRO shards experts: the copies in a block of as many ranks
        as shard dense parameters, one at least."""
        return max(1, self.edp * self.shards // (self.dp * self.cp))

    @property
    def nested(self) -> bool:
        """Whether experts are split as their layers are, and their copies are some of
        those of the dense parameters."""
        return (
            self.expert_tp == self.tp
            and self.cp == 1
            and (self.tp == 1 or self._stride("tp") == self._expert_stride("etp"))
        )

    def stages(self, layers: int) -> tuple[range, ...]:
        """The global layers of each pipeline stage; the first stages get what is over.

        Parameters
        ----------
        layers
            Layers of the model.

        Examples
        --------
        >>> ParallelLayout(pp=3).stages(8)
        (range(0, 3), range(3, 6), range(6, 8))
        """
        return chunk_layers(layers, self.pp)

    @property
    def stage_of(self) -> tuple[int, ...]:
        """The pipeline stage of each world rank."""
        step = self._stride("pp")
        return tuple(rank // step % self.pp for rank in range(self.world))

    def _stride(self, axis: str) -> int:
        """Ranks between neighbors on an axis of the dense grid."""
        return _before(axis, self._dense_axes)

    def _expert_stride(self, axis: str) -> int:
        return _before(axis, self._expert_axes)

    @property
    def _dense_axes(self) -> dict[str, int]:
        return {
            axis: getattr(self, axis) for axis in self.order.split("-") if axis != "ep"
        }

    @property
    def _expert_axes(self) -> dict[str, int]:
        named = {
            "tp": ("etp", self.expert_tp),
            "ep": ("ep", self.ep),
            "dp": ("edp", self.edp),
            "pp": ("pp", self.pp),
        }
        return dict(named[axis] for axis in self.order.split("-") if axis != "cp")

    def groups(self, kind: str) -> Groups:
        """Process groups of one kind.

        Parameters
        ----------
        kind
            One of KINDS; "embedding": the first and the last stage of each pipeline,
            which both hold a tied embedding.

        Returns
        -------
        tuple of tuple of int
            World ranks, ascending in each group; groups by their first rank.

        Raises
        ------
        LayoutError
            If the kind is not one of these.
        """
        choose("a group kind", kind, KINDS)
        if kind == "embedding":
            return tuple(tuple(sorted({p[0], p[-1]})) for p in self.groups("pp"))
        if kind in PAIR_KINDS:
            mirrored = {
                rank: line[-1 - stage]
                for line in self.groups("pp")
                for stage, rank in enumerate(line)
            }
            of = self.groups("dp_cp" if kind == "dp_pair" else "edp")
            pairs = {tuple(sorted({*g, *(mirrored[r] for r in g)})) for g in of}
            return tuple(sorted(pairs))
        if kind in SHARD_KINDS:
            base, _, part = kind.partition("_")
            size = self.shards if base == "dp" else self.expert_shards
            of = self.groups("dp_cp" if base == "dp" else base)
            return _blocks(of, size, across=part != "shard")
        if kind in CONTEXT_KINDS:
            size = max(self.ulysses, 1)
            return _blocks(self.groups("cp"), size, across=kind == "cp_ring")
        if kind in DENSE_KINDS:
            return _groups(self._dense_axes, DENSE_KINDS[kind])
        return _groups(self._expert_axes, EXPERT_KINDS[kind])


def _blocks(groups: Groups, size: int, *, across: bool) -> Groups:
    """Blocks of so many neighbors of each group, or their members of the same place."""
    found: list[tuple[int, ...]] = []
    for group in groups:
        blocks = [group[i : i + size] for i in range(0, len(group), size)]
        found += zip(*blocks, strict=True) if across else blocks
    return tuple(sorted(found))


def _groups(sizes: Mapping[str, int], varying: Sequence[str]) -> Groups:
    """Ranks of a grid that differ in some axes alone; the first axis varies fastest."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(prod(sizes.values())):
        rest, fixed = rank, []
        for name, size in sizes.items():
            rest, at = divmod(rest, size)
            if name not in varying:
                fixed.append(at)
        groups.setdefault(tuple(fixed), []).append(rank)
    return tuple(tuple(ranks) for ranks in groups.values())


def _before(axis: str, sizes: Mapping[str, int]) -> int:
    """Product of the sizes of the axes that vary faster."""
    names = list(sizes)
    return prod(sizes[name] for name in names[: names.index(axis)])


def layout_rules(
    *,
    tp: Values,
    cp: Values,
    dp: Values,
    pp: Values,
    ep: Values,
    etp: Values,
    ulysses: Values,
    zero: Values,
    shard: Values,
) -> list[Rule]:
    """The rules of the fields of a layout, or of arrays of them."""
    axes = {"tp": tp, "cp": cp, "ep": ep, "dp": dp, "pp": pp}
    split = np.where(np.asarray(etp) > 0, etp, tp)
    ranks, copies = tp * cp * dp, np.maximum(dp * cp, 1)
    shards = np.where(np.asarray(shard) > 0, shard, copies)
    # copies of an expert that are shards, of which one rank has a whole number
    blocks = ranks / np.maximum(split * ep, 1) * shards / copies
    return [
        *(
            Rule(
                size < 1,
                f"every parallel size must be at least 1, but {axis} is {{}}",
                (size,),
                f"give --{axis} a positive number",
            )
            for axis, size in axes.items()
        ),
        Rule(
            etp < 0,
            "etp must be at least 1, or 0 for that of tp, but is {}",
            (etp,),
            "give --etp a positive number",
        ),
        Rule(
            ranks % np.maximum(split * ep, 1) != 0,
            "ep must divide dp (where experts are folded over other ranks, etp x ep "
            "must divide tp x cp x dp), but etp x ep is {} x {} and tp x cp x dp is "
            "{} x {} x {}",
            (split, ep, tp, cp, dp),
            "change --ep, --etp or --dp",
        ),
        Rule(
            (ulysses < 0) | (cp % np.maximum(ulysses, 1) != 0),
            "ulysses must divide cp, but is {} for cp {}",
            (ulysses, cp),
            "change --ulysses or --cp",
        ),
        Rule(
            (shard < 0) | (copies % shards != 0),
            "shard must divide dp x cp, but is {} for {} x {}",
            (shard, dp, cp),
            "change --shard",
        ),
        Rule(
            (blocks > 1) & (blocks % 1 > 0),
            "each block of shards must have as many copies of an expert, but with shard"
            " {}, dp {} and ep {} it has not",
            (shard, dp, ep),
            "change --shard or --ep",
        ),
        Rule(
            (zero < 0) | (zero > ZERO_STAGES[-1]) | (zero % 1 > 0),
            f"the ZeRO stage is one of {', '.join(map(str, ZERO_STAGES))}, but zero is "
            "{}",
            (zero,),
            "choose one of them with --zero",
        ),
    ]


def split_rules(
    *,
    layers: Values,
    encoder_layers: Values,
    heads: Values,
    widths: Sequence[Values],
    experts: Values,
    tp: Values,
    ep: Values,
    pp: Values,
    virtual: Values,
    zero: Values,
) -> list[Rule]:
    """The rules of a model that is split, whoever trains it.

    Parameters
    ----------
    layers, encoder_layers, heads, widths, experts
        Of the model: its blocks, those of an encoder, attention heads, feed-forward
        widths, and experts of a MoE layer.
    tp, ep, pp, virtual, zero
        Of a layout; ``virtual`` chunks of layers on each stage.
    """
    return [
        Rule(
            experts % np.maximum(ep, 1) != 0,
            "ep must divide the experts, but there are {} experts for ep {}",
            (experts, ep),
            "change --experts or --ep",
        ),
        Rule(
            heads % np.maximum(tp, 1) != 0,
            "tp must divide the attention heads, but there are {} heads for tp {}",
            (heads, tp),
            "change --heads or --tp",
        ),
        Rule(
            layers < pp * virtual,
            "every chunk of a pipeline holds a layer, but there are {} layers for "
            "pp x virtual = {} x {}",
            (layers, pp, virtual),
            "raise --layers, or lower --pp or --virtual-stages",
        ),
        *(
            Rule(
                width % np.maximum(tp, 1) != 0,
                "tp must divide every feed-forward width, but for tp {} one is {}",
                (tp, width),
                "change --ffn, --expert-ffn, --shared-ffn or --tp",
            )
            for width in widths
        ),
        Rule(
            (pp > 1) & (encoder_layers > 0),
            "a pipeline's stages hand on one decoder's activations, but the model has "
            "{} encoder layers and pp is {}",
            (encoder_layers, pp),
            "use --pp 1",
        ),
        Rule(
            # as DeepSpeed refuses it: each micro-batch's backward would reduce, or
            # gather, while its stage's neighbors wait
            (pp > 1) & (zero > 1),
            "a pipeline goes with ZeRO stage 0 or 1, whose gradients wait for all "
            "micro-batches, but pp is {} and zero is {}",
            (pp, zero),
            "use --zero 1 or --pp 1",
        ),
    ]


def broken_rules(
    layout: ParallelLayout, shape: ModelShape, *, accumulation: int
) -> list[Broken]:
    """The rules that a model and its training by this library break under a layout.

    Parameters
    ----------
    layout
        The layout.
    shape
        A sound shape of the model.
    accumulation
        Micro-batches of a step.

    Returns
    -------
    list of (str, str)
        Each broken rule with its values, and the remedy.
    """
    p, m = layout, shape
    of_all = split_rules(
        layers=m.layers,
        encoder_layers=m.encoder_layers,
        heads=m.heads,
        widths=m.widths,
        experts=m.experts,
        virtual=1,
        **{name: getattr(p, name) for name in ("tp", "ep", "pp", "zero")},
    )
    own = [
        Rule(
            m.groups % p.tp != 0,
            "tp must divide the key and value heads, but there are {} for tp {}",
            (m.groups, p.tp),
            "change --kv-heads or --tp",
        ),
        Rule(
            p.tp > 1 and bool(m.kv_rank or m.qk_norm or m.positions == "relative"),
            "tensor parallelism splits attention by heads alone, but latent attention, "
            "norms of query and key and relative positions have parameters that all "
            "heads share, and tp is {}",
            (p.tp,),
            "use --tp 1",
        ),
        Rule(
            p.pp > 1 and accumulation < p.pp,
            "1F1B needs as many micro-batches as stages, but accumulation is {} for pp "
            "{}",
            (accumulation, p.pp),
            f"give --accumulation {p.pp} or more",
        ),
        Rule(
            p.shard > 0,
            "training shards over all copies, but shard is {}",
            (p.shard,),
            "leave out --shard",
        ),
        Rule(
            not p.nested and p.cp == 1,
            "training splits experts as their layers and copies them over data-"
            "parallel ranks, but etp is {}, tp is {} and the order is {}",
            (p.expert_tp, p.tp, p.order),
            "leave out --etp, and put ep next to dp in --order",
        ),
        Rule(
            p.cp > 1,
            "training does not support context parallelism, but cp is {}",
            (p.cp,),
            "leave out --cp",
        ),
    ]
    return sentences([*of_all, *own])

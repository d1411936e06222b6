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
from moetraffic.patterns.model_sizes import model_sizes
from moetraffic.patterns.rules import Broken, Rule, choose, refuse, sentences
from moetraffic.patterns.shape import ModelShape

from .axes import AXES, Axes, layout_rules, split_rules
from .schedules import chunk_layers

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
class ParallelLayout(Axes[int]):
    """Sizes of the parallel axes and their order over world ranks.

    Raises
    ------
    LayoutError
        If a size is below one, the second grid does not fit the ranks, the order does
        not name each axis once, or there is no such ZeRO stage.
    """

    order: str = "tp-cp-ep-dp-pp"  # fastest-varying axis first

    def __post_init__(self) -> None:
        if sorted(self.order.split("-")) != sorted(AXES):
            raise LayoutError(
                f"the order must name {', '.join(AXES)} once each, but is "
                f"{self.order!r}: the default is 'tp-cp-ep-dp-pp'"
            )
        refuse(layout_rules(self))
        if self.pp > 1 and self._stride("pp") != self._expert_stride("pp"):
            raise LayoutError(
                "both grids must have the same pipelines, but with the order "
                f"{self.order} they differ: put pp last, or first"
            )

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
    slowest = list(sizes)[::-1]
    order = sorted(range(len(slowest)), key=lambda at: slowest[at] in varying)
    grid = np.arange(prod(sizes.values())).reshape([sizes[name] for name in slowest])
    members = prod(size for name, size in sizes.items() if name in varying)
    return tuple(map(tuple, grid.transpose(order).reshape(-1, members).tolist()))


def _before(axis: str, sizes: Mapping[str, int]) -> int:
    """Product of the sizes of the axes that vary faster."""
    names = list(sizes)
    return prod(sizes[name] for name in names[: names.index(axis)])


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
            # as DeepSpeed refuses it: each micro-batch's backward would reduce, or
            # gather, while its stage's neighbors wait
            p.pp > 1 and p.zero > 1,
            "a pipeline goes with ZeRO stage 0 or 1, whose gradients wait for all "
            "micro-batches, but pp is {} and zero is {}",
            (p.pp, p.zero),
            "use --zero 1 or --pp 1",
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
    return sentences([*split_rules(p, model_sizes(m)), *own])

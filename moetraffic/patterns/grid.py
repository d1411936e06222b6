"""Megatron-LM's two grids of ranks, in any order of their axes.

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
from typing import Protocol

from moetraffic.errors import LayoutError

from .layout import AXES

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
KINDS = (*DENSE_KINDS, *EXPERT_KINDS, "embedding")
"""Kinds of process groups."""


class Grid(Protocol):
    """Sizes of the parallel axes and the groups that they make."""

    @property
    def world(self) -> int:
        """Number of ranks."""
        ...

    @property
    def tp(self) -> int:
        """Tensor-parallel ranks."""
        ...

    @property
    def cp(self) -> int:
        """Context-parallel ranks."""
        ...

    @property
    def dp(self) -> int:
        """Replicas."""
        ...

    @property
    def pp(self) -> int:
        """Pipeline stages."""
        ...

    @property
    def ep(self) -> int:
        """Expert-parallel ranks."""
        ...

    @property
    def edp(self) -> int:
        """Copies of each expert."""
        ...

    @property
    def order(self) -> str:
        """Axes, the fastest first."""
        ...

    def groups(self, kind: str) -> Groups:
        """Groups of a kind, each as its ordered world ranks."""
        ...


@dataclass(frozen=True, kw_only=True)
class MegatronGrid:
    """Sizes and order of both grids.

    Raises
    ------
    LayoutError
        If a size is below one, the second grid does not fit the ranks, or the order
        does not name each axis once.
    """

    tp: int = 1  # tensor-parallel ranks of a layer t
    cp: int = 1  # context-parallel ranks of a sequence c
    dp: int = 1  # replicas d, each with its own data
    pp: int = 1  # pipeline stages p
    ep: int = 1  # ranks that share one set of experts
    etp: int = 0  # tensor-parallel ranks of an expert; 0: tp
    order: str = "tp-cp-ep-dp-pp"  # fastest-varying axis first

    def __post_init__(self) -> None:
        for axis in AXES:
            size = getattr(self, axis)
            if size < 1:
                raise LayoutError(
                    f"every parallel size must be at least 1, but {axis} is {size}: "
                    f"give --{axis} a positive number"
                )
        if self.etp < 0:
            raise LayoutError(
                f"etp must be at least 1, or 0 for that of tp, but is {self.etp}: "
                "give --etp a positive number"
            )
        if sorted(self.order.split("-")) != sorted(AXES):
            raise LayoutError(
                f"the order must name {', '.join(AXES)} once each, but is "
                f"{self.order!r}: the default is 'tp-cp-ep-dp-pp'"
            )
        ranks = self.tp * self.cp * self.dp
        if ranks % (self.expert_tp * self.ep):
            raise LayoutError(
                "the experts' etp x ep must divide tp x cp x dp, but etp x ep is "
                f"{self.expert_tp} x {self.ep} and tp x cp x dp is {self.tp} x "
                f"{self.cp} x {self.dp}: change --ep or --etp"
            )
        if self.groups("pp") != _groups(self._expert_axes, ("pp",)):
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
    def sequence_ranks(self) -> int:
        """Ranks among which sequence parallelism spreads a sequence."""
        return self.tp * self.cp

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
        if kind == "embedding":
            return tuple(tuple(sorted({p[0], p[-1]})) for p in self.groups("pp"))
        if kind in DENSE_KINDS:
            return _groups(self._dense_axes, DENSE_KINDS[kind])
        if kind in EXPERT_KINDS:
            return _groups(self._expert_axes, EXPERT_KINDS[kind])
        raise LayoutError(
            f"a group kind is one of {', '.join(KINDS)}, not {kind!r}: choose one"
        )


def stage_of(grid: Grid) -> tuple[int, ...]:
    """The pipeline stage of each world rank."""
    stages = [0] * grid.world
    for pipeline in grid.groups("pp"):
        for stage, rank in enumerate(pipeline):
            stages[rank] = stage
    return tuple(stages)


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

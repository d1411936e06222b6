"""The parallel layout: which world ranks form which process groups.

Dense layers use the grid (tp, cp, dp, pp); experts use a second grid over the same
ranks in which ``ep`` divides ``dp`` and what is left over is expert-data parallelism
(``edp``).  The default order is Megatron-LM's, tp-cp-ep-dp-pp: the leftmost name
varies fastest over world ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod

from moetraffic.errors import LayoutError

AXES = ("tp", "cp", "ep", "dp", "pp")
ZERO_STAGES = (0, 1, 2, 3)  # Rajbhandari et al., arXiv 1910.02054, section 5; 0: none


@dataclass(frozen=True, kw_only=True)
class ParallelLayout:
    """Sizes of the parallel axes and their order over world ranks.

    ``dp`` counts all data-parallel replicas of the dense parameters; ``ep`` ranks out
    of those share one set of experts, so ``edp = dp / ep`` copies of it exist.

    Raises
    ------
    LayoutError
        If a size is below one, ``ep`` does not divide ``dp``, ``order`` does not name
        each axis once, or there is no such ZeRO stage.
    """

    dp: int = 1  # data-parallel replicas of the dense parameters
    tp: int = 1  # tensor-parallel ranks of a layer
    pp: int = 1  # pipeline stages
    ep: int = 1  # expert-parallel ranks, a divisor of dp
    cp: int = 1  # context-parallel ranks of a sequence
    order: str = "tp-cp-ep-dp-pp"  # fastest-varying axis first
    zero: int = 0  # ZeRO stage: 1 shards optimizer states, 2 gradients, 3 parameters

    def __post_init__(self) -> None:
        for axis in AXES:
            size = getattr(self, axis)
            if size < 1:
                raise LayoutError(
                    f"every parallel size must be at least 1, but {axis} is {size}: "
                    f"give --{axis} a positive number"
                )
        if self.dp % self.ep:
            raise LayoutError(
                f"ep must divide dp, but ep is {self.ep} and dp is {self.dp}: "
                f"choose ep among the divisors of {self.dp}"
            )
        if sorted(self.order.split("-")) != sorted(AXES):
            raise LayoutError(
                f"the order must name {', '.join(AXES)} once each, but is "
                f"{self.order!r}: the default is 'tp-cp-ep-dp-pp'"
            )
        if self.zero not in ZERO_STAGES:
            raise LayoutError(
                f"the ZeRO stage is one of {', '.join(map(str, ZERO_STAGES))}, but "
                f"zero is {self.zero}: choose one of them with --zero"
            )

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def edp(self) -> int:
        """Copies of each expert."""
        return self.dp // self.ep

    def groups(self, kind: str) -> tuple[tuple[int, ...], ...]:
        """Process groups of one kind, each as its ordered world ranks.

        Parameters
        ----------
        kind
            ``"ep"``, ``"edp"``, ``"dp"``, ``"tp"``, ``"pp"``, ``"cp"`` or ``"world"``;
            ``"embedding"``: the first and the last stage of each pipeline, which both
            hold the tied embedding.

        Returns
        -------
        tuple of tuple of int
            The groups, ordered by their first rank; they partition the world (those
            of kind "embedding": its first and last stages).

        Raises
        ------
        LayoutError
            If the kind is not one of these.
        """
        if kind == "embedding":
            pipelines = self.groups("pp")
            return tuple(tuple(sorted({p[0], p[-1]})) for p in pipelines)
        # Step 1: the axes of the full grid; "dp" here is what ep leaves of it.
        grid = {"tp": self.tp, "cp": self.cp, "ep": self.ep, "dp": self.edp}
        grid["pp"] = self.pp
        varying = {"edp": ("dp",), "dp": ("ep", "dp"), "world": AXES}.get(kind, (kind,))
        if not set(varying) <= set(AXES):
            raise LayoutError(
                "a group kind is one of "
                f"{', '.join((*AXES, 'edp', 'embedding', 'world'))}, "
                f"not {kind!r}"
            )
        # Step 2: give each rank its coordinates, fastest axis first.
        names = self.order.split("-")
        sizes = [grid[name] for name in names]
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in range(prod(sizes)):
            rest, fixed = rank, []
            for name, size in zip(names, sizes, strict=True):
                rest, at = divmod(rest, size)
                if name not in varying:
                    fixed.append(at)
            groups.setdefault(tuple(fixed), []).append(rank)
        return tuple(tuple(ranks) for ranks in groups.values())

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
        each, over = divmod(layers, self.pp)
        begins = [stage * each + min(stage, over) for stage in range(self.pp + 1)]
        return tuple(range(a, b) for a, b in pairwise(begins))


def unmet(
    layout: ParallelLayout,
    *,
    layers: int,
    heads: int,
    width: int,
    experts: int,
    accumulation: int,
) -> list[tuple[str, str]]:
    """The rules that a model and its training break under a layout.

    Parameters
    ----------
    layout
        The layout.
    layers, heads, width, experts
        Of the model: its blocks, attention heads, feed-forward width (of an expert
        too), and experts of a MoE layer.
    accumulation
        Micro-batches of a step.

    Returns
    -------
    list of (str, str)
        Each broken rule with its values, and the remedy.
    """
    p = layout
    rules = [
        (
            experts % p.ep == 0,
            f"ep must divide the experts, but there are {experts} experts for ep "
            f"{p.ep}",
            "change --experts or --ep",
        ),
        (
            heads % p.tp == 0,
            f"tp must divide the attention heads, but there are {heads} heads for tp "
            f"{p.tp}",
            "change --heads or --tp",
        ),
        (
            width % p.tp == 0,
            f"tp must divide the feed-forward width, but it is {width} for tp {p.tp}",
            "change --hidden or --tp",
        ),
        (
            p.pp <= layers,
            f"a pipeline stage holds at least one layer, but there are {layers} layers "
            f"for pp {p.pp}",
            "raise --layers or lower --pp",
        ),
        (
            p.pp == 1 or accumulation >= p.pp,
            "1F1B needs as many micro-batches as stages, but accumulation is "
            f"{accumulation} for pp {p.pp}",
            f"give --accumulation {p.pp} or more",
        ),
        (
            p.pp == 1 or p.zero < 2,
            # as DeepSpeed refuses it: each micro-batch's backward would reduce, or
            # gather, while its stage's neighbors wait
            "a pipeline goes with ZeRO stage 0 or 1, whose gradients wait for all "
            f"micro-batches, but pp is {p.pp} and zero is {p.zero}",
            "use --zero 1 or --pp 1",
        ),
        (
            p.cp == 1,
            f"training does not support context parallelism, but cp is {p.cp}",
            "leave out --cp",
        ),
    ]
    return [(rule, remedy) for kept, rule, remedy in rules if not kept]

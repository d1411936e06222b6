"""The parallel layout: which world ranks form which process groups.

Dense layers use the grid (tp, cp, dp, pp); experts use a second grid over the same
ranks in which ``ep`` divides ``dp`` and what is left over is expert-data parallelism
(``edp``).  The default order is Megatron-LM's, tp-cp-ep-dp-pp: the leftmost name
varies fastest over world ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from moetraffic.errors import LayoutError

AXES = ("tp", "cp", "ep", "dp", "pp")


@dataclass(frozen=True, kw_only=True)
class ParallelLayout:
    """Sizes of the parallel axes and their order over world ranks.

    ``dp`` counts all data-parallel replicas of the dense parameters; ``ep`` ranks out
    of those share one set of experts, so ``edp = dp / ep`` copies of it exist.

    Raises
    ------
    LayoutError
        If a size is below one, ``ep`` does not divide ``dp``, or ``order`` does not
        name each axis once.
    """

    dp: int = 1  # data-parallel replicas of the dense parameters
    tp: int = 1  # tensor-parallel ranks of a layer
    pp: int = 1  # pipeline stages
    ep: int = 1  # expert-parallel ranks, a divisor of dp
    cp: int = 1  # context-parallel ranks of a sequence
    order: str = "tp-cp-ep-dp-pp"  # fastest-varying axis first

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
            ``"ep"``, ``"edp"``, ``"dp"``, ``"tp"``, ``"pp"``, ``"cp"`` or ``"world"``.

        Returns
        -------
        tuple of tuple of int
            The groups, ordered by their first rank; they partition the world.

        Raises
        ------
        LayoutError
            If the kind is not one of these.
        """
        # Step 1: the axes of the full grid; "dp" here is what ep leaves of it.
        grid = {"tp": self.tp, "cp": self.cp, "ep": self.ep, "dp": self.edp}
        grid["pp"] = self.pp
        varying = {"edp": ("dp",), "dp": ("ep", "dp"), "world": AXES}.get(kind, (kind,))
        if not set(varying) <= set(AXES):
            raise LayoutError(
                f"a group kind is one of {', '.join((*AXES, 'edp', 'world'))}, "
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

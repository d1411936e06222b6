"""Incremental replication: one replica more for an expert of the busiest rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.policies.service.cluster import ExpertPlacement

from .swaps import Swaps, slot_loads, swapped


@dataclass(kw_only=True)
class Replication(Swaps):
    """Change the previous placement by single replicas and swaps, the best one first.

    Nothing changes while the largest load of a rank is at most ``threshold`` times the
    mean; a change is made if it saves more time than it costs, as :class:`Swaps`.

    References
    ----------
    X. Nie et al., "FlexMoE", SIGMOD 2023, arXiv 2304.03946: expand, shrink and migrate
    virtual experts greedily by a cost model.  Its threshold is not published.
    """

    name: str = "flexmoe"
    threshold: float = 1.05  # load of the busiest rank over the mean

    def changed(
        self, plan: ExpertPlacement, load: Float64, ranks: int, *, least_gain: float
    ) -> ExpertPlacement | None:
        """Return the better of a replica moved and a swap; None if neither pays."""
        before = busiest(plan, load, ranks)
        if before <= self.threshold * load.sum() / ranks:
            return None
        tried = [
            expanded(plan, load, ranks),
            swapped(plan, load, ranks, least_gain=least_gain),
        ]
        made = [one for one in tried if one is not None]
        best = min(made, key=lambda one: busiest(one, load, ranks), default=None)
        if best is None:
            return None
        gain = before - busiest(best, load, ranks)
        return best if gain > max(least_gain, 1e-9 * before) else None


def busiest(plan: ExpertPlacement, load: Float64, ranks: int) -> float:
    """Return the load of the most loaded rank, for loads ``[E]``."""
    return float(np.bincount(plan.ranks, slot_loads(plan, load), ranks).max())


def expanded(
    plan: ExpertPlacement, load: Float64, ranks: int
) -> ExpertPlacement | None:
    """Give an expert of the busiest rank one replica of another expert's more.

    ``load``: ``[E]`` load of each expert.

    Returns that with the least load of the busiest rank, of all experts of this rank
    and all slots whose expert has another replica; None if there are none.

    Examples
    --------
    >>> plan = ExpertPlacement(experts=np.array([0, 1, 2, 2]), ranks=np.arange(4) // 2)
    >>> expanded(plan, np.array([6.0, 1, 2]), 2).experts.tolist()
    [0, 1, 0, 2]
    """
    number = np.bincount(plan.experts, minlength=len(load))
    total = np.bincount(plan.ranks, slot_loads(plan, load), ranks)
    high = int(np.argmax(total))
    best: ExpertPlacement | None = None
    least = np.inf
    for expert in np.unique(plan.experts[plan.ranks == high]).tolist():
        others = (number[plan.experts] > 1) & (plan.experts != expert)
        for slot in np.flatnonzero(others).tolist():
            experts = plan.experts.copy()
            experts[slot] = expert
            tried = ExpertPlacement(experts=experts, ranks=plan.ranks)
            after = busiest(tried, load, ranks)
            if after < least:
                best, least = tried, after
    return best

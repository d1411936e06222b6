"""Swap experts between the most and the least loaded rank while it pays."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.patterns.placement import place
from moetraffic.policies.exchange_series import LayerKey
from moetraffic.policies.policy import View
from moetraffic.policies.service.cluster import ExpertPlacement


@dataclass(kw_only=True)
class Swaps:
    """Change the previous placement by few swaps, each the best one for its two ranks.

    A swap is made if the time that it saves over the iterations of the plan exceeds the
    time to move two experts, as far as the largest load of a rank determines both.

    References
    ----------
    X. Nie et al., "FlexMoE", SIGMOD 2023, arXiv 2304.03946, and M. Zhai et al.,
    "SmartMoE", ATC 2023: incremental changes chosen by gain over cost.
    """

    name: str = "swaps"
    family: str = "placement"
    forecasts: bool = True
    most: int = 8  # swaps of a plan
    held: dict[LayerKey, ExpertPlacement] = field(default_factory=dict)  # by layer

    def plan(self, view: View) -> ExpertPlacement:
        """Change the layer's placement for the forecast load."""
        ranks, experts = view.forecast.shape
        cluster = view.network
        load = view.forecast.sum(axis=0)
        if view.layer not in self.held:
            slots = experts + cluster.replicas
            expert, rank = place("contiguous", load, ranks, slots)
            self.held[view.layer] = ExpertPlacement(experts=expert, ranks=rank)
        plan = self.held[view.layer]
        # seconds that a token copy less on the busiest rank saves: in, out, compute
        a_copy = 2 * cluster.row_bytes / cluster.rate_bytes_s + cluster.token_s
        cost = cluster.expert_bytes / cluster.rate_bytes_s
        least = cost / (a_copy * view.hold) if a_copy else 0.0
        for _ in range(self.most):
            changed = self.changed(plan, load, ranks, least_gain=least)
            if changed is None:
                break
            plan = changed
        self.held[view.layer] = plan
        return plan

    def changed(
        self, plan: ExpertPlacement, load: Float64, ranks: int, *, least_gain: float
    ) -> ExpertPlacement | None:
        """Return the placement after the best change; None if none pays."""
        return swapped(plan, load, ranks, least_gain=least_gain)


def slot_loads(plan: ExpertPlacement, load: Float64) -> Float64:
    """Return the load of each slot ``[S]``, for loads of experts ``[E]``."""
    return np.asarray(load[plan.experts] / np.bincount(plan.experts)[plan.experts])


def swapped(
    plan: ExpertPlacement, load: Float64, ranks: int, *, least_gain: float = 0.0
) -> ExpertPlacement | None:
    """Make the swap between the most and least loaded rank that lowers both most.

    Parameters
    ----------
    load
        ``[E]`` load of each expert.
    least_gain
        Load by which the larger of the two must fall, exclusive.

    Returns
    -------
    ExpertPlacement or None
        None if no swap lowers the larger of both loads by more.
    """
    share = slot_loads(plan, load)
    total = np.bincount(plan.ranks, share, ranks)
    high, low = int(np.argmax(total)), int(np.argmin(total))
    one, other = np.flatnonzero(plan.ranks == high), np.flatnonzero(plan.ranks == low)
    moved = share[one][:, None] - share[other][None, :]
    after = np.maximum(total[high] - moved, total[low] + moved)
    i, j = np.unravel_index(int(np.argmin(after)), after.shape)
    if not total[high] - after[i, j] > max(least_gain, 1e-9 * total[high]):
        return None
    rank_of = plan.ranks.copy()
    rank_of[one[i]], rank_of[other[j]] = low, high
    return ExpertPlacement(experts=plan.experts, ranks=rank_of)

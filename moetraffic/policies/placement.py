"""Policies that place and replicate experts on ranks.

References
----------
github.com/deepseek-ai/EPLB (MIT): ``rebalance_experts``, global and hierarchical
policy; written anew from its description and checked with its published cases.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import LayoutError
from moetraffic.patterns.placement import place, replicate

from .cluster import ExpertPlacement
from .policy import View
from .series import LayerKey


@dataclass(frozen=True, kw_only=True)
class FixedPlacement:
    """Contiguous or strided experts; further slots repeat the first experts."""

    name: str  # contiguous or strided
    family: str = "placement"
    forecasts: bool = False

    def plan(self, view: View) -> ExpertPlacement:
        """Return the same placement each time."""
        return named(self.name, np.ones(view.forecast.shape[1]), view)


def named(name: str, load: Float64, view: View) -> ExpertPlacement:
    """Place experts of a load ``[E]`` by a rule of ``moetraffic place``."""
    slots = len(load) + view.network.replicas
    experts, ranks = place(name, load, view.ranks, slots)
    return ExpertPlacement(experts=experts, ranks=ranks)


@dataclass(frozen=True, kw_only=True)
class LoadBalancer:
    """Balance the forecast load of experts over ranks, within nodes or globally."""

    name: str = "eplb"
    family: str = "placement"
    forecasts: bool = True
    hierarchical: bool = False  # groups of experts on one node

    def plan(self, view: View) -> ExpertPlacement:
        """Plan for the forecast load."""
        load, cluster = view.forecast.sum(axis=0), view.network
        slots = len(load) + cluster.replicas
        nodes = cluster.nodes if self.hierarchical else 1
        return balance(
            load, ranks=view.ranks, slots=slots, nodes=nodes, groups=cluster.groups
        )


def pack(weights: npt.ArrayLike, packs: int) -> Int64:
    """Pack items, heaviest first, each into the lightest pack with room.

    ``weights``: ``[n]``; the result is the pack of each.  n is a multiple of
    ``packs``, and every pack gets as many items.

    Examples
    --------
    >>> pack([4, 2, 2, 2, 1, 1], 2).tolist()  # weights 7 and 5; the optimum is 6 and 6
    [0, 1, 1, 0, 1, 0]
    """
    given = np.asarray(weights, np.float64)
    total, room = np.zeros(packs), np.full(packs, len(given) // packs)
    pack_of = np.zeros(len(given), np.int64)
    for item in np.argsort(-given, kind="stable"):
        to = int(np.argmin(np.where(room > 0, total, np.inf)))
        pack_of[item] = to
        total[to] += given[item]
        room[to] -= 1
    return pack_of


def balance(
    load: npt.ArrayLike, *, ranks: int, slots: int, nodes: int = 1, groups: int = 1
) -> ExpertPlacement:
    """Replicate experts of a ``load`` ``[E]`` over slots S, and place these on W ranks.

    Step 1 packs groups of consecutive experts onto nodes, step 2 replicates within each
    node, step 3 packs slots onto the node's ranks.  One node: global.

    Raises
    ------
    LayoutError
        If the numbers do not divide.

    Examples
    --------
    >>> plan = balance([42, 11, 9, 7, 5, 3, 2, 1], ranks=4, slots=8)
    >>> plan.experts[plan.ranks == 0].tolist()
    [0, 7]
    """
    given = np.asarray(load, np.float64)
    groups = groups if nodes > 1 else 1
    if groups % nodes or ranks % nodes or len(given) % groups or slots % ranks:
        raise LayoutError(
            f"nodes divide groups and ranks, groups the experts, and ranks the slots, "
            f"but there are {nodes} nodes, {groups} groups, {ranks} ranks, "
            f"{len(given)} experts and {slots} slots: change them"
        )
    # Step 1: groups to nodes.
    group = np.arange(len(given)) * groups // len(given)
    node_of = pack(np.bincount(group, given, groups), nodes)[group]
    experts, rank_of = [], []
    for node in range(nodes):
        # Step 2: replicas within the node.
        here = np.flatnonzero(node_of == node)
        replicas = replicate(given[here], slots // nodes)
        share = given[here][replicas] / np.bincount(replicas)[replicas]
        # Step 3: slots to the node's ranks.
        experts.append(here[replicas])
        rank_of.append(pack(share, ranks // nodes) + node * (ranks // nodes))
    return ExpertPlacement(
        experts=np.concatenate(experts), ranks=np.concatenate(rank_of)
    )


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
        cluster, load = view.network, view.forecast.sum(axis=0)
        plan = self.held.get(view.layer) or named("contiguous", load, view)
        # seconds that a token copy less on the busiest rank saves: in, out, compute
        a_copy = 2 * cluster.row_bytes / cluster.rate_bytes_s + cluster.token_s
        cost = cluster.expert_bytes / cluster.rate_bytes_s
        least = cost / (a_copy * view.hold) if a_copy else 0.0
        for _ in range(self.most):
            changed = swapped(plan, load, view.ranks, least_gain=least)
            if changed is None:
                break
            plan = changed
        self.held[view.layer] = plan
        return plan


def swapped(
    plan: ExpertPlacement, load: Float64, ranks: int, *, least_gain: float = 0.0
) -> ExpertPlacement | None:
    """Make the swap between the most and least loaded rank that lowers both most.

    ``load`` is ``[E]``, of each expert; the larger of the two loads must fall by more
    than ``least_gain``.  None if no swap does so.
    """
    share = load[plan.experts] / np.bincount(plan.experts)[plan.experts]
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


@dataclass(frozen=True, kw_only=True)
class Affinity:
    """Place experts so that as many token copies as possible stay on their rank.

    An exact assignment with as many slots on each rank; the balance of loads is not
    considered.  Affinity between the experts of adjacent layers needs the paths of
    single tokens, which counts do not have.

    References
    ----------
    J. Yao et al., "ExFlow", arXiv 2401.08383: placement by affinity, between layers.
    """

    name: str = "affinity"
    family: str = "placement"
    forecasts: bool = True

    def plan(self, view: View) -> ExpertPlacement:
        """Plan for the forecast copies."""
        slots = view.forecast.shape[1] + view.network.replicas
        return beside_tokens(view.forecast, slots)


def beside_tokens(tokens: npt.ArrayLike, slots: int) -> ExpertPlacement:
    """Assign experts to ranks with the most rank-local copies.

    ``tokens`` are ``[W, E]`` copies that a rank routes to an expert, and the slots a
    multiple of W; further replicas go to the largest loads.

    Examples
    --------
    >>> beside_tokens([[0, 9], [5, 8]], 2).ranks.tolist()
    [1, 0]
    """
    given = np.asarray(tokens, np.float64)
    ranks = len(given)
    experts = replicate(given.sum(axis=0), slots)
    share = given[:, experts] / np.bincount(experts)[experts]  # [W, S]
    # one row for each place on a rank
    places, chosen = linear_sum_assignment(-np.repeat(share, slots // ranks, axis=0))
    rank_of = np.empty(slots, np.int64)
    rank_of[chosen] = places // (slots // ranks)
    return ExpertPlacement(experts=experts, ranks=rank_of)

"""EPLB: replicate the experts of the largest load, and pack slots onto ranks.

References
----------
github.com/deepseek-ai/EPLB (MIT): ``rebalance_experts``, global and hierarchical
policy; written anew from its description and checked with its published cases.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Int64
from moetraffic.errors import LayoutError
from moetraffic.patterns.placement import replicate
from moetraffic.policies.policy import View
from moetraffic.policies.service.cluster import ExpertPlacement


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
        if not self.hierarchical:
            return balance(load, ranks=view.ranks, slots=slots)
        return balance(
            *(load,),
            ranks=view.ranks,
            slots=slots,
            nodes=cluster.nodes,
            groups=cluster.groups,
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
    found = np.zeros(len(given), np.int64)
    for item in np.argsort(-given, kind="stable"):
        to = int(np.argmin(np.where(room > 0, total, np.inf)))
        found[item] = to
        total[to] += given[item]
        room[to] -= 1
    return found


def balance(
    load: npt.ArrayLike, *, ranks: int, slots: int, nodes: int = 1, groups: int = 1
) -> ExpertPlacement:
    """Replicate and place experts by their load.

    Parameters
    ----------
    load
        ``[E]`` load of each expert.
    ranks, slots
        Ranks W, and slots S of experts, a multiple of W.
    nodes, groups
        Step 1 packs groups of consecutive experts onto nodes, step 2 replicates within
        each node, step 3 packs slots onto the node's ranks.  One node: global.

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
    if nodes == 1:
        groups = 1
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
        mine = np.flatnonzero(node_of == node)
        each = replicate(given[mine], slots // nodes)
        share = given[mine][each] / np.bincount(each)[each]
        # Step 3: slots to the node's ranks.
        experts.append(mine[each])
        rank_of.append(pack(share, ranks // nodes) + node * (ranks // nodes))
    return ExpertPlacement(
        experts=np.concatenate(experts), ranks=np.concatenate(rank_of)
    )

"""Which rank holds which expert: contiguous, strided, or balanced by load.

A placement of S slots gives each of W ranks S/W of them; with S above the number of
experts E, some experts have several replicas.

References
----------
``greedy`` and ``replicate`` follow the published description of DeepSeek's
expert-parallelism load balancer (github.com/deepseek-ai/EPLB, global policy): replicas
go to the experts of the heaviest load a replica, and slots are packed heaviest first
onto the lightest rank that has room.
"""

from __future__ import annotations

import numpy as np

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import LayoutError
from moetraffic.spelling import check_choice

PLACEMENTS = ("contiguous", "strided", "greedy")
"""Rank 0 holds the first S/W slots, rank 1 the next; slot s lies on rank ``s mod W``;
heaviest slot first, onto the lightest rank with room."""


def greedy(experts: Int64, load: Float64, ranks: int) -> Int64:
    """Rank of each slot ``[S]``, of their ``experts`` and ``load`` ``[S]``.

    A rank takes a second replica of one expert only where no other has room.
    """
    room = np.full(ranks, len(experts) // ranks)
    weight = np.zeros(ranks)
    holds: list[set[int]] = [set() for _ in range(ranks)]
    rank_of = np.zeros(len(experts), np.int64)
    for slot in np.argsort(-load, kind="stable"):
        expert = int(experts[slot])
        rank = min(
            (r for r in range(ranks) if room[r]),
            key=lambda r: (expert in holds[r], weight[r], r),
        )
        rank_of[slot] = rank
        room[rank] -= 1
        weight[rank] += load[slot]
        holds[rank].add(expert)
    return rank_of


def replicate(load: Float64, slots: int) -> Int64:
    """The expert of each slot ``[S]``, in order of the experts: each has one, and the
    others go where the ``load`` ``[E]`` a replica is greatest."""
    replicas = np.ones(len(load), np.int64)
    for _ in range(slots - len(load)):
        replicas[np.argmax(load / replicas)] += 1
    return np.repeat(np.arange(len(load)), replicas)


def place(name: str, load: Float64, ranks: int, slots: int) -> tuple[Int64, Int64]:
    """Place experts with ``load`` ``[E]`` by a rule of PLACEMENTS, S slots on W ranks.

    Returns the expert of each slot, sorted, and the rank that has it: ``[S]`` int64
    each.  LayoutError if there is no such rule, or the numbers do not fit.
    """
    check_choice("the placement", name, PLACEMENTS, LayoutError)
    if slots < len(load):
        raise LayoutError(
            f"every expert needs a slot, but there are {len(load)} experts and {slots} "
            "slots: raise the number of replicas"
        )
    if slots % ranks:
        raise LayoutError(
            f"each rank holds as many experts, but {slots} slots ({len(load)} experts "
            f"and {slots - len(load)} more replicas) do not divide over {ranks} ranks: "
            "change --ep or --replicas"
        )
    experts, places = replicate(load, slots), np.arange(slots)
    if name == "greedy":
        share = load[experts] / np.bincount(experts)[experts]
        return experts, greedy(experts, share, ranks)
    return experts, places % ranks if name == "strided" else places // (slots // ranks)

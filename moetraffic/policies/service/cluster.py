r"""Ranks that hold experts: plans of placement, and the time of a MoE layer.

The routing of tokens does not depend on the placement, so the true token copies from
ranks to experts ``[W, E]`` determine the layer under every placement.  Copies for an
expert with several replicas are spread evenly over them.

.. math::
    T = \frac{\phi(M) + \phi(M^T)}{C} + c \max_j \sum_i M_{ij}
        + \frac{b \max_j m_j}{C}

with the token copies M between ranks, the largest line sum :math:`\phi` without
rank-local copies (dispatch and combine), the compute time c of a copy, and the
:math:`m_j` expert replicas of b bytes that rank j receives where the placement changes.
Of an iteration, the backward pass is added as in :mod:`.layer`.

References
----------
DeepSeek-V3 technical report, arXiv 2412.19437: redundant experts, moved periodically.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64, Int64
from moetraffic.fabric.topology import at_least, not_negative, positive

from .layer import BACKWARD
from .optical import Service, crossing, line_bytes


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Ranks with slots for experts, joined by a network of equal ports.

    Raises
    ------
    FabricError
        If a rate, a time or a number is impossible.
    """

    rate_bytes_s: float  # of a rank's port, each direction
    row_bytes: int = 0  # of a token copy on the wire; 0: that of the trace
    token_s: float = 0.0  # compute time of a token copy
    expert_bytes: float = 0.0  # weights and states of an expert that are moved
    replicas: int = 0  # slots beyond one for each expert
    nodes: int = 1  # of consecutive ranks
    groups: int = 1  # of consecutive experts that should share a node
    backward: bool = False  # whether both passes are served, not the forward one alone
    other_s: float = 0.0  # forward compute of a layer beside its experts

    def __post_init__(self) -> None:
        positive(self.rate_bytes_s, "the rate of a port")
        for name in ("row_bytes", "token_s", "expert_bytes", "other_s", "replicas"):
            not_negative(getattr(self, name), name)
        at_least(1, self.nodes, "the number of nodes")
        at_least(1, self.groups, "the number of groups")

    def layer_seconds(self, line: float, load: float) -> float:
        """Time of a layer by its largest line sum, bytes, and a rank's most copies.

        The backward pass has as many exchanges, and BACKWARD times the compute.
        """
        passes, work = (2, 1 + BACKWARD) if self.backward else (1, 1.0)
        compute = self.token_s * load + self.other_s
        return passes * 2 * line / self.rate_bytes_s + work * compute


@dataclass(frozen=True, kw_only=True, eq=False)
class ExpertPlacement:
    """Expert and rank of each slot; every rank has as many slots."""

    experts: Int64  # [S] expert in each slot
    ranks: Int64  # [S] rank that has the slot


def holders(plan: ExpertPlacement, experts: int, ranks: int) -> Int64:
    """Count the replicas of each expert on each rank, ``[E, W]`` int64."""
    count = np.zeros((experts, ranks), np.int64)
    np.add.at(count, (plan.experts, plan.ranks), 1)
    return count


def placement_violations(
    plan: object, experts: int, ranks: int, cluster: Cluster
) -> str:
    """Describe why a placement cannot exist on a cluster; empty if it can."""
    if not isinstance(plan, ExpertPlacement):
        return f"a plan of placement is an ExpertPlacement, not {type(plan)}"
    expert, rank = np.asarray(plan.experts), np.asarray(plan.ranks)
    slots = experts + cluster.replicas
    if expert.shape != (slots,) or rank.shape != (slots,):
        return (
            f"{experts} experts and {cluster.replicas} more replicas are {slots} "
            f"slots, but experts and ranks have the shapes {expert.shape} and "
            f"{rank.shape}"
        )
    if expert.dtype.kind not in "iu" or rank.dtype.kind not in "iu":
        return "experts and ranks are integers"
    if set(expert.tolist()) != set(range(experts)):
        return f"every expert 0 to {experts - 1} has a slot, and no other"
    if (np.bincount(rank, minlength=ranks) != slots // ranks).any():
        return f"each rank 0 to {ranks - 1} has {slots // ranks} slots"
    return ""


def rank_copies(tokens: npt.ArrayLike, plan: ExpertPlacement) -> Float64:
    """Compute the token copies between ranks under a placement, ``[W, W]``.

    Parameters
    ----------
    tokens
        ``[W, E]`` copies that a rank routes to an expert.
    plan
        Placement; replicas share the copies of each rank evenly.
    """
    given = np.asarray(tokens, np.float64)
    ranks, experts = given.shape
    count = holders(plan, experts, ranks)
    share = count / count.sum(axis=1, keepdims=True)
    return np.asarray(given @ share, np.float64)


def serve_placement(
    tokens: npt.ArrayLike,
    plan: ExpertPlacement,
    cluster: Cluster,
    last: ExpertPlacement | None,
) -> Service:
    """Serve the true token copies of a layer under a placement.

    Parameters
    ----------
    tokens
        ``[W, E]`` copies.
    plan
        Without :func:`placement_violations`.
    last
        Placement before this layer's exchange; None: contiguous, no replicas moved.

    Returns
    -------
    Service
        With what is moved, and ``loads``; all bytes are planned ones.
    """
    copies = rank_copies(tokens, plan)
    ranks, experts = np.shape(tokens)
    load = copies.sum(axis=0)
    sent = crossing(copies) * cluster.row_bytes
    moved = np.zeros(ranks, np.int64)  # experts that each rank receives
    if last is not None and last is not plan:
        count = holders(plan, experts, ranks) - holders(last, experts, ranks)
        moved = np.maximum(count, 0).sum(axis=0)
    seconds = cluster.layer_seconds(line_bytes(sent), float(load.max()))
    total = float(sent.sum())
    return Service(
        completion_s=seconds
        + int(moved.max()) * cluster.expert_bytes / cluster.rate_bytes_s,
        demand_bytes=total,
        planned_bytes=total,
        rest_bytes=0.0,
        moved_experts=int(moved.sum()),
        moved_bytes=int(moved.sum()) * cluster.expert_bytes,
        loads=tuple(load.tolist()),
    )


def balanced_seconds(tokens: npt.ArrayLike, cluster: Cluster) -> float:
    """Compute the time of a layer with as many copies between all ranks, seconds.

    A reference, not a bound: experts beside the tokens that choose them are faster.
    """
    given = np.asarray(tokens, np.float64)
    ranks = len(given)
    each = float(given.sum()) / ranks
    sent = each * (1 - 1 / ranks) * cluster.row_bytes
    return cluster.layer_seconds(sent, each)

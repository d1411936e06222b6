r"""Ranks that hold experts: plans of placement, and the time of a MoE layer.

The routing of tokens does not depend on the placement, so the true token copies from
ranks to experts ``[W, E]`` determine the layer under every placement.  Copies for an
expert with several replicas are spread evenly over them.

.. math::
    T = \frac{2 \phi(M)}{C} + c \max_j \sum_i M_{ij} + \frac{b \max_j m_j}{C}

with the token copies M between ranks, the largest line sum :math:`\phi` without
rank-local copies (dispatch, and combine, which is dispatch transposed), the compute
time c of a copy, and the :math:`m_j` expert replicas of b bytes that rank j receives
where the placement changes.  A first placement is free.

References
----------
DeepSeek-V3 technical report, arXiv 2412.19437: redundant experts, moved periodically.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64, Int64
from moetraffic.fabric.topology import at_least, positive
from moetraffic.units import bit_rate

from .service import Service, crossing, line_bytes


@dataclass(frozen=True, kw_only=True, eq=False)
class ExpertPlacement:
    """Expert and rank of each slot; every rank has as many slots."""

    experts: Int64  # [S] expert in each slot
    ranks: Int64  # [S] rank that has the slot

    def holders(self, experts: int, ranks: int) -> Int64:
        """Count the replicas of each expert on each rank, ``[E, W]`` int64."""
        count = np.zeros((experts, ranks), np.int64)
        np.add.at(count, (self.experts, self.ranks), 1)
        return count


def rank_copies(tokens: npt.ArrayLike, plan: ExpertPlacement) -> Float64:
    """Compute the token copies between ranks under a placement, ``[W, W]``.

    ``tokens``: ``[W, E]`` copies that a rank routes to an expert; replicas share those
    of each rank evenly.
    """
    given = np.asarray(tokens, np.float64)
    ranks, experts = given.shape
    count = plan.holders(experts, ranks)
    return np.asarray(given @ (count / count.sum(axis=1, keepdims=True)), np.float64)


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

    def __post_init__(self) -> None:
        positive(self.rate_bytes_s, "the rate of a port")
        for name in ("row_bytes", "token_s", "expert_bytes", "replicas"):
            at_least(0, getattr(self, name), name)
        at_least(1, self.nodes, "the number of nodes")
        at_least(1, self.groups, "the number of groups")

    def described(self) -> str:
        """Describe the rates."""
        free = "" if self.expert_bytes else ", experts move for free"
        return f"ports {bit_rate(self.rate_bytes_s)}{free}"

    def reference(self) -> str:
        """Name what completion times are relative to."""
        return "a balanced layer, no bound"

    def layer_seconds(self, line: float, load: float) -> float:
        """Time of a layer by its largest line sum, bytes, and a rank's most copies."""
        return 2 * line / self.rate_bytes_s + self.token_s * load

    def bound(self, tokens: npt.ArrayLike) -> float:
        """Compute the time of a layer with as many copies between all ranks, seconds.

        A reference, not a bound: experts beside the tokens that choose them are faster.
        """
        given = np.asarray(tokens, np.float64)
        ranks, load = len(given), float(given.sum()) / len(given)
        return self.layer_seconds(load * (1 - 1 / ranks) * self.row_bytes, load)

    def check(self, plan: object, forecast: Float64) -> str:
        """Describe why a placement cannot exist; empty if it can."""
        ranks, experts = forecast.shape
        if not isinstance(plan, ExpertPlacement):
            return f"a plan of placement is an ExpertPlacement, not {type(plan)}"
        expert, rank = np.asarray(plan.experts), np.asarray(plan.ranks)
        slots = experts + self.replicas
        if expert.shape != (slots,) or rank.shape != (slots,):
            return (
                f"{experts} experts and {self.replicas} more replicas are {slots} "
                f"slots, but experts and ranks have the shapes {expert.shape} and "
                f"{rank.shape}"
            )
        if expert.dtype.kind not in "iu" or rank.dtype.kind not in "iu":
            return "experts and ranks are integers"
        if set(expert.tolist()) != set(range(experts)):
            return f"every expert 0 to {experts - 1} has a slot, and no other"
        within = ((rank >= 0) & (rank < ranks)).all()
        if not within or (np.bincount(rank, minlength=ranks) != slots // ranks).any():
            return f"each rank 0 to {ranks - 1} has {slots // ranks} slots"
        return ""

    def serve(
        self, tokens: npt.ArrayLike, plan: ExpertPlacement, last: ExpertPlacement | None
    ) -> Service:
        """Serve the true token copies of a layer, ``[W, E]``, under a placement.

        ``last`` is the placement before this layer's exchange; None: nothing is moved.
        """
        copies = rank_copies(tokens, plan)
        ranks, experts = np.shape(tokens)
        load = copies.sum(axis=0)
        sent = crossing(copies) * self.row_bytes
        moved = np.zeros(ranks, np.int64)  # experts that each rank receives
        if last is not None and last is not plan:
            more = plan.holders(experts, ranks) - last.holders(experts, ranks)
            moved = np.maximum(more, 0).sum(axis=0)
        return Service(
            completion_s=self.layer_seconds(line_bytes(sent), float(load.max()))
            + int(moved.max()) * self.expert_bytes / self.rate_bytes_s,
            demand_bytes=float(sent.sum()),
            planned_bytes=float(sent.sum()),
            moved_experts=int(moved.sum()),
            moved_bytes=int(moved.sum()) * self.expert_bytes,
            loads=tuple(load.tolist()),
        )

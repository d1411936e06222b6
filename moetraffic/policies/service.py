r"""Completion of an exchange, of a MoE layer with its compute, or of an iteration.

.. math::
    T_{layer} = T(D) + c \max_j \sum_i D_{ij} + T(D^T)

with the time T of a byte matrix under a plan, and the compute time c of a byte that a
rank receives, its own included: dispatch, experts, combine.  Combine is dispatch
transposed; its plan is dispatch's with all transfers in the other direction.  The
backward pass has both exchanges again, and twice the compute.  Phases do not overlap;
the first reconfiguration of an exchange is hidden behind the compute before it.

References
----------
X. Liao et al., "MixNet", SIGCOMM 2025, arXiv 2501.03905: the four exchanges of a layer,
and circuits that are set while experts compute.
D. Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters
Using Megatron-LM", SC 2021: the backward pass has twice the operations of the forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64
from moetraffic.errors import AnalysisError
from moetraffic.fabric.topology import not_negative
from moetraffic.spelling import check_choice

SCOPES = ("exchange", "layer", "iteration")
"""What a completion time is of: an all-to-all; dispatch, experts and combine of a
layer; both passes of all layers."""

BACKWARD = 2.0
"""Compute of the backward pass over that of the forward pass."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """How one exchange was served; all bytes are between different ranks."""

    completion_s: float
    demand_bytes: float
    planned_bytes: float  # carried by what the plan provides for
    rest_bytes: float = 0.0  # carried otherwise
    reconfigurations: int = 0
    moved_experts: int = 0  # that ranks receive for a new placement
    moved_bytes: float = 0.0  # their weights
    loads: tuple[float, ...] = ()  # [W] token copies of each rank, if known

    @property
    def load_imbalance(self) -> float:
        """Maximum over mean tokens of a rank; NaN if unknown."""
        total = sum(self.loads)
        return max(self.loads) * len(self.loads) / total if total else float("nan")


def added(services: Sequence[Service], *, seconds: float) -> Service:
    """Join services that take ``seconds`` together: bytes and events add up."""
    names = ["demand_bytes", "planned_bytes", "rest_bytes", "reconfigurations"]
    names += ["moved_experts", "moved_bytes"]
    sums: dict[str, Any] = {n: sum(getattr(s, n) for s in services) for n in names}
    loads = tuple(load for service in services for load in service.loads)
    return Service(completion_s=seconds, loads=loads, **sums)


def crossing(demand: npt.ArrayLike) -> Float64:
    """Return a copy of a byte matrix ``[W, W]`` without rank-local traffic."""
    matrix = np.array(demand, np.float64)
    np.fill_diagonal(matrix, 0.0)
    return matrix


def line_bytes(demand: Float64) -> float:
    """Return the largest row or column sum of a byte matrix ``[W, W]``."""
    lines = demand.sum(axis=0).max(initial=0), demand.sum(axis=1).max(initial=0)
    return float(max(lines))


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What a completion time includes beside the exchange that is planned.

    Raises
    ------
    AnalysisError
        If there is no such scope, or an exchange has compute.
    FabricError
        If a time is negative or infinite.
    """

    name: str = "exchange"  # one of SCOPES
    token_s: float = 0.0  # forward compute of a token copy
    other_s: float = 0.0  # forward compute of a layer beside its experts

    def __post_init__(self) -> None:
        check_choice("the scope of completion", self.name, SCOPES, AnalysisError)
        for name in ("token_s", "other_s"):
            value = getattr(self, name)
            not_negative(value, name)
            if value and self.name == "exchange":
                raise AnalysisError(
                    f"an exchange has no compute, but {name} is {value}: give "
                    "--completion layer or iteration"
                )


EXCHANGE = Scope()
"""The planned exchange alone."""


def layer_parts(
    truth: Float64, network: Any, scope: Scope, row_bytes: int
) -> tuple[list[tuple[bool, Any]], float]:
    """List the further exchanges of a layer and its compute, seconds.

    Each exchange after the first is whether it is transposed, and its network, which
    hides the compute before it.  ``truth`` is ``[W, W]`` bytes with rank-local rows on
    the diagonal.

    Raises
    ------
    AnalysisError
        If the bytes of a token copy are not known.
    """
    if scope.name == "exchange":
        return [], 0.0
    experts = 0.0
    if scope.token_s:
        if not row_bytes:
            raise AnalysisError(
                "compute by load needs the bytes of a token copy, which the trace does "
                "not state: leave out --token-time"
            )
        experts = scope.token_s * float(truth.sum(axis=0).max()) / row_bytes
    parts = [(True, _behind(network, experts))]
    if scope.name == "layer":
        return parts, experts + scope.other_s
    parts.append((False, _behind(network, BACKWARD * scope.other_s)))
    parts.append((True, _behind(network, BACKWARD * experts)))
    return parts, (1 + BACKWARD) * (experts + scope.other_s)


def _behind(network: Any, seconds: float) -> Any:
    """Return a network whose first reconfiguration is hidden behind compute."""
    if seconds > getattr(network, "window_s", np.inf):
        return replace(network, window_s=seconds)
    return network


def serve_layer(
    truth: Float64, plan: Any, network: Any, last: Any, scope: Scope, row_bytes: int
) -> Service:
    """Serve all exchanges of a layer by a plan for its first, and add the compute.

    Parameters
    ----------
    truth
        ``[W, W]`` bytes of the planned exchange.
    plan, network, last
        Of the planned exchange, and the plan before it.
    scope
        What the completion includes.
    row_bytes
        Bytes of a token copy.
    """
    done = network.serve(truth, plan, last)
    parts, compute = layer_parts(truth, network, scope, row_bytes)
    if not parts:
        return done  # type: ignore[no-any-return]
    back = network.transposed(plan)
    served = [done]
    for turned, on in parts:
        sent, other = (truth.T, back) if turned else (truth, plan)
        served.append(on.serve(sent, other, other))
    seconds = sum(service.completion_s for service in served) + compute
    return replace(added(served, seconds=seconds), loads=done.loads)


def bound_layer(truth: Float64, network: Any, scope: Scope, row_bytes: int) -> float:
    """Compute a lower bound on the completion of :func:`serve_layer`, seconds."""
    parts, compute = layer_parts(truth, network, scope, row_bytes)
    others = [on.bound(truth.T if turned else truth) for turned, on in parts]
    return float(network.bound(truth) + sum(others) + compute)

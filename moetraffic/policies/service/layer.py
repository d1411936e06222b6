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

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from moetraffic.arrays import Float64
from moetraffic.errors import AnalysisError, FabricError
from moetraffic.fabric.topology import not_negative
from moetraffic.spelling import check_choice

from .optical import HeldCircuits, Matchings, OpticalSwitch, Service
from .packet_network import PacketNetwork, Rounds

SCOPES = ("exchange", "layer", "iteration")
"""What a completion time is of: an all-to-all; dispatch, experts and combine of a
layer; both passes of all layers."""

BACKWARD = 2.0
"""Compute of the backward pass over that of the forward pass."""


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


@singledispatch
def transposed(plan: Any, network: Any) -> Any:
    """Return a plan for the transposed matrix: all transfers in the other direction.

    ``network`` is what serves the plan; cables of packet networks are duplex.

    Raises
    ------
    TypeError
        If it is not known how; a package registers its own plans here.
    """
    raise TypeError(f"no plan for combine follows from a {type(plan).__name__}")


@transposed.register
def _(plan: Matchings, network: OpticalSwitch) -> Matchings:
    back = np.full_like(plan.receivers, -1)
    term, port = np.nonzero(plan.receivers >= 0)
    back[term, plan.receivers[term, port]] = port
    return replace(plan, receivers=back)


@transposed.register
def _(plan: HeldCircuits, network: OpticalSwitch) -> HeldCircuits:
    return plan


@transposed.register
def _(plan: Rounds, network: PacketNetwork) -> Rounds:
    routing = plan.routing
    if not isinstance(routing, str):
        ranks, links = plan.shares.shape[1], network.topology.links
        pair = np.arange(ranks * ranks).reshape(ranks, ranks).T.ravel()
        number = network.topology.number_of
        if one_way := [" -> ".join(link) for link in links if link[::-1] not in number]:
            raise FabricError(
                "combine takes the paths of dispatch in the other direction, but of "
                f"{one_way[0]} only this direction works: let both fail (0 Gbps), or "
                "choose a policy without paths of its own"
            )
        other = [number[b, a] for a, b in links]
        routing = csr_array(routing[pair][:, other])
    return replace(plan, shares=plan.shares.swapaxes(1, 2), routing=routing)


def expert_seconds(truth: Float64, scope: Scope, row_bytes: int) -> float:
    """Compute how long the busiest rank computes on the rows that it receives.

    ``truth`` is ``[W, W]`` bytes with rank-local rows on the diagonal.

    Raises
    ------
    AnalysisError
        If the bytes of a token copy are not known.
    """
    if not scope.token_s:
        return 0.0
    if not row_bytes:
        raise AnalysisError(
            "compute by load needs the bytes of a token copy, which the trace does not "
            "state: leave out --token-time"
        )
    return scope.token_s * float(truth.sum(axis=0).max()) / row_bytes


def layer_parts(
    truth: Float64, network: Any, scope: Scope, row_bytes: int
) -> tuple[list[tuple[bool, Any]], float]:
    """List the further exchanges of a layer and its compute.

    Returns each exchange after the first, on a network that hides the compute before
    it, and seconds of compute.
    """
    if scope.name == "exchange":
        return [], 0.0
    experts = expert_seconds(truth, scope, row_bytes)
    parts = [(True, _behind(network, experts))]
    if scope.name == "layer":
        return parts, experts + scope.other_s
    parts.append((False, _behind(network, BACKWARD * scope.other_s)))
    parts.append((True, _behind(network, BACKWARD * experts)))
    return parts, (1 + BACKWARD) * (experts + scope.other_s)


def serve_layer(
    serve: Callable[[Float64, Any, Any, Any], Service],
    truth: Float64,
    plan: Any,
    network: Any,
    *,
    last: Any,
    scope: Scope,
    row_bytes: int,
) -> Service:
    """Serve all exchanges of a layer by a plan for its first, and add the compute.

    Parameters
    ----------
    serve
        Serves a matrix by a plan on a network, after another plan.
    truth
        ``[W, W]`` bytes of the planned exchange.
    plan, network, last
        Of the planned exchange, and the plan before it.
    scope
        What the completion includes.
    row_bytes
        Bytes of a token copy.

    Returns
    -------
    Service
        Sums over the exchanges; of :data:`SCOPES` "iteration", this layer's part.
    """
    done = serve(truth, plan, network, last)
    parts, compute = layer_parts(truth, network, scope, row_bytes)
    if not parts:
        return done
    back = transposed(plan, network)
    every = [
        done,
        *(
            serve(truth.T, back, on, back) if turned else serve(truth, plan, on, plan)
            for turned, on in parts
        ),
    ]
    return replace(
        done,
        completion_s=sum(one.completion_s for one in every) + compute,
        demand_bytes=sum(one.demand_bytes for one in every),
        planned_bytes=sum(one.planned_bytes for one in every),
        rest_bytes=sum(one.rest_bytes for one in every),
        reconfigurations=sum(one.reconfigurations for one in every),
    )


def bound_layer(
    bound: Callable[[Float64, Any], float],
    truth: Float64,
    network: Any,
    *,
    scope: Scope,
    row_bytes: int,
) -> float:
    """Compute a lower bound on the completion of :func:`serve_layer`, seconds."""
    parts, compute = layer_parts(truth, network, scope, row_bytes)
    every = [bound(truth.T if turned else truth, on) for turned, on in parts]
    return bound(truth, network) + sum(every) + compute


def _behind(network: Any, seconds: float) -> Any:
    """Return a network whose first reconfiguration is hidden behind compute."""
    if isinstance(network, OpticalSwitch) and seconds > network.window_s:
        return replace(network, window_s=seconds)
    return network

"""Families of policies: how plans of one kind are checked and served."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moetraffic.arrays import Float64

from .service.cluster import (
    Cluster,
    balanced_seconds,
    placement_violations,
    serve_placement,
)
from .service.optical import (
    OpticalSwitch,
    Service,
    circuit_bound,
    serve_circuits,
    violations,
)
from .service.packet_network import (
    PacketNetwork,
    packet_bound,
    rounds_violations,
    serve_rounds,
)
from .service.relays import Hops, hops_violations, serve_hops


@dataclass(frozen=True, kw_only=True)
class Family:
    """How plans of one kind are checked, served, and bounded from below."""

    name: str
    network: type  # that serves its plans
    unit: str  # of the series: "bytes" between ranks or "tokens" of experts
    violations: Callable[[Any, Float64, Any], str]  # plan, forecast, network
    serve: Callable[[Float64, Any, Any, Any], Service]  # truth, plan, network, last
    bound: Callable[[Float64, Any], float]  # truth, network -> seconds


def network_of(network: Any, ranks: Sequence[int] | None) -> Any:
    """Return the part of a network that some world ranks use; None: all ranks."""
    if isinstance(network, PacketNetwork) and ranks is not None:
        return network.part(tuple(ranks))
    return network


CIRCUITS = Family(
    name="circuits",
    network=OpticalSwitch,
    unit="bytes",
    violations=lambda plan, forecast, network: violations(plan, len(forecast), network),
    serve=lambda truth, plan, network, last: serve_circuits(truth, plan, network),
    bound=circuit_bound,
)

PLACEMENT = Family(
    name="placement",
    network=Cluster,
    unit="tokens",
    violations=lambda plan, forecast, network: placement_violations(
        plan, forecast.shape[1], len(forecast), network
    ),
    serve=serve_placement,
    bound=balanced_seconds,
)

TRANSMISSION = Family(
    name="transmission",
    network=PacketNetwork,
    unit="bytes",
    violations=lambda plan, forecast, network: (
        hops_violations(plan, len(forecast), network)
        if isinstance(plan, Hops)
        else rounds_violations(plan, len(forecast), network)
    ),
    serve=lambda truth, plan, network, last: (
        serve_hops(truth, plan, network)
        if isinstance(plan, Hops)
        else serve_rounds(truth, plan, network)
    ),
    bound=packet_bound,
)

FAMILIES: Mapping[str, Family] = {
    one.name: one for one in (CIRCUITS, TRANSMISSION, PLACEMENT)
}
"""The families by name."""

"""Networks that serve the families of policies, from the options of the command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from moetraffic.errors import AnalysisError
from moetraffic.fabric import load_fabric
from moetraffic.fabric.named import TOPOLOGIES
from moetraffic.trace import Trace
from moetraffic.units import bytes_per_second, duration, seconds

from .cluster import Cluster
from .optical import OpticalSwitch
from .packets import PacketNetwork
from .series import ExchangeSeries, LayerKey, number_of
from .transmission import with_distinct_tokens

OPTICAL = OpticalSwitch(
    rate_bytes_s=50e9, packet_bytes_s=6.25e9, delay_s=10e-6, rest="packets"
)
"""Circuits of 400 Gbps and a packet switch of 50 Gbps a port: 8 to 1, as in Etalon
(M. K. Mukerjee et al., NSDI 2020)."""


def networks_of(
    ranks: int,
    *,
    capacity: str | float = "400Gbps",
    packets: str | float = "50Gbps",
    reconfigure: str | float | Sequence[str | float] = "10us",
    circuits: int | Sequence[int] = 1,
    window: str | float = 0.0,
    rest: str | None = None,
    network: str | Sequence[str] = ("single",),
    **cluster: Any,
) -> dict[str, Any]:
    """Build optical switches, a cluster and packet networks, by name.

    Parameters
    ----------
    ranks
        Of the run, for packet networks.
    capacity, packets, reconfigure, circuits, window, rest, network
        Options of ``moetraffic evaluate``: texts with a unit, or numbers of bytes a
        second and of seconds.  Several values of ``reconfigure`` and ``circuits`` are
        as many switches, named by them.
    cluster
        Fields of :class:`.cluster.Cluster`.
    """
    rate = _read(capacity, bytes_per_second)
    beside = 0.0 if packets == "0" else _read(packets, bytes_per_second)
    delays = [_read(value, seconds) for value in _several(reconfigure)]
    numbers = _several(circuits)
    networks: dict[str, Any] = {}
    for delay_s, number in product(delays, numbers):
        varied = [duration(delay_s)] * (len(delays) > 1)
        varied += [f"{number} a port"] * (len(numbers) > 1)
        networks[f"optical {', '.join(varied)}".strip()] = OpticalSwitch(
            rate_bytes_s=rate,
            delay_s=delay_s,
            circuits=number,
            packet_bytes_s=beside,
            window_s=_read(window, seconds),
            rest=rest or ("packets" if beside else "replan"),
        )
    networks["cluster"] = Cluster(rate_bytes_s=rate, **cluster)
    for name in _several(network):
        given = f"{rate:.0f}B/s" if name in TOPOLOGIES else None
        fabric = load_fabric(name, ranks, capacity=given)
        networks[name] = PacketNetwork(network=fabric)
    return networks


OPTIONS = (
    *(networks_of.__kwdefaults__ or ()),
    *("expert_bytes", "replicas", "nodes", "groups", "token_s", "row_bytes"),
)
"""Options of the command that make networks, as keywords of ``evaluate``."""


def _several(values: Any) -> Sequence[Any]:
    return [values] if isinstance(values, str | float | int) else list(values)


def _read(value: str | float, parse: Callable[[str], float]) -> float:
    return parse(value) if isinstance(value, str) else float(value)


def fitted(
    name: str,
    network: Any,
    series: ExchangeSeries,
    policy: Any,
    trace: Trace | ExchangeSeries,
) -> Any:
    """Return a network with what it takes from the run.

    Raises
    ------
    AnalysisError
        If it has no place for the ranks or experts of the run.
    """
    if isinstance(network, Cluster):
        for _, ranks, experts in (truth.shape for truth in series.layers.values()):
            if (experts + network.replicas) % ranks:
                least = -experts % ranks
                raise AnalysisError(
                    f"{ranks} ranks hold equal numbers of the {experts} experts "
                    f"and the replicas, but --replicas {network.replicas} makes "
                    f"{experts + network.replicas} slots: give {least}, "
                    f"{least + ranks} or {least + 2 * ranks}"
                )
        return replace(network, row_bytes=network.row_bytes or series.row_bytes)
    if isinstance(network, PacketNetwork):
        slots = network.network.ranks
        for layer, truth in series.layers.items():
            last = max(series.ranks.get(layer, range(truth.shape[1])))
            if last >= slots:
                raise AnalysisError(
                    f"the network {name} has slots for ranks 0 to {slots - 1}, but "
                    f"layer {number_of(layer)} uses rank {last}: give a larger one"
                )
        if getattr(policy, "once", False) and isinstance(trace, Trace):
            return with_distinct_tokens(network, trace, phase=series.phase)
    return network


def part_of(network: Any, series: ExchangeSeries, layer: LayerKey) -> Any:
    """Return the part of a network that the ranks of a layer use."""
    if isinstance(network, PacketNetwork) and layer in series.ranks:
        return network.part(series.ranks[layer])
    return network

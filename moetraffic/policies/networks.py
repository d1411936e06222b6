"""Networks that serve the families of policies, from the options of the command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from moetraffic.fabric import load_fabric
from moetraffic.fabric.named import TOPOLOGIES
from moetraffic.units import bytes_per_second, duration, seconds

from .cluster import Cluster
from .optical import OpticalSwitch
from .packets import PacketNetwork

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
    switch = OpticalSwitch(
        rate_bytes_s=rate,
        delay_s=0.0,
        packet_bytes_s=beside,
        window_s=_read(window, seconds),
        rest=rest or ("packets" if beside else "replan"),
    )
    delays = [_read(value, seconds) for value in _several(reconfigure)]
    numbers = _several(circuits)
    networks: dict[str, Any] = {}
    for delay_s, number in product(delays, numbers):
        varied = [duration(delay_s)] * (len(delays) > 1)
        varied += [f"{number} a port"] * (len(numbers) > 1)
        name = " ".join(["optical", ", ".join(varied)]).strip()
        networks[name] = replace(switch, delay_s=delay_s, circuits=number)
    networks["cluster"] = Cluster(rate_bytes_s=rate, **cluster)
    for name in _several(network):
        given = f"{rate:.0f}B/s" if name in TOPOLOGIES else None
        fabric = load_fabric(name, ranks, capacity=given)
        networks[name] = PacketNetwork(network=fabric)
    return networks


def _several(values: Any) -> Sequence[Any]:
    return [values] if isinstance(values, str | float | int) else list(values)


def _read(value: str | float, parse: Callable[[str], float]) -> float:
    return parse(value) if isinstance(value, str) else float(value)

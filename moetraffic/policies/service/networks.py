"""Networks that serve the families of policies, from the names of the command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from moetraffic.fabric.named import TOPOLOGIES, load_fabric, other_rates
from moetraffic.policies.defaults import DEFAULT_PACKETS
from moetraffic.units import bit_rate, bytes_per_second, duration, seconds

from .cluster import Cluster
from .optical import OpticalSwitch
from .packet_network import PacketNetwork

LINE_BOUND = "bytes over capacity, no reconfiguration"
"""What the bound of the busiest port of circuits counts."""


def networks_of(
    ranks: int,
    *,
    capacity: str | float = "400Gbps",
    packets: str | float = DEFAULT_PACKETS,
    reconfigure: str | float = "10us",
    window: str | float = 0.0,
    rest: str | None = None,
    network: str | Sequence[str] = ("single",),
    optimum: bool = False,
    **cluster: Any,
) -> dict[str, Any]:
    """Build an optical switch, a cluster and packet networks, by name.

    Parameters
    ----------
    ranks
        Of the run, for packet networks.
    capacity, packets, reconfigure, window, rest, network, optimum
        Options of ``moetraffic evaluate``: texts with a unit, or numbers of bytes a
        second and of seconds.
    cluster
        Fields of :class:`.cluster.Cluster`, and ``circuits`` of the switch.
    """
    rate = _read(capacity, bytes_per_second)
    beside = 0.0 if packets == "0" else _read(packets, bytes_per_second)
    found: dict[str, Any] = {
        "optical": OpticalSwitch(
            rate_bytes_s=rate,
            delay_s=_read(reconfigure, seconds),
            circuits=cluster.pop("circuits", 1),
            packet_bytes_s=beside,
            window_s=_read(window, seconds),
            rest=rest or ("packets" if beside else "replan"),
        ),
        "cluster": Cluster(rate_bytes_s=rate, **cluster),
    }
    for name in [network] if isinstance(network, str) else network:
        given = f"{rate:.0f}B/s" if name in TOPOLOGIES else None
        fabric = load_fabric(name, ranks, capacity=given)
        found[name] = PacketNetwork(
            topology=fabric.topology, slots=fabric.slots, optimum=optimum
        )
    return found


def described(network: Any) -> str:
    """Describe the rates and the delay of a network; "" of one of another kind.

    Examples
    --------
    >>> described(OpticalSwitch(rate_bytes_s=12.5e9, delay_s=1e-5, packet_bytes_s=3e9))
    'circuits of 100 Gbps, 10 us to reconfigure, packets of 24 Gbps beside'
    """
    if isinstance(network, Cluster):
        return f"ports of {bit_rate(network.rate_bytes_s)}"
    if isinstance(network, PacketNetwork):
        made = network.topology
        return ", ".join([f"ports of {bit_rate(made.nic_bytes_s)}", *other_rates(made)])
    if not isinstance(network, OpticalSwitch):
        return ""
    each = f"{network.circuits} circuits a port" if network.circuits > 1 else "circuits"
    beside = f"packets of {bit_rate(network.packet_bytes_s)} beside"
    if network.packet_bytes_s == bytes_per_second(DEFAULT_PACKETS):
        beside += " (default of --packets)"
    if network.packet_bytes_s > network.rate_bytes_s:
        beside += ", faster than a circuit"
    return (
        f"{each} of {bit_rate(network.rate_bytes_s)}, {duration(network.delay_s)} to "
        f"reconfigure, {beside if network.packet_bytes_s else 'no packets beside'}"
    )


def reference(network: Any, *, compute: bool = False) -> str:
    """Name what completion times are relative to in "over bound", and what it counts.

    Examples
    --------
    >>> reference(OpticalSwitch(rate_bytes_s=12.5e9, delay_s=1e-5))
    'the lower bound (bytes and fewest reconfigurations)'
    """
    if isinstance(network, Cluster):
        return "a balanced layer"
    if isinstance(network, PacketNetwork):
        counts = "optimum of all routings" if network.optimum else "ports and cuts"
    elif network.packet_bytes_s:
        counts = "bytes over circuit and packet rates"
    elif network.circuits > 1:
        counts = LINE_BOUND
    else:
        counts = "bytes and fewest reconfigurations"
    return f"the lower bound ({counts}{', and compute' * compute})"


def _read(value: str | float, of: Callable[[str], float]) -> float:
    return of(value) if isinstance(value, str) else float(value)

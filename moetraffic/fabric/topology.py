"""Topology: hosts with ranks and NICs, and the switches and links between them.

Every cable is two directed links, each with a capacity in bytes/s.  A host is

    gpu0 <-> bus <-> gpu1     the links inside, such as NVLink, if it has several ranks
    gpu0 <-> nic0 <-> switch  the way out

and *forwarding* says which NIC traffic to another host takes:

``own``
    that of the sending rank;
``rail``
    that of the receiving rank's rail: the bytes first cross the bus to the rank of the
    same number, as NCCL's PXN does (NCCL 2.12, "PCI x NVLink").

The sizes of the networks are made by :mod:`.clos` and :mod:`.direct`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import networkx as nx
import numpy as np
import numpy.typing as npt

from moetraffic.errors import FabricError

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

FORWARDING = ("own", "rail")

NVLINK_4 = 450e9
"""bytes/s a direction and GPU: NVIDIA H100, 900 GB/s in both directions together."""


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """The hosts of a fabric, all alike.

    Raises
    ------
    FabricError
        If there is none, a capacity is not positive, or NICs do not divide ranks.
    """

    number: int  # hosts H
    ranks: int = 1  # slots for ranks on each, g
    nics: int = 0  # on each; 0: one a rank
    nic_bytes_s: float  # capacity of a NIC, each direction
    inside_bytes_s: float = NVLINK_4  # of a link inside a host, each direction

    def __post_init__(self) -> None:
        if not self.nics:
            object.__setattr__(self, "nics", self.ranks)
        for name in ("number", "ranks", "nics"):
            at_least(1, getattr(self, name), f"{name} of hosts")
        for name in ("nic_bytes_s", "inside_bytes_s"):
            positive(getattr(self, name), name)
        if self.ranks % self.nics:
            raise FabricError(
                f"the NICs of a host divide its ranks, but there are {self.nics} NICs "
                f"for {self.ranks} ranks: choose a divisor of {self.ranks}"
            )

    @property
    def slots(self) -> int:
        """Places for ranks, over all hosts."""
        return self.number * self.ranks

    def nic_of(self, slot: int) -> int:
        """Which NIC of its host a slot (of 0 to g - 1) uses."""
        return slot * self.nics // self.ranks


def at_least(least: int, value: int, name: str) -> None:
    """Refuse a count that is too small."""
    if value < least:
        raise FabricError(
            f"{name} must be at least {least}, but is {value}: give a larger number"
        )


def positive(value: float, name: str) -> None:
    """Refuse what is not above zero, or not finite."""
    if not (value > 0 and np.isfinite(value)):
        raise FabricError(
            f"{name} is positive and finite, but is {value}: give a number above 0"
        )


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A set of nodes: what its ranks send to all others must leave it."""

    name: str
    hosts: tuple[int, ...]  # that lie inside
    nodes: frozenset[str]  # of the graph, those of the hosts too


@dataclass(frozen=True, kw_only=True)
class Topology:
    """A network as a directed graph, with its hosts and the cuts that matter."""

    name: str
    hosts: Hosts
    graph: nx.DiGraph  # node: kind; edge: capacity [bytes/s], cost
    cuts: Mapping[str, tuple[Cut, ...]] = field(default_factory=dict)  # by family
    forwarding: str = "own"

    @cached_property
    def links(self) -> tuple[tuple[str, str], ...]:
        """Directed links (from, to); the order of every ``[L]`` array."""
        return tuple(self.graph.edges)

    @cached_property
    def number_of(self) -> dict[tuple[str, str], int]:
        """The place of each link in ``links``."""
        return {link: at for at, link in enumerate(self.links)}

    @cached_property
    def capacity(self) -> Float64:
        """``[L]`` float64, bytes/s."""
        return np.array([self.graph.edges[e]["capacity"] for e in self.links])

    @cached_property
    def switches(self) -> tuple[str, ...]:
        """Nodes that are switches or routers, in the order they were made."""
        return tuple(n for n, kind in self.graph.nodes(data="kind") if kind == "switch")

    @cached_property
    def between_switches(self) -> npt.NDArray[np.bool_]:
        """``[L]`` whether both ends of a link are switches."""
        kind = self.graph.nodes(data="kind")
        return np.array([kind[a] == kind[b] == "switch" for a, b in self.links], bool)

    @cached_property
    def at_nics(self) -> npt.NDArray[np.bool_]:
        """``[L]`` whether a link joins a NIC and a switch."""
        kind = self.graph.nodes(data="kind")
        return np.array(
            [{kind[a], kind[b]} == {"nic", "switch"} for a, b in self.links]
        )

    def link_name(self, link: int) -> str:
        """A link as people read it."""
        return " -> ".join(self.links[link])

    def attached(self, host: int, nic: int) -> str:
        """The switch that a NIC is connected to."""
        (switch,) = (
            n
            for n in self.graph.successors(nic_name(host, nic))
            if self.graph.nodes[n]["kind"] == "switch"
        )
        return str(switch)

    def crossing(self, cut: Cut) -> tuple[float, float]:
        """Capacity that leaves a cut and that enters it, bytes/s."""
        inside = np.array([[n in cut.nodes for n in link] for link in self.links])
        leaves, enters = inside[:, 0] & ~inside[:, 1], ~inside[:, 0] & inside[:, 1]
        return float(self.capacity[leaves].sum()), float(self.capacity[enters].sum())

    def as_dict(self) -> dict[str, object]:
        """What it is, in numbers with units in their names."""
        return {
            "topology": self.name,
            "hosts": self.hosts.number,
            "ranks_a_host": self.hosts.ranks,
            "nics_a_host": self.hosts.nics,
            "nic_bytes_s": self.hosts.nic_bytes_s,
            "inside_bytes_s": self.hosts.inside_bytes_s,
            "switches": len(self.switches),
            "links": len(self.links),
            "links_between_switches": int(self.between_switches.sum()),
            "forwarding": self.forwarding,
        }


def slot_name(host: int, slot: int) -> str:
    """Node of a place for a rank."""
    return f"host{host}.gpu{slot}"


def bus_name(host: int) -> str:
    """Node of what joins the ranks of a host."""
    return f"host{host}.bus"


def nic_name(host: int, nic: int) -> str:
    """Node of a NIC."""
    return f"host{host}.nic{nic}"


class TopologyBuilder:
    """A topology in the making: hosts stand, switches and cables are added."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.graph = nx.DiGraph()
        self._cuts: dict[str, list[Cut]] = {}
        for host in range(hosts.number):
            slots = [slot_name(host, at) for at in range(hosts.ranks)]
            nics = [nic_name(host, at) for at in range(hosts.nics)]
            self.graph.add_nodes_from(slots, kind="slot")
            self.graph.add_nodes_from(nics, kind="nic")
            if hosts.ranks > 1:
                self.graph.add_node(bus_name(host), kind="bus")
            for at, slot in enumerate(slots):
                self.cable(slot, nics[hosts.nic_of(at)], hosts.inside_bytes_s)
                if hosts.ranks > 1:
                    self.cable(slot, bus_name(host), hosts.inside_bytes_s)

    def switch(self, name: str) -> str:
        """Add a switch."""
        self.graph.add_node(name, kind="switch")
        return name

    def cable(self, one: str, other: str, capacity: float, *, cost: int = 1) -> None:
        """Add both directions; between the same nodes, capacities add to a trunk."""
        for a, b in ((one, other), (other, one)):
            had = self.graph.edges[a, b]["capacity"] if self.graph.has_edge(a, b) else 0
            self.graph.add_edge(a, b, capacity=had + capacity, cost=cost)

    def attach(
        self, host: int, nic: int, switch: str, capacity: float | None = None
    ) -> None:
        """Connect a NIC to a switch, at the NIC's capacity if no other is given."""
        self.cable(nic_name(host, nic), switch, capacity or self.hosts.nic_bytes_s)

    def cut(
        self, family: str, name: str, hosts: Iterable[int], switches: Iterable[str]
    ) -> None:
        """Name a cut around some hosts and switches."""
        inside = tuple(hosts)
        nodes = {*switches}
        for host in inside:
            nodes |= self._nodes(host)
        self._cuts.setdefault(family, []).append(
            Cut(name=name, hosts=inside, nodes=frozenset(nodes))
        )

    def finish(self, name: str, *, forwarding: str = "own") -> Topology:
        """The topology, with a cut around each host besides those named.

        Raises
        ------
        FabricError
            If there is no such forwarding, or some host cannot reach another.
        """
        if forwarding not in FORWARDING:
            raise FabricError(
                f"forwarding is one of {', '.join(FORWARDING)}, not {forwarding!r}: "
                "choose one"
            )
        for host in range(self.hosts.number):
            self.cut("host", f"host{host}", [host], [])
        cuts = {family: tuple(made) for family, made in self._cuts.items()}
        return Topology(
            name=name,
            hosts=self.hosts,
            graph=nx.freeze(self.graph),
            cuts={"host": cuts.pop("host"), **cuts},
            forwarding=forwarding,
        )

    def _nodes(self, host: int) -> set[str]:
        made = {slot_name(host, at) for at in range(self.hosts.ranks)}
        made |= {nic_name(host, at) for at in range(self.hosts.nics)}
        return made | ({bus_name(host)} if self.hosts.ranks > 1 else set())

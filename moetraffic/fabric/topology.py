"""Network topology: hosts with ranks and NICs, and the switches and links between them.

Every cable is two directed links, each with a capacity in bytes/s.  A host is

    gpu0 <-> bus <-> gpu1     links inside the host, such as NVLink, for several ranks
    gpu0 <-> nic0 <-> switch  links to the network

and *forwarding* selects the NIC that sends traffic to another host:

``own``
    that of the sending rank;
``rail``
    that of the receiving rank's rail: the bytes first cross the bus to the rank of the
    same number, as NCCL's PXN does (NCCL 2.12, "PCI x NVLink").

Topologies are built in :mod:`.clos` and :mod:`.direct`.

A placement of ranks is ``[W]`` int64: the slot of each rank, where host h has the slots
h g to (h + 1) g - 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations

import networkx as nx
import numpy as np

from moetraffic.arrays import Bool, Float64, Int64
from moetraffic.errors import FabricError
from moetraffic.spelling import check_choice

FORWARDING = ("own", "rail")

NVLINK_4 = 450e9
"""NVLink 4 bytes/s per direction and GPU (NVIDIA H100: 900 GB/s bidirectional)."""


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """Number and size of the identical hosts of a network.

    Raises
    ------
    FabricError
        If there are no hosts, a capacity is not positive, or NICs do not divide ranks.
    """

    number: int  # hosts H
    ranks: int = 1  # slots for ranks per host, g
    nics: int = 0  # per host; 0: one per rank
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
        """Number of slots for ranks on all hosts."""
        return self.number * self.ranks

    def nic_of(self, slot: int) -> int:
        """Return the NIC index of a slot (0 to g - 1) of a host."""
        return slot * self.nics // self.ranks


def at_least(least: int, value: int, name: str) -> None:
    """Raise an error if a count is below a minimum."""
    if value < least:
        raise FabricError(
            f"{name} must be at least {least}, but is {value}: give a larger number"
        )


def positive(value: float, name: str) -> None:
    """Raise an error if a value is not positive and finite."""
    if not (value > 0 and np.isfinite(value)):
        raise FabricError(
            f"{name} is positive and finite, but is {value}: give a number above 0"
        )


def not_negative(value: float, name: str) -> None:
    """Raise an error if a value is negative or not finite."""
    if not 0 <= value < float("inf"):
        raise FabricError(f"{name} is 0 or more and finite, but is {value}: correct it")


def block(ranks: int, hosts: Hosts) -> Int64:
    """Place consecutive ranks on the same host, as launchers number them.

    Examples
    --------
    >>> block(4, Hosts(number=2, ranks=2, nic_bytes_s=1e9)).tolist()
    [0, 1, 2, 3]
    """
    return explicit(range(ranks), hosts)


def strided(ranks: int, hosts: Hosts) -> Int64:
    """Place ranks round-robin: rank r on host ``r mod H``.

    Examples
    --------
    >>> strided(4, Hosts(number=2, ranks=2, nic_bytes_s=1e9)).tolist()
    [0, 2, 1, 3]
    """
    rank = np.arange(ranks)
    return explicit(
        (rank % hosts.number * hosts.ranks + rank // hosts.number).tolist(), hosts
    )


def explicit(slots: Sequence[int], hosts: Hosts) -> Int64:
    """Place each rank on a given slot.

    Examples
    --------
    >>> explicit([3, 0], Hosts(number=2, ranks=2, nic_bytes_s=1e9)).tolist()
    [3, 0]
    """
    if len(slots) > hosts.slots:
        raise FabricError(
            f"{hosts.number} host{'s' * (hosts.number > 1)} with {hosts.ranks} "
            f"rank{'s' * (hosts.ranks > 1)} each have room for {hosts.slots}, but "
            f"there are {len(slots)} ranks: give more hosts or larger ones"
        )
    chosen = np.asarray(slots, np.int64)
    if (
        len(np.unique(chosen)) < len(chosen)
        or not ((chosen >= 0) & (chosen < hosts.slots)).all()
    ):
        raise FabricError(
            f"every rank has a slot of its own, of 0 to {hosts.slots - 1}, but the "
            f"slots are {list(slots)}: name each at most once"
        )
    return chosen


PLACEMENTS: dict[str, Callable[[int, Hosts], Int64]] = {
    "block": block,
    "strided": strided,
}
"""Placement functions by name; :func:`explicit` covers all other placements."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Set of hosts and nodes on one side of a network cut."""

    name: str
    hosts: tuple[int, ...]  # inside the cut
    nodes: frozenset[str]  # graph nodes inside, including those of the hosts


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Network as a directed graph, with its hosts and named cuts."""

    name: str
    hosts: Hosts
    graph: nx.DiGraph  # node: kind; edge: capacity [bytes/s], cost
    cuts: Mapping[str, tuple[Cut, ...]] = field(default_factory=dict)  # by family
    forwarding: str = "own"
    rates: Mapping[str, str] = field(default_factory=dict)  # other than the capacity
    failed: tuple[str, ...] = ()  # names of links that are not in the graph
    without_rates: Topology | None = None  # the same network without ``rates``

    @cached_property
    def links(self) -> tuple[tuple[str, str], ...]:
        """Directed links (from, to); the order of every ``[L]`` array."""
        return tuple(self.graph.edges)

    @cached_property
    def number_of(self) -> dict[tuple[str, str], int]:
        """Index of each link in ``links``."""
        return {link: at for at, link in enumerate(self.links)}

    @cached_property
    def capacity(self) -> Float64:
        """Capacity of each link, ``[L]`` float64, bytes/s."""
        return np.array([self.graph.edges[e]["capacity"] for e in self.links])

    @cached_property
    def uplink_ratios(self) -> Float64:
        """Capacity of a leaf's NICs over that of its uplinks, by uplink, ``[L]``.

        A leaf is a switch with NICs, and its uplinks lead to switches without.  1 for
        other links, and where the network has other than these two tiers.
        """
        graph, kind = self.graph, self.graph.nodes(data="kind")
        leaves = {b for a, b in self.links if (kind[a], kind[b]) == ("nic", "switch")}
        ratios = np.ones(len(self.links))
        for at in np.flatnonzero(self.between_switches):
            if len(leaves & {*self.links[at]}) != 1:
                return ratios
        for leaf in leaves:
            ways = graph.in_edges, graph.out_edges
            for below, above in (ways, ways[::-1]):
                nics, uplinks = 0.0, {}
                for *link, room in below(leaf, data="capacity"):
                    nics += room * ("nic" in (kind[link[0]], kind[link[1]]))
                for *link, room in above(leaf, data="capacity"):
                    if kind[link[0]] == kind[link[1]]:
                        uplinks[self.number_of[link[0], link[1]]] = room
                if uplinks:
                    ratios[[*uplinks]] = nics / sum(uplinks.values())
        return ratios

    @cached_property
    def switches(self) -> tuple[str, ...]:
        """Names of the switches and routers, in the order of creation."""
        return tuple(n for n, kind in self.graph.nodes(data="kind") if kind == "switch")

    @cached_property
    def between_switches(self) -> Bool:
        """Whether both ends of each link are switches, ``[L]`` bool."""
        return self.parts["between switches"]

    @cached_property
    def parts(self) -> dict[str, Bool]:
        """Links inside hosts, of NICs and between switches, ``[L]`` bool, by part."""
        kind = self.graph.nodes(data="kind")
        at_switch = np.array(
            [[kind[end] == "switch" for end in link] for link in self.links], bool
        ).sum(axis=1)
        names = ("inside hosts", "NICs to switches", "between switches")
        return {name: at_switch == ends for ends, name in enumerate(names)}

    def link_name(self, link: int) -> str:
        """Return the readable name of a link, "from -> to"."""
        return " -> ".join(self.links[link])

    def attached(self, host: int, nic: int) -> str:
        """Return the switch that a NIC is connected to; "" if its links have failed."""
        name = nic_name(host, nic)
        for node in (*self.graph.successors(name), *self.graph.predecessors(name)):
            if self.graph.nodes[node]["kind"] == "switch":
                return str(node)
        return ""

    @property
    def nic_bytes_s(self) -> float:
        """Capacity of a NIC, each way: in a torus all links of its router together."""
        kind = self.graph.nodes(data="kind")
        on = [(kind[a], kind[b]) == ("nic", "switch") for a, b in self.links]
        return float(np.median(self.capacity[np.array(on)]))

    @property
    def link_bytes_s(self) -> float:
        """Smallest capacity of a link between switches; NaN if there is none."""
        return float(min(self.capacity[self.between_switches], default=np.nan))

    def crossing(self, cut: Cut) -> tuple[float, float]:
        """Return the outgoing and incoming link capacity of a cut, bytes/s."""
        inside = np.array([[n in cut.nodes for n in link] for link in self.links])
        leaves, enters = inside[:, 0] & ~inside[:, 1], ~inside[:, 0] & inside[:, 1]
        return float(self.capacity[leaves].sum()), float(self.capacity[enters].sum())

    def narrowest(self, cut: Cut) -> tuple[Cut, Cut]:
        """Return cuts of least capacity between the hosts of a cut and all others.

        The first has the least capacity of all that leave these hosts, the second of
        all that enter them (max-flow min-cut: Ford and Fulkerson 1956).
        """
        graph = nx.DiGraph(self.graph)
        for host in range(self.hosts.number):
            side = "inside" if host in cut.hosts else "outside"
            for slot in range(self.hosts.ranks):
                for link in permutations((side, slot_name(host, slot))):
                    graph.add_edge(*link)  # without a capacity: unlimited
        _, (leaving, _) = nx.minimum_cut(graph, "inside", "outside")
        _, (_, entered) = nx.minimum_cut(graph, "outside", "inside")
        one, other = (
            replace(cut, nodes=frozenset(side) - {"inside"})
            for side in (leaving, entered)
        )
        return one, other

    def no_path(self, one: str, other: str) -> FabricError:
        """Return the error of two nodes without a path between them."""
        why, remedy = "", "give it spines or global links"
        if self.failed:
            more = f" and {len(self.failed) - 3} others" * (len(self.failed) > 3)
            names = ", ".join(self.failed[:3]) + more
            why = "with failed links (0 Gbps) "
            remedy = f"give a rate above 0 to {'one of ' * (',' in names)}{names}"
        return FabricError(
            f"every host reaches every other, but {why}no path of {self.name} leads "
            f"from {one} to {other}: {remedy}"
        )

    def as_dict(self) -> dict[str, object]:
        """Return the sizes and rates of the topology as a dictionary."""
        return {
            "topology": self.name,
            "hosts": self.hosts.number,
            "ranks_a_host": self.hosts.ranks,
            "nics_a_host": self.hosts.nics,
            "nic_bytes_s": self.nic_bytes_s,
            "link_bytes_s": self.link_bytes_s,
            "inside_bytes_s": self.hosts.inside_bytes_s,
            "switches": len(self.switches),
            "links": len(self.links),
            "links_between_switches": int(self.between_switches.sum()),
            "forwarding": self.forwarding,
            "failed_links": list(self.failed),
        }


def sides(what: str, number: int) -> str:
    """Name the halves of numbered parts of a network.

    Examples
    --------
    >>> sides("leaf", 2), sides("host", 5)
    ('leaf0 against leaf1', 'host0 to host1 against host2 to host4')
    """
    half = number // 2
    spans = ((0, half - 1), (half, number - 1))
    return " against ".join(
        f"{what}{first}" + f" to {what}{last}" * (last > first) for first, last in spans
    )


def slot_name(host: int, slot: int) -> str:
    """Return the node name of a rank slot."""
    return f"host{host}.gpu{slot}"


def bus_name(host: int) -> str:
    """Return the node name of the bus between the ranks of a host."""
    return f"host{host}.bus"


def nic_name(host: int, nic: int) -> str:
    """Return the node name of a NIC."""
    return f"host{host}.nic{nic}"


class TopologyBuilder:
    """Builder of a topology: starts with the hosts; switches and cables are added."""

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
        """Add a switch node and return its name."""
        self.graph.add_node(name, kind="switch")
        return name

    def cable(self, one: str, other: str, capacity: float, *, cost: int = 1) -> None:
        """Add links in both directions; capacities of parallel cables add up."""
        for a, b in ((one, other), (other, one)):
            had = self.graph.edges[a, b]["capacity"] if self.graph.has_edge(a, b) else 0
            self.graph.add_edge(a, b, capacity=had + capacity, cost=cost)

    def attach(self, host: int, nic: int, switch: str) -> None:
        """Connect a NIC to a switch, at the NIC's capacity."""
        self.cable(nic_name(host, nic), switch, self.hosts.nic_bytes_s)

    def attach_hosts(self, hosts: Iterable[int], switch: str) -> None:
        """Connect all NICs of some hosts to one switch."""
        for host in hosts:
            for nic in range(self.hosts.nics):
                self.attach(host, nic, switch)

    def cut(
        self, family: str, name: str, hosts: Iterable[int], switches: Iterable[str]
    ) -> None:
        """Add a named cut around some hosts and switches to a family of cuts."""
        inside, nodes = tuple(hosts), {*switches}
        for host in inside:
            nodes |= {slot_name(host, at) for at in range(self.hosts.ranks)}
            nodes |= {nic_name(host, at) for at in range(self.hosts.nics)}
            nodes.add(bus_name(host))
        self._cuts.setdefault(family, []).append(
            Cut(name=name, hosts=inside, nodes=frozenset(nodes))
        )

    def finish(self, name: str, *, forwarding: str = "own") -> Topology:
        """Build the topology, with a cut around each host besides the named cuts."""
        check_choice("forwarding", forwarding, FORWARDING, FabricError)
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

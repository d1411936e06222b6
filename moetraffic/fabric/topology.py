"""Networks: hosts with ranks and NICs, and the switches and links between them.

Every cable is two directed links, each with a capacity in bytes/s.  A host is

    gpu0 <-> bus <-> gpu1     links inside the host, such as NVLink, for several ranks
    gpu0 <-> nic0 <-> switch  links to the network

and *forwarding* selects the NIC that sends traffic to another host:

``own``
    that of the sending rank;
``rail``
    that of the receiving rank's rail: the bytes first cross the bus to the rank of the
    same number, as NCCL's PXN does (NCCL 2.12, "PCI x NVLink").

Ranks are placed on slots, ``[W]`` int64: host h has the slots h g to (h + 1) g - 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import networkx as nx
import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from moetraffic.arrays import Bool, Float64, Int64
from moetraffic.errors import FabricError
from moetraffic.spelling import check_choice, nearest

FORWARDING = ("own", "rail")

NVLINK_4 = 450e9
"""NVLink 4 bytes/s per direction and GPU (NVIDIA H100: 900 GB/s bidirectional)."""


def at_least(least: float, value: float, name: str) -> None:
    """Raise an error if a value is below a minimum or not finite."""
    if not least <= value < float("inf"):
        raise FabricError(
            f"{name} must be at least {least} and finite, but is {value}: correct it"
        )


def positive(value: float, name: str) -> None:
    """Raise an error if a value is not positive and finite."""
    if not (value > 0 and np.isfinite(value)):
        raise FabricError(
            f"{name} is positive and finite, but is {value}: give a number above 0"
        )


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
    within = (chosen >= 0) & (chosen < hosts.slots)
    if len(np.unique(chosen)) < len(chosen) or not within.all():
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


def slot_name(host: int, slot: int) -> str:
    """Return the node name of a rank slot."""
    return f"host{host}.gpu{slot}"


def bus_name(host: int) -> str:
    """Return the node name of the bus between the ranks of a host."""
    return f"host{host}.bus"


def nic_name(host: int, nic: int) -> str:
    """Return the node name of a NIC."""
    return f"host{host}.nic{nic}"


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Hosts and switches on one side of a network cut."""

    name: str
    hosts: Sequence[int] = ()
    switches: Iterable[str] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Network:
    """Directed links between named nodes, named cuts, and ranks on slots of hosts."""

    name: str
    hosts: Hosts
    slots: Int64  # [W] slot of each rank
    nodes: tuple[str, ...]  # [N] names; slots, NICs and buses of hosts come first
    kind: tuple[str, ...]  # [N] "slot", "nic", "bus" or "switch"
    tail: Int64  # [L] node where each link begins
    head: Int64  # [L] node where it ends
    capacity: Float64  # [L] bytes/s; 0: failed, no routing uses the link
    cost: Float64  # [L] length of the link in shortest paths
    cuts: Mapping[str, Sequence[Cut]] = field(default_factory=dict)  # by family
    forwarding: str = "own"
    file: str = ""  # that describes it; "": by name or from a graph
    rates: Mapping[str, str] = field(default_factory=dict)  # of single NICs and links

    @classmethod
    def from_graph(
        cls,
        graph: nx.Graph | nx.DiGraph,
        *,
        hosts: Hosts,
        slots: Sequence[int] | None = None,
        name: str = "network",
        cuts: Mapping[str, Sequence[Cut]] | None = None,
        forwarding: str = "own",
    ) -> Network:
        """Build a network from the links between switches and NICs.

        Parameters
        ----------
        graph
            Edges with ``capacity``, bytes/s, and perhaps ``cost`` (1); an undirected
            edge is a cable.  NICs are the nodes ``host0.nic0`` and so on, each on one
            switch; all other nodes are switches.  :meth:`to_graph` gives such a graph.
        hosts
            Whose ranks, NICs and buses are added where the graph lacks them.
        slots
            ``[W]`` slot of each rank; None: one rank on every slot.
        cuts
            By family; the cut around each host is added.
        forwarding
            One of FORWARDING.

        Raises
        ------
        FabricError
            If a NIC is not on one switch, or a link has no capacity.

        Examples
        --------
        >>> cable = nx.Graph()
        >>> cable.add_edge("host0.nic0", "switch", capacity=1e9)
        >>> cable.add_edge("host1.nic0", "switch", capacity=2e9)
        >>> pair = Network.from_graph(cable, hosts=Hosts(number=2, nic_bytes_s=1e9))
        >>> pair.ranks, pair.nic_bytes_s(1, 0)
        (2, (2000000000.0, 2000000000.0))
        """
        check_choice("forwarding", forwarding, FORWARDING, FabricError)
        whole, inside = nx.DiGraph(), hosts.inside_bytes_s
        for host in range(hosts.number):
            for at in range(hosts.ranks):
                whole.add_node(slot_name(host, at), kind="slot")
            for at in range(hosts.nics):
                whole.add_node(nic_name(host, at), kind="nic")
            for at in range(hosts.ranks):
                ends = [nic_name(host, at * hosts.nics // hosts.ranks)]
                if hosts.ranks > 1:
                    whole.add_node(bus_name(host), kind="bus")
                    ends.append(bus_name(host))
                for end in ends:
                    whole.add_edge(slot_name(host, at), end, capacity=inside)
                    whole.add_edge(end, slot_name(host, at), capacity=inside)
        whole.add_nodes_from(node for node in graph if node not in whole)
        whole.add_edges_from(graph.to_directed().edges(data=True))
        nodes = {node: number for number, node in enumerate(whole)}
        kind = tuple(whole.nodes[node].get("kind", "switch") for node in nodes)
        for a, b, room in whole.edges(data="capacity"):
            if not isinstance(room, int | float) or not 0 <= room < np.inf:
                raise FabricError(
                    f"a link has a capacity in bytes/s of 0 or more, but that of {a} "
                    f"-> {b} is {room!r}: set its attribute capacity"
                )
        ends_of = np.array([(nodes[a], nodes[b]) for a, b in whole.edges])
        around = [Cut(name=f"host{h}", hosts=[h]) for h in range(hosts.number)]
        made = cls(
            name=name,
            hosts=hosts,
            slots=explicit(range(hosts.slots) if slots is None else slots, hosts),
            nodes=tuple(map(str, nodes)),
            kind=kind,
            tail=ends_of[:, 0],
            head=ends_of[:, 1],
            capacity=np.array([c for _, _, c in whole.edges(data="capacity")], float),
            cost=np.array(
                [c for _, _, c in whole.edges(data="cost", default=1)], float
            ),
            cuts={"host": around, **{f: c for f, c in (cuts or {}).items() if c}},
            forwarding=forwarding,
        )
        sends = np.bincount(made.tail[made.at_nic], minlength=len(nodes))
        if (sends[made.nics] != 1).any():
            raise FabricError(
                "each NIC is on one switch, but one is on none or several: connect "
                f"every node host0.nic0 to {made.nodes[made.nics[-1, -1]]}"
            )
        return made

    def to_graph(self) -> nx.DiGraph:
        """Return nodes with ``kind``, and links with ``capacity`` and ``cost``."""
        graph = nx.DiGraph(name=self.name)
        for node, kind in zip(self.nodes, self.kind, strict=True):
            graph.add_node(node, kind=kind)
        columns = self.tail, self.head, self.capacity, self.cost
        for a, b, room, cost in zip(*(c.tolist() for c in columns), strict=True):
            graph.add_edge(self.nodes[a], self.nodes[b], capacity=room, cost=cost)
        return graph

    def placed(self, slots: npt.ArrayLike) -> Network:
        """Return the network with ranks on other slots, or with some of them."""
        return replace(self, slots=explicit(np.asarray(slots).tolist(), self.hosts))

    def failed(self, links: Iterable[str | int]) -> Network:
        """Return the network with some links, by name or number, at 0 bytes/s."""
        capacity = self.capacity.copy()
        capacity[[self.link(link) for link in links]] = 0
        return replace(self, capacity=capacity)

    # ---- names and numbers ---------------------------------------------------------

    @property
    def failed_links(self) -> list[str]:
        """Names of the links at 0 bytes/s."""
        return [self.links[link] for link in np.flatnonzero(self.capacity == 0)]

    @property
    def ranks(self) -> int:
        """Number of ranks W."""
        return len(self.slots)

    @cached_property
    def links(self) -> tuple[str, ...]:
        """Names of the links, such as ``leaf0 -> spine1``."""
        ends = zip(self.tail.tolist(), self.head.tolist(), strict=True)
        return tuple(f"{self.nodes[a]} -> {self.nodes[b]}" for a, b in ends)

    @cached_property
    def number(self) -> dict[str, int]:
        """Number of each node, by name."""
        return {name: number for number, name in enumerate(self.nodes)}

    @cached_property
    def number_of(self) -> dict[tuple[int, int], int]:
        """Number of the link between two nodes."""
        ends = zip(self.tail.tolist(), self.head.tolist(), strict=True)
        return {link: number for number, link in enumerate(ends)}

    def link(self, name: str | int) -> int:
        """Return the number of a link.

        Raises
        ------
        FabricError
            If there is no such link.
        """
        if isinstance(name, int):
            return name
        if name not in self.links:
            start = name.partition(" -> ")[0]
            near = [link for link in self.links if link.startswith(f"{start} -> ")]
            remedy = f"links from {start} are {', '.join(near[:8])}"
            raise FabricError(
                f"a link is a name such as {self.links[-1]!r}, but there is no link "
                f"{name[:60]!r}: "
                + (remedy if near else f"{nearest(name, self.links)}correct the name")
            )
        return self.links.index(name)

    @property
    def first_switch(self) -> int:
        """Node of the first switch; switches follow all nodes of hosts."""
        return self.kind.index("switch")

    @cached_property
    def is_switch(self) -> Bool:
        """Whether each node is a switch, ``[N]``."""
        return np.array([kind == "switch" for kind in self.kind])

    @cached_property
    def between_switches(self) -> Bool:
        """Whether both ends of each link are switches, ``[L]``."""
        return np.asarray(self.is_switch[self.tail] & self.is_switch[self.head])

    @cached_property
    def at_nic(self) -> Bool:
        """Whether each link leads from a NIC to a switch, ``[L]``."""
        return np.asarray(~self.is_switch[self.tail] & self.is_switch[self.head])

    @cached_property
    def parts(self) -> dict[str, Bool]:
        """Links inside hosts, of NICs and between switches, ``[L]`` bool, by part."""
        ends = self.is_switch[self.tail].astype(int) + self.is_switch[self.head]
        names = ("inside hosts", "NICs to switches", "between switches")
        return {name: np.asarray(ends == at) for at, name in enumerate(names)}

    @cached_property
    def nics(self) -> Int64:
        """Node of each NIC, ``[H, n]``."""
        shape = self.hosts.number, self.hosts.nics
        nodes = [self.number[nic_name(*nic)] for nic in np.ndindex(shape)]
        return np.array(nodes).reshape(shape)

    @cached_property
    def slot_nodes(self) -> Int64:
        """Node of each slot, ``[H g]``."""
        shape = self.hosts.number, self.hosts.ranks
        return np.array([self.number[slot_name(*slot)] for slot in np.ndindex(shape)])

    @cached_property
    def host_of_node(self) -> Int64:
        """Host of each node, ``[N]``; -1 for a switch."""
        found = np.full(len(self.nodes), -1)
        number, slots, nics = self.hosts.number, self.slot_nodes, self.nics
        found[slots] = np.arange(number).repeat(self.hosts.ranks)
        found[nics] = np.arange(number)[:, None]
        if self.hosts.ranks > 1:
            found[[self.number[bus_name(h)] for h in range(number)]] = np.arange(number)
        return found

    def nic_bytes_s(self, host: int, nic: int) -> tuple[float, float]:
        """Return the rates at which a NIC sends and receives, bytes/s."""
        node = self.nics[host, nic]
        sends = self.capacity[(self.tail == node) & self.is_switch[self.head]]
        receives = self.capacity[(self.head == node) & self.is_switch[self.tail]]
        return float(sends.sum()), float(receives.sum())

    @property
    def host_of_rank(self) -> Int64:
        """Host of each rank, ``[W]``."""
        return np.asarray(self.slots // self.hosts.ranks)

    def rank_grid(self) -> Int64:
        """Return the ranks of each host in the order of their slots, ``[H, g]``.

        Raises
        ------
        FabricError
            If hosts have different numbers of ranks.
        """
        ranks = np.unique(self.host_of_rank, return_counts=True)[1]
        if len(set(ranks.tolist())) > 1:
            raise FabricError(
                "relays inside hosts need as many ranks on each, but hosts have "
                f"{ranks.min()} to {ranks.max()}: give another network"
            )
        return np.argsort(self.slots, kind="stable").reshape(len(ranks), -1)

    # ---- paths inside hosts, and what bounds every routing -------------------------

    @cached_property
    def ends(self) -> tuple[csr_array, Int64, Int64, Int64]:
        """Parts of the path of a pair of ranks that its placement fixes.

        Links inside hosts and of NICs, ``[W*W, L]`` int64 of 0 and 1; the pairs on
        different hosts ``[C]``, numbered s W + d, and the numbers of the switches where
        each enters and leaves the network, ``[C]``.

        Raises
        ------
        FabricError
            If such a link has failed.
        """
        hosts, number = self.hosts, self.number_of
        nic_of = np.arange(hosts.ranks) * hosts.nics // hosts.ranks
        # Step 1: links by host and slot, or by host and NIC.
        shape = hosts.number, hosts.ranks
        out, back, up, down = (np.full(shape, -1) for _ in range(4))
        for host, at in np.ndindex(shape):
            slot = self.number[slot_name(host, at)]
            nic, bus = int(self.nics[host, nic_of[at]]), self.number.get(bus_name(host))
            out[host, at], back[host, at] = number[slot, nic], number[nic, slot]
            if bus is not None:
                up[host, at], down[host, at] = number[slot, bus], number[bus, slot]
        link_of = np.full(len(self.nodes), -1)
        link_of[self.tail[self.at_nic]] = np.flatnonzero(self.at_nic)
        sends = link_of[self.nics]
        switch = self.head[sends]
        ways = zip(switch.ravel().tolist(), self.nics.ravel().tolist(), strict=True)
        receives = np.array([number.get(way, -1) for way in ways]).reshape(sends.shape)
        # Step 2: hosts, places and NICs of each pair of ranks.
        ranks = self.ranks
        host, own = self.host_of_rank, self.slots % hosts.ranks
        pair = np.arange(ranks * ranks)
        s, d = pair // ranks, pair % ranks
        near, far = (host[s] == host[d]) & (s != d), host[s] != host[d]
        rail = self.forwarding == "rail"
        entering = nic_of[own[d]] if rail else nic_of[own[s]]
        # rank whose NIC sends: the source, or (rail) the peer on the receiver's rail
        fellow = np.where(entering == nic_of[own[s]], own[s], own[d])
        passing = far & (fellow != own[s])
        steps = [
            (near | passing, up[host[s], own[s]]),
            (near, down[host[d], own[d]]),
            (passing, down[host[s], fellow]),
            (far, out[host[s], fellow]),
            (far, sends[host[s], entering]),
            (far, receives[host[d], nic_of[own[d]]]),
            (far, back[host[d], own[d]]),
        ]
        row = np.concatenate([pair[used] for used, _ in steps])
        link = np.concatenate([links[used] for used, links in steps])
        cut_off = (link < 0) | (self.capacity[link] == 0)
        if cut_off.any():
            one, other = divmod(int(row[cut_off].min()), ranks)
            raise self.no_path(f"rank {one}", f"rank {other}")
        shape = ranks * ranks, len(self.capacity)
        inside = csr_array((np.ones(len(row), np.int64), (row, link)), shape=shape)
        switch = switch - self.first_switch
        entry, leaving = switch[host[s], entering], switch[host[d], nic_of[own[d]]]
        return inside, pair[far], entry[far], leaving[far]

    def crossing(self, cut: Cut) -> tuple[float, float]:
        """Return the outgoing and incoming link capacity of a cut, bytes/s."""
        switches = [self.number[name] for name in cut.switches]
        inside = np.isin(self.host_of_node, np.asarray(cut.hosts, int))
        inside[switches] = True
        leaves = inside[self.tail] & ~inside[self.head]
        enters = ~inside[self.tail] & inside[self.head]
        return float(self.capacity[leaves].sum()), float(self.capacity[enters].sum())

    @cached_property
    def limits(self) -> dict[str, csr_array]:
        """Seconds that a byte of a pair takes of each port, rank and cut.

        ``[W*W, n]`` by name: ``port``, ``rank``, ``cut host`` and further families; of
        a rank and a cut first out, then in.  See :func:`moetraffic.fabric.bounds`.
        """
        ranks, host = self.ranks, self.host_of_rank
        inside = np.eye(ranks, dtype=bool)  # ranks within each side, [n, W]
        node, size = self.slot_nodes[self.slots], len(self.nodes)
        out = np.bincount(self.tail, self.capacity, size)[node]
        back = np.bincount(self.head, self.capacity, size)[node]
        sides = {"rank": (inside, np.stack((out, back), axis=1))}
        for family, cuts in self.cuts.items():
            within = np.array([np.isin(host, np.asarray(c.hosts, int)) for c in cuts])
            sides[f"cut {family}"] = within, np.array([*map(self.crossing, cuts)])
        with np.errstate(divide="ignore"):
            seconds = np.where(self.capacity > 0, 1 / self.capacity, 0)
            found = {"port": csr_array(self.ends[0].astype(np.float64) * seconds)}
            for name, (within, rates) in sides.items():
                columns = []
                for members, both in zip(within, 1 / rates, strict=True):
                    one, other = np.flatnonzero(members), np.flatnonzero(~members)
                    for s, d, time in ((one, other, both[0]), (other, one, both[1])):
                        columns.append(((s[:, None] * ranks + d).ravel(), time))
                rows = np.concatenate([row for row, _ in columns])
                sizes = [len(row) for row, _ in columns]
                values = np.repeat([time for _, time in columns], sizes)
                column = np.repeat(np.arange(len(columns)), sizes)
                shape = ranks * ranks, len(columns)
                found[name] = csr_array((values, (rows, column)), shape=shape)
        return found

    def no_path(self, one: str, other: str) -> FabricError:
        """Return the error of two nodes without a path between them."""
        failed = self.failed_links
        why, remedy = "", "give it spines or global links"
        if failed:
            more = f" and {len(failed) - 3} others" * (len(failed) > 3)
            why = "with failed links (0 Gbps) "
            remedy = (
                f"give a rate above 0 to {'one of ' * (len(failed) > 1)}"
                f"{', '.join(failed[:3])}{more}"
            )
        return FabricError(
            f"every host reaches every other, but {why}no path of {self.name} leads "
            f"from {one} to {other}: {remedy}"
        )

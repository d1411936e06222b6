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

from collections.abc import Iterable, Mapping, Sequence
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


def placed(placement: str, ranks: int, hosts: Hosts) -> Int64:
    """Compute the slot of each rank, ``[ranks]`` int64.

    ``block``: consecutive ranks on the same host, as launchers number them;
    ``strided``: rank r on host ``r mod H``; else slots with commas, one per rank.

    Examples
    --------
    >>> placed("strided", 4, Hosts(number=2, ranks=2, nic_bytes_s=1e9)).tolist()
    [0, 2, 1, 3]
    """
    rank = np.arange(ranks)
    if placement == "block":
        return explicit(rank.tolist(), hosts)
    if placement == "strided":
        slots = rank % hosts.number * hosts.ranks + rank // hosts.number
        return explicit(slots.tolist(), hosts)
    named = placement.split(",")
    if not all(slot.isdecimal() for slot in named) or len(named) != ranks:
        raise FabricError(
            f"a placement (--slots) is block, strided or {ranks} slots with commas, "
            f"one a rank, not {placement!r}: choose one"
        )
    return explicit([int(slot) for slot in named], hosts)


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
class HostLinks:
    """Links inside hosts and of NICs, by rank; -1: none."""

    up: Int64  # [W] to the bus of its host
    down: Int64  # [W] from the bus
    out: Int64  # [W, g, 4] to a switch, for a receiver of each place on its host
    back: Int64  # [W, 2] from a switch to the rank
    entry: Int64  # [W, g] switch that ``out`` ends at
    leaving: Int64  # [W] switch that ``back`` begins at


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
        whole, g, n = nx.DiGraph(), hosts.ranks, hosts.nics
        for host in range(hosts.number):
            whole.add_nodes_from((slot_name(host, i) for i in range(g)), kind="slot")
            whole.add_nodes_from((nic_name(host, i) for i in range(n)), kind="nic")
            for slot in range(g):
                ends = [nic_name(host, slot * n // g)]
                if g > 1:
                    whole.add_node(bus_name(host), kind="bus")
                    ends.append(bus_name(host))
                for end in ends:
                    inside = {"capacity": hosts.inside_bytes_s}
                    whole.add_edge(slot_name(host, slot), end, **inside)
                    whole.add_edge(end, slot_name(host, slot), **inside)
        whole.add_nodes_from(node for node in graph if node not in whole)
        whole.add_edges_from(graph.to_directed().edges(data=True))
        nodes = {node: number for number, node in enumerate(whole)}
        for a, b, room in whole.edges(data="capacity"):
            if not isinstance(room, int | float) or not 0 <= room < np.inf:
                raise FabricError(
                    f"a link has a capacity in bytes/s of 0 or more, but that of {a} "
                    f"-> {b} is {room!r}: set its attribute capacity"
                )
        pairs = np.array([(nodes[a], nodes[b]) for a, b in whole.edges])
        around = [Cut(name=f"host{h}", hosts=[h]) for h in range(hosts.number)]
        made = cls(
            name=name,
            hosts=hosts,
            slots=explicit(range(hosts.slots) if slots is None else slots, hosts),
            nodes=tuple(map(str, nodes)),
            kind=tuple(whole.nodes[node].get("kind", "switch") for node in nodes),
            tail=pairs[:, 0],
            head=pairs[:, 1],
            capacity=np.array([c for *_, c in whole.edges(data="capacity")], float),
            cost=np.array([c for *_, c in whole.edges(data="cost", default=1)], float),
            cuts={"host": around, **{f: c for f, c in (cuts or {}).items() if c}},
            forwarding=forwarding,
        )
        to_switch = ~made.is_switch[made.tail] & made.is_switch[made.head]
        from_switch = made.is_switch[made.tail] & ~made.is_switch[made.head]
        for links in (made.tail[to_switch], made.head[from_switch]):
            if (np.bincount(links, minlength=len(nodes))[made.nics] != 1).any():
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
    def parts(self) -> dict[str, Bool]:
        """Links inside hosts, of NICs and between switches, ``[L]`` bool, by part."""
        ends = self.is_switch[self.tail].astype(int) + self.is_switch[self.head]
        names = ("inside hosts", "NICs to switches", "between switches")
        return {name: np.asarray(ends == n) for n, name in enumerate(names)}

    @property
    def between_switches(self) -> Bool:
        """Whether both ends of each link are switches, ``[L]``."""
        return self.parts["between switches"]

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

    def nic_bytes_s(self, host: int, nic: int) -> tuple[float, float]:
        """Return the rates at which a NIC sends and receives, bytes/s."""
        node, at_nic = self.nics[host, nic], self.parts["NICs to switches"]
        sends = self.capacity[(self.tail == node) & at_nic]
        receives = self.capacity[(self.head == node) & at_nic]
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

    # ---- paths inside hosts --------------------------------------------------------

    @cached_property
    def host_links(self) -> HostLinks:
        """Links inside hosts and of NICs that the placement fixes, by rank."""
        g, n, number = self.hosts.ranks, self.hosts.nics, self.number_of
        slot = np.arange(self.hosts.slots)
        nic = self.nics[slot // g, slot % g * n // g]  # node of the NIC of each slot
        at_nic = self.parts["NICs to switches"]
        to_switch, from_switch = np.full((2, len(self.nodes)), -1)
        to_switch[self.tail[at_nic]] = np.flatnonzero(at_nic)
        from_switch[self.head[at_nic]] = np.flatnonzero(at_nic)

        def links(tails: Int64, heads: Int64) -> Int64:
            ends = zip(tails.tolist(), heads.tolist(), strict=True)
            return np.array([number.get(pair, -1) for pair in ends])

        node, bus = self.slot_nodes, np.full(len(slot), -1)
        if g > 1:
            buses = [self.number[bus_name(h)] for h in range(self.hosts.number)]
            bus = np.repeat(buses, g)
        up, down = links(node, bus), links(bus, node)
        # Step 1: the slot whose NIC sends, by rank and place of the receiver [W, g].
        own, place = self.slots[:, None], np.arange(g)
        fellow = np.broadcast_to(own, (self.ranks, g))
        if self.forwarding == "rail":
            peer = own // g * g + place
            fellow = np.where(nic[peer] == nic[own], own, peer)
        # Step 2: links on the way.
        passes = fellow != own
        return HostLinks(
            up=up[self.slots],
            down=down[self.slots],
            out=np.stack(
                (
                    np.where(passes, up[own], -1),
                    np.where(passes, down[fellow], -1),
                    links(node, nic)[fellow],
                    to_switch[nic][fellow],
                ),
                axis=2,
            ),
            back=np.stack(
                (from_switch[nic][self.slots], links(nic, node)[self.slots]), axis=1
            ),
            entry=self.head[to_switch[nic][fellow]] - self.first_switch,
            leaving=self.head[to_switch[nic][self.slots]] - self.first_switch,
        )

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
        fixed, ranks, host = self.host_links, self.ranks, self.host_of_rank
        s, d = np.divmod(np.arange(ranks * ranks), ranks)
        place = self.slots[d] % self.hosts.ranks
        near, far = (host[s] == host[d]) & (s != d), host[s] != host[d]
        paths = np.where(
            far[:, None], np.hstack((fixed.out[s, place], fixed.back[d])), -1
        )
        paths[near, :2] = np.stack((fixed.up[s], fixed.down[d]), axis=1)[near]
        row, step = np.nonzero(paths >= 0)
        link = paths[row, step]
        cut_off = self.capacity[link] == 0
        if cut_off.any():
            one, other = divmod(int(row[cut_off].min()), ranks)
            raise self.no_path(f"rank {one}", f"rank {other}")
        shape = ranks * ranks, len(self.capacity)
        inside = csr_array((np.ones(len(row), np.int64), (row, link)), shape=shape)
        entry, leaving = fixed.entry[s, place][far], fixed.leaving[d][far]
        return inside, np.flatnonzero(far), entry, leaving

    def crossing(self, cut: Cut) -> tuple[float, float]:
        """Return the outgoing and incoming link capacity of a cut, bytes/s."""
        inside = np.zeros(len(self.nodes), bool)
        inside[[self.number[name] for name in cut.switches]] = True
        for host in cut.hosts:  # nodes of a host are consecutive
            first = int(self.slot_nodes[host * self.hosts.ranks])
            size = self.hosts.ranks + self.hosts.nics + (self.hosts.ranks > 1)
            inside[first : first + size] = True
        leaves = inside[self.tail] & ~inside[self.head]
        enters = ~inside[self.tail] & inside[self.head]
        return float(self.capacity[leaves].sum()), float(self.capacity[enters].sum())

    def no_path(self, one: str, other: str) -> FabricError:
        """Return the error of two nodes without a path between them."""
        why, remedy = "", "give it spines or global links"
        if failed := self.failed_links:
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

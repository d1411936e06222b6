"""Construct a network from a topology name and options or from a JSON description.

A description is a JSON object: ``topology`` and ``capacity`` (of a NIC, "400Gbps"),
and, where they are not the defaults, ``hosts``, ``ranks_per_host``, ``nics``,
``inside``, ``placement`` and the topology's own options.  ``rates`` are those of single
ranks' NICs (``"rank3": "50Mbps"``), of each NIC of a host (``"host1"``), or of a link
in one direction (``"leaf0 -> spine1"``).  A link of 0 Gbps has failed: it is not part
of the network.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import networkx as nx

from moetraffic.arrays import Int64
from moetraffic.errors import FabricError, MoetrafficError
from moetraffic.spelling import check_choice, nearest
from moetraffic.units import bit_rate, bytes_per_second

from .clos import fat_tree, leaf_spine, rail_optimized, single_switch
from .direct import dragonfly, torus
from .routing import route
from .topology import PLACEMENTS, Hosts, Topology, at_least, explicit, nic_name

TOPOLOGIES: Mapping[str, tuple[str, ...]] = {
    "single": (),
    "leaf-spine": ("leaves", "spines", "oversubscription"),
    "rails": ("leaves", "spines", "oversubscription", "forwarding"),
    "fat-tree": ("k",),
    "torus": ("shape",),
    "dragonfly": ("shape",),
}
"""Options accepted by each topology, by topology name."""

_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "leaves": int,
    "spines": int,
    "oversubscription": (int, float),
    "forwarding": str,
    "k": int,
    "shape": str,
    "hosts": int,
    "ranks_per_host": int,
    "nics": int,
}
"""Kinds of the values of a description, by key."""

_EXPECTED = {int: "a whole number", (int, float): "a number", str: "text"}
"""Kinds in words."""

_KEYS = ("topology", "capacity", "inside", "placement", "rates", *_KINDS)

_WRITTEN = {"k": "ports", "placement": "slots"}
"""Names of options and arguments where they differ from the keys of a description."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """A topology and the placement of the ranks on its hosts."""

    topology: Topology
    slots: Int64  # [R] slot of each rank
    file: str = ""  # that describes it; "": a topology by name


def refuse_options(topology: str, given: Mapping[str, Any], file: str = "") -> None:
    """Raise an error for an unknown topology or an option, or key, it has not."""
    check_choice("the topology", topology, TOPOLOGIES, FabricError)
    for name in sorted(set(given) - set(TOPOLOGIES[topology])):
        takers = [t for t, names in TOPOLOGIES.items() if name in names]
        option = name if file else _WRITTEN.get(name, name)
        raise FabricError(
            f"{option} is of {', '.join(takers)}, but the topology is {topology}: "
            f"leave out {'the key ' if file else '--'}{option}"
        )


def named_topology(
    topology: str, hosts: Hosts, options: Mapping[str, Any], file: str = ""
) -> Topology:
    """Build a topology from its name, hosts and options (a shape as text: "4x4")."""
    refuse_options(topology, options, file)
    if topology == "single":
        return single_switch(hosts)
    if topology == "leaf-spine":
        fitting = next((n for n in range(2, hosts.number) if hosts.number % n == 0), 1)
        two = 2 if hosts.number == 2 else fitting
        return leaf_spine(hosts, **{"leaves": two, **options})
    if topology == "rails":
        more = {name: value for name, value in options.items() if name != "leaves"}
        return rail_optimized(hosts, pods=options.get("leaves", 1), **more)
    if topology == "fat-tree":
        k = 2
        while k**3 // 4 < hosts.number * hosts.nics:
            k += 2
        return fat_tree(hosts, **{"k": k, **options})
    sizes = _shape(options.get("shape"), topology, hosts.number)
    if topology == "torus":
        return torus(hosts, shape=sizes)
    each, routers, links = sizes
    return dragonfly(hosts, hosts_a_router=each, routers=routers, global_links=links)


def _shape(text: str | None, topology: str, hosts: int) -> list[int]:
    """Parse a shape such as "4x4"; the default of a torus is nearly square."""
    if text is None and topology == "torus":
        short = max(n for n in range(1, int(hosts**0.5) + 1) if hosts % n == 0)
        return [hosts // short, short] if short > 1 else [hosts]
    sizes = (text or "").split("x")
    if all(size.isdecimal() for size in sizes) and (
        topology == "torus" or len(sizes) == 3
    ):
        return [int(size) for size in sizes]
    raise FabricError(
        f"the shape of a {topology} is numbers with x between, but "
        f"{'none is given' if text is None else f'is {text!r}'}: give "
        + (
            "--shape 4x4"
            if topology == "torus"
            else "--shape 2x4x2 for 2 hosts a router, 4 routers a group, 2 global "
            'links, or a JSON file with "shape": "2x4x2"'
        )
    )


def placed(placement: str, ranks: int, hosts: Hosts) -> Int64:
    """Compute the slot of each rank under a placement, ``[ranks]`` int64.

    The placement is one of PLACEMENTS, or comma-separated slots, one per rank.
    """
    if placement in PLACEMENTS:
        return PLACEMENTS[placement](ranks, hosts)
    slots = placement.split(",")
    if not all(slot.isdecimal() for slot in slots) or len(slots) != ranks:
        raise FabricError(
            f"a placement (--slots) is {', '.join(PLACEMENTS)} or {ranks} slots with "
            f"commas, one a rank, not {placement!r}: choose one"
        )
    return explicit([int(slot) for slot in slots], hosts)


def load_fabric(
    asked: str,
    ranks: int,
    *,
    capacity: str | float | None = None,
    inside: str | float | None = None,
    hosts: int | None = None,
    ranks_per_host: int | None = None,
    nics: int | None = None,
    leaves: int | None = None,
    spines: int | None = None,
    oversubscription: float | None = None,
    forwarding: str | None = None,
    ports: int | None = None,
    shape: str | None = None,
    slots: str | None = None,
) -> Network:
    """Load a network from the name of a topology or from a JSON file.

    The arguments are the options of ``moetraffic fabric``.  A file describes the whole
    network: none of them is given with it.

    Parameters
    ----------
    asked
        One of TOPOLOGIES, or the path of a JSON file.
    ranks
        Number of ranks to place on the hosts.
    capacity
        Rate of a NIC in each direction, such as "400Gbps" or "50GB/s", or bytes/s.
    inside
        Rate of a rank's link inside a host, likewise; 450 GB/s if None.
    hosts, ranks_per_host, nics
        Number of hosts (as many as the ranks need), and of the ranks (1) and NICs (one
        per rank) of a host.
    leaves, spines, oversubscription, forwarding, ports, shape
        Options of the topology, see TOPOLOGIES; ``ports`` are those of a fat-tree's
        switch, ``shape`` is as "4x4".
    slots
        Placement of the ranks: block, strided, or slots separated by commas; block if
        None.

    Returns
    -------
    Network
        The topology, and the slot of each rank.

    Raises
    ------
    FabricError
        If there is no such name or file, if its content is inconsistent, or if
        arguments are given with a file.

    Examples
    --------
    >>> fabric = load_fabric("leaf-spine", 4, capacity="400Gbps", spines=2)
    >>> fabric.topology.hosts.number, fabric.slots.tolist()
    (4, [0, 1, 2, 3])
    """
    given: dict[str, Any] = {
        **{"capacity": capacity, "inside": inside, "hosts": hosts},
        **{"ranks_per_host": ranks_per_host, "nics": nics, "leaves": leaves},
        **{"spines": spines, "oversubscription": oversubscription},
        **{"forwarding": forwarding, "k": ports, "shape": shape, "placement": slots},
    }
    said = {key: value for key, value in given.items() if value is not None}
    by_name = asked in TOPOLOGIES
    if by_name:
        said["topology"] = asked
    else:
        described = _read(asked)
        if names := [_WRITTEN.get(key, key).replace("_", "-") for key in said]:
            are, them = ("is", "it") if len(names) == 1 else ("are", "them")
            raise FabricError(
                f"{asked} describes the whole network, but --{', --'.join(names)} "
                f"{are} given: leave {them} out"
            )
        said = described
    file = "" if by_name else asked
    with _in(file):
        return _network(said, asked, ranks, file)


@contextmanager
def _in(file: str, key: str = "") -> Iterator[None]:
    """Name the file and key of a description in errors."""
    try:
        yield
    except MoetrafficError as error:
        if not file or str(error).startswith(f"in {file}"):
            raise
        raise FabricError(f"in {file}{f', {key}' * bool(key)}: {error}") from None


def _network(said: dict[str, Any], asked: str, ranks: int, file: str) -> Network:
    """Build a network from the keys of its description."""
    rate, rate_inside = said.pop("capacity", None), said.pop("inside", "450GB/s")
    if rate is None:
        key = '"capacity": "400Gbps"' if file else "--capacity 400Gbps"
        raise FabricError(
            f"the network{f' {asked}' * (not file)} needs the capacity of a NIC, but "
            f"none is given: give {key}"
        )
    bytes_s = {}
    for key, wanted, what in (
        ("capacity", rate, "the capacity of a NIC"),
        ("inside", rate_inside, "the rate inside a host"),
    ):
        if not isinstance(wanted, str if file else (str, int, float)):
            raise FabricError(
                f"a network needs {what} as text, but {key} is {wanted!r}: give a rate "
                "such as 400Gbps"
            )
        with _in(file, key):
            bytes_s[key] = _bytes_s(wanted)
    each = said.pop("ranks_per_host", 1)
    at_least(1, each, "ranks of a host")
    number, own = said.pop("hosts", ceil(ranks / each)), said.pop("nics", each)
    at_least(1, own, "NICs of a host")
    machines = Hosts(
        number=number,
        ranks=each,
        nics=own,
        nic_bytes_s=bytes_s["capacity"],
        inside_bytes_s=bytes_s["inside"],
    )
    placement = str(said.pop("placement", "block"))
    rates = said.pop("rates", {})
    with _in(file, "hosts" if machines.slots < ranks else "placement"):
        where = placed(placement, ranks, machines)
    made = named_topology(str(said.pop("topology", "single")), machines, said, file)
    rated = _rated(made, where, rates, file)
    if rated.failed:
        with _in(file, "rates"):
            route(rated, where, routing="shortest")  # every rank reaches every other
    return Network(topology=rated, slots=where, file=file)


def _bytes_s(rate: str | float) -> float:
    return bytes_per_second(rate) if isinstance(rate, str) else float(rate)


def _rated(topology: Topology, slots: Int64, rates: Any, file: str) -> Topology:
    """Return a topology with the rates of single ranks, hosts and links."""
    if not rates:
        return topology
    if not isinstance(rates, dict):
        raise FabricError(
            f'rates are an object such as {{"rank3": "50Mbps"}}, but are {rates!r}: '
            "correct them"
        )
    hosts, graph = topology.hosts, nx.DiGraph(topology.graph)
    ends: dict[str, list[tuple[str, str]]] = {
        topology.link_name(at): [link] for at, link in enumerate(topology.links)
    }
    nics = {
        (host, nic): nic_name(host, nic)
        for host in range(hosts.number)
        for nic in range(hosts.nics)
    }
    for (host, nic), name in nics.items():
        both = [(name, topology.attached(host, nic))]
        ends.setdefault(f"host{host}", []).extend([*both, *(e[::-1] for e in both)])
    for rank, slot in enumerate(slots.tolist()):
        host, at = divmod(slot, hosts.ranks)
        own = nic_name(host, hosts.nic_of(at))
        switch = topology.attached(host, hosts.nic_of(at))
        ends[f"rank{rank}"] = [(own, switch), (switch, own)]
    owner: dict[tuple[str, str], str] = {}  # whose rate each link has
    for name, rate in sorted(rates.items(), key=lambda item: _specific(item[0])):
        if name not in ends:
            last = f"rank{len(slots) - 1}", f"host{hosts.number - 1}"
            remedy = f"{nearest(name, ends)}correct the name"
            node = name.partition(" -> ")[0]
            if out := [link for link in ends if link.startswith(f"{node} -> ")]:
                rest = f" and {len(out) - 8} others" * (len(out) > 8)
                remedy = f"links from {node} are {', '.join(out[:8])}{rest}"
            if re.fullmatch(r"(host|rank)\d+", name):
                remedy = (
                    "leave this rate out (a folded or selected trace has fewer ranks "
                    "than were captured)"
                )
            raise FabricError(
                f"a rate is of a rank (rank0 to {last[0]}), a host (host0 to "
                f"{last[1]}) or a link (such as {topology.link_name(0)}), but "
                f"{name[:60]!r} is none of these: {remedy}"
            )
        if not isinstance(rate, str):
            raise FabricError(
                f"a rate is text, but that of {name} is {rate!r:.60}: give a rate such "
                "as 50Gbps"
            )
        with _in(file, name):
            room = bytes_per_second(rate, zero=True)
        for link in ends[name]:
            other = owner.setdefault(link, name)
            same = _specific(other) == _specific(name)
            if same and room != bytes_per_second(rates[other], zero=True):
                raise FabricError(
                    f"{other} and {name} have the same NIC, but the rates "
                    f"{rates[other]} and {rate}: give one of them"
                )
            graph.edges[link]["capacity"], owner[link] = room, name
    without = nx.DiGraph(topology.graph)
    failed: dict[str, None] = {}
    for link, name in owner.items():
        if not graph.edges[link]["capacity"]:
            failed[name] = None
            for network in (graph, without):
                network.remove_edge(*link)
    owners = {*owner.values()} - {*failed}
    in_force = {name: rate for name, rate in rates.items() if name in owners}
    # the ratio of the options is not that of links with other rates
    name = re.sub(r",? \S+:1$", "", topology.name)
    made = replace(
        topology,
        name=name,
        graph=nx.freeze(graph),
        rates=in_force,
        failed=tuple(failed),
        without_rates=replace(topology, graph=nx.freeze(without)),
    )
    if "bisection" not in made.cuts:
        return made
    # a boundary through other links may be narrower now
    halves = (made.narrowest(cut) for cut in made.cuts["bisection"])
    cuts = {**made.cuts, "bisection": tuple(cut for both in halves for cut in both)}
    return replace(made, cuts=cuts)


def _specific(name: str) -> int:
    """Order the names of rates: a host, a rank, a link; the last one is in force."""
    return 2 if " -> " in name else int(name.startswith("rank"))


def other_rates(topology: Topology, most: int = 3) -> list[str]:
    """List failed links, and the rates of others than the capacity of a NIC.

    At most ``most``, then the number of the rest: ``["rank2 30 Mbps"]``, ``["host1 2
    NICs of 25 Gbps"]``, ``["leaf0 -> spine0 failed"]``.
    """
    nics = topology.hosts.nics
    several = f" {nics} NICs of" * (nics > 1)
    named = [f"{name} failed" for name in topology.failed]
    named += [
        f"{name}{several * (_specific(name) == 0)} {bit_rate(bytes_per_second(rate))}"
        for name, rate in topology.rates.items()
    ]
    more = len(named) - most
    rest = [f"{more} other rate{'s' * (more > 1)}"] if more > 0 else []
    return [*named[:most], *rest]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object of JSON whose keys differ, or raise ValueError."""
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f"the key {name[:60]!r} is repeated")
        made[name] = value
    return made


def _read(asked: str) -> dict[str, Any]:
    try:
        text = Path(asked).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise FabricError(
            f"a network is one of {', '.join(TOPOLOGIES)}, or a JSON file, but "
            f"{asked!r} cannot be read ({why}): {nearest(asked, TOPOLOGIES)}"
            "choose a name, or write such a file"
        ) from None
    try:
        said = json.loads(text, object_pairs_hook=_once)
        if not isinstance(said, dict):
            raise ValueError("it is another value")
    except ValueError as error:
        raise FabricError(
            f"the description of a network is a JSON object, but {asked} is none "
            f"({error}): correct it"
        ) from None
    if unknown := [name for name in said if name not in _KEYS]:
        raise FabricError(
            f"in {asked}, {unknown[0][:60]!r} is no key of a network, which has "
            f"{', '.join(_KEYS)}: correct it"
        )
    for name, kind in _KINDS.items():
        if name in said and (
            not isinstance(said[name], kind) or isinstance(said[name], bool)
        ):
            raise FabricError(
                f"in {asked}, {name} is {_EXPECTED[kind]}, not {said[name]!r:.60}: "
                f"give {_EXPECTED[kind]}"
            )
    return said

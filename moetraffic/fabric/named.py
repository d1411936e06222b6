"""Networks by the name of a topology and its options, or by a JSON description.

A description is a JSON object whose keys are the options of ``moetraffic fabric``:
``topology`` and ``capacity`` (of a NIC, "400Gbps"), and those that are not the
defaults.  ``rates`` are those of single ranks' NICs (``"rank3": "50Mbps"``), of each
NIC of a host (``"host1"``), or of a link in one direction (``"leaf0 -> spine1"``).  A
link of 0 Gbps has failed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.errors import FabricError, MoetrafficError
from moetraffic.spelling import check_choice, nearest
from moetraffic.units import bit_rate, bytes_per_second

from .builders import (
    dragonfly,
    fat_tree,
    leaf_spine,
    rail_optimized,
    single_switch,
    torus,
)
from .routing import route
from .topology import Hosts, Network, at_least, placed

TOPOLOGIES: Mapping[str, tuple[str, ...]] = {
    "single": (),
    "leaf-spine": ("leaves", "spines", "oversubscription"),
    "rails": ("leaves", "spines", "oversubscription", "forwarding"),
    "fat-tree": ("ports",),
    "torus": ("shape",),
    "dragonfly": ("shape",),
}
"""Options accepted by each topology, by topology name."""

KEYS: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    **dict.fromkeys(("topology", "capacity", "inside"), (str, "text")),
    **dict.fromkeys(("slots", "forwarding", "shape"), (str, "text")),
    **dict.fromkeys(("hosts", "ranks_per_host", "nics"), (int, "a whole number")),
    **dict.fromkeys(("leaves", "spines", "ports"), (int, "a whole number")),
    "oversubscription": ((int, float), "a number"),
    "rates": (dict, "an object"),
}
"""Keys of a description, and the type of their values."""


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

    Raises
    ------
    FabricError
        If there is no such name or file, if its content is inconsistent, or if
        arguments are given with a file.

    Examples
    --------
    >>> network = load_fabric("leaf-spine", 4, capacity="400Gbps", spines=2)
    >>> network.hosts.number, network.slots.tolist()
    (4, [0, 1, 2, 3])
    """
    given: dict[str, Any] = {
        **{"capacity": capacity, "inside": inside, "hosts": hosts},
        **{"ranks_per_host": ranks_per_host, "nics": nics, "leaves": leaves},
        **{"spines": spines, "oversubscription": oversubscription},
        **{"forwarding": forwarding, "ports": ports, "shape": shape, "slots": slots},
    }
    given = {key: value for key, value in given.items() if value is not None}
    if asked in TOPOLOGIES:
        return _network({**given, "topology": asked}, ranks)
    described = _read(asked)
    if given:
        names = ", --".join(key.replace("_", "-") for key in given)
        raise FabricError(
            f"{asked} describes the whole network, but --{names} is given: leave out "
            "what the file has"
        )
    try:
        return replace(_network(described, ranks), file=asked)
    except MoetrafficError as error:
        raise FabricError(f"in {asked}: {error}") from None


def _read(path: str) -> dict[str, Any]:
    """Read the description of a network, and check its keys and their types."""
    try:
        said = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise FabricError(
            f"a network is one of {', '.join(TOPOLOGIES)}, or a JSON file, but "
            f"{path!r} cannot be read ({error.strerror}): "
            f"{nearest(path, TOPOLOGIES)}choose a name, or write such a file"
        ) from None
    except ValueError as error:
        said = error
    if not isinstance(said, dict):
        raise FabricError(
            f"a network is described by a JSON object, but {path} has none "
            f"({said!s:.80}): correct it"
        )
    for name, value in said.items():
        if name not in KEYS:
            raise FabricError(
                f"in {path}, {name[:60]!r} is no key of a network, which has "
                f"{', '.join(KEYS)}: {nearest(name, KEYS)}correct it"
            )
        kind, described = KEYS[name]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise FabricError(
                f"in {path}, {name} is {described}, not {value!r:.60}: give {described}"
            )
    return said


def _network(options: dict[str, Any], ranks: int) -> Network:
    """Build a network from its options, and place the ranks."""
    if "capacity" not in options:
        raise FabricError(
            "a network needs the capacity of a NIC, but none is given: give --capacity "
            '400Gbps, or the key "capacity" in a file'
        )
    capacity, inside = (
        bytes_per_second(rate) if isinstance(rate, str) else rate
        for rate in (options.pop("capacity"), options.pop("inside", "450GB/s"))
    )
    per_host = options.pop("ranks_per_host", 1)
    at_least(1, per_host, "ranks of a host")
    nics = options.pop("nics", per_host)
    at_least(1, nics, "NICs of a host")
    hosts = Hosts(
        number=options.pop("hosts", ceil(ranks / per_host)),
        ranks=per_host,
        nics=nics,
        nic_bytes_s=capacity,
        inside_bytes_s=inside,
    )
    slots = placed(options.pop("slots", "block"), ranks, hosts)
    rates = options.pop("rates", {})
    network = _built(options.pop("topology", "single"), hosts, options)
    network = replace(network, slots=slots)
    if rates:
        network = _rated(network, rates)
        route(network, routing="shortest")  # every rank reaches every other
    return network


def _built(topology: str, hosts: Hosts, options: dict[str, Any]) -> Network:
    """Build a network from the options of its topology (a shape as text: "4x4")."""
    check_choice("the topology", topology, TOPOLOGIES, FabricError)
    for name in sorted(set(options) - set(TOPOLOGIES[topology])):
        takers = [other for other, names in TOPOLOGIES.items() if name in names]
        raise FabricError(
            f"{name} is of {', '.join(takers)}, but the topology is {topology}: "
            f"leave out --{name}, or the key of the file"
        )
    number = hosts.number
    if topology == "single":
        return single_switch(hosts)
    if topology == "leaf-spine":
        fitting = next((n for n in range(2, number) if number % n == 0), 1)
        leaves = options.pop("leaves", 2 if number == 2 else fitting)
        return leaf_spine(hosts, leaves=leaves, **options)
    if topology == "rails":
        return rail_optimized(hosts, pods=options.pop("leaves", 1), **options)
    if topology == "fat-tree":
        nics = number * hosts.nics
        fitting = next(k for k in range(2, 10**6, 2) if k**3 // 4 >= nics)
        return fat_tree(hosts, k=options.get("ports", fitting))
    short = max(n for n in range(1, int(number**0.5) + 1) if number % n == 0)
    square = f"{number // short}x{short}" if short > 1 else str(number)
    shape = options.get("shape", square if topology == "torus" else "")
    sizes = shape.split("x")
    right = all(map(str.isdecimal, sizes))
    if not right or (topology == "dragonfly" and len(sizes) != 3):
        example = "4x4"
        if topology == "dragonfly":
            example = "2x4x2 for 2 hosts a router, 4 routers a group, 2 global links"
        raise FabricError(
            f"the shape of a {topology} is numbers with x between, but is {shape!r}: "
            f"give --shape {example}"
        )
    lengths = [int(size) for size in sizes]
    if topology == "torus":
        return torus(hosts, shape=lengths)
    return dragonfly(
        hosts,
        hosts_a_router=lengths[0],
        routers=lengths[1],
        global_links=lengths[2],
    )


def _rated(network: Network, rates: Mapping[str, Any]) -> Network:
    """Return a network with the rates of single ranks, hosts and links.

    That of a link is used before that of a rank, and this before that of its host.
    """
    hosts = network.hosts
    at_nic = np.flatnonzero(network.parts["NICs to switches"])
    nic = np.minimum(network.tail, network.head)[at_nic]  # nodes of hosts come first
    links = {node: at_nic[nic == node].tolist() for node in network.nics.ravel()}
    ends = {
        f"host{host}": [link for node in nodes for link in links[node]]
        for host, nodes in enumerate(network.nics)
    }
    for rank, slot in enumerate(network.slots.tolist()):
        host, place = divmod(slot, hosts.ranks)
        node = network.nics[host, place * hosts.nics // hosts.ranks]
        ends[f"rank{rank}"] = links[node]
    ends |= {name: [number] for number, name in enumerate(network.links)}
    capacity = network.capacity.copy()
    owner: dict[int, str] = {}  # whose rate each link has
    for name in sorted(rates, key=_precedence):
        if name not in ends:
            raise FabricError(
                f"a rate is of a rank (rank0 to rank{network.ranks - 1}), a host "
                f"(host0 to host{hosts.number - 1}) or a link (as {network.links[0]}), "
                f"but {name[:60]!r} is none of these: {nearest(name, ends)}correct the "
                "name (a folded trace has fewer ranks than were captured)"
            )
        if not isinstance(rates[name], str):
            raise FabricError(
                f"a rate is text, but that of {name} is {rates[name]!r:.60}: give a "
                "rate such as 50Gbps"
            )
        room = bytes_per_second(rates[name], zero=True)
        for link in ends[name]:
            other = owner.get(link, name)
            same = _precedence(other) == _precedence(name) and other != name
            if same and room != capacity[link]:
                raise FabricError(
                    f"{other} and {name} have the same NIC, but the rates "
                    f"{rates[other]} and {rates[name]}: give one of them"
                )
            capacity[link] = room
            owner[link] = name
    used = {*owner.values()}
    return replace(
        network,
        # the ratio of the options is not that of links with other rates
        name=re.sub(r",? \S+:1$", "", network.name),
        capacity=capacity,
        rates={name: rate for name, rate in rates.items() if name in used},
    )


def _precedence(name: str) -> int:
    """Order the names of rates: a host, a rank, a link; the last one is in force."""
    return 2 if " -> " in name else int(name.startswith("rank"))


def other_rates(network: Network, most: int = 3) -> list[str]:
    """List failed links, and the rates of others than the capacity of a NIC.

    At most ``most``, then the number of the rest: ``["rank2 30 Mbps"]``, ``["host1 2
    NICs of 25 Gbps"]``, ``["leaf0 -> spine0 failed"]``.
    """
    rates = {n: bytes_per_second(r, zero=True) for n, r in network.rates.items()}
    nics = f" {network.hosts.nics} NICs of" * (network.hosts.nics > 1)
    named = [f"{name} failed" for name, rate in rates.items() if not rate]
    named += [
        f"{name}{nics * (_precedence(name) == 0)} {bit_rate(rate)}"
        for name, rate in rates.items()
        if rate
    ]
    more = len(named) - most
    rest = [f"{more} other rate{'s' * (more > 1)}"] * (more > 0)
    return [*named[:most], *rest]

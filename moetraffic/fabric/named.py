"""Networks by the name of a topology and its options, or by a JSON description.

A description is a JSON object: ``topology`` and ``capacity`` (of a NIC, "400Gbps"),
and, where they are not the defaults, ``hosts``, ``ranks_per_host``, ``nics``,
``inside``, ``placement`` and the topology's own options.  ``rates`` are those of single
ranks' NICs (``"rank3": "50Mbps"``), of each NIC of a host (``"host1"``), or of a link
in one direction (``"leaf0 -> spine1"``).  A link of 0 Gbps has failed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

from moetraffic.arrays import Int64
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
from .topology import PLACEMENTS, Hosts, Network, at_least, explicit

TOPOLOGIES: Mapping[str, tuple[str, ...]] = {
    "single": (),
    "leaf-spine": ("leaves", "spines", "oversubscription"),
    "rails": ("leaves", "spines", "oversubscription", "forwarding"),
    "fat-tree": ("k",),
    "torus": ("shape",),
    "dragonfly": ("shape",),
}
"""Options accepted by each topology, by topology name."""

_WHOLE = ("leaves", "spines", "k", "hosts", "ranks_per_host", "nics")
_TEXTS = ("topology", "capacity", "inside", "placement", "forwarding", "shape")
_KEYS = (*_TEXTS, *_WHOLE, "oversubscription", "rates")

_WRITTEN = {"k": "ports", "placement": "slots"}
"""Names of options and arguments where they differ from the keys of a description."""


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
        **{"forwarding": forwarding, "k": ports, "shape": shape, "placement": slots},
    }
    said = {key: value for key, value in given.items() if value is not None}
    if asked in TOPOLOGIES:
        return _network({**said, "topology": asked}, ranks, "")
    described = _read(asked)
    if names := [_WRITTEN.get(key, key).replace("_", "-") for key in said]:
        are, them = ("is", "it") if len(names) == 1 else ("are", "them")
        raise FabricError(
            f"{asked} describes the whole network, but --{', --'.join(names)} "
            f"{are} given: leave {them} out"
        )
    with _in(asked):
        return _network(described, ranks, asked)


@contextmanager
def _in(file: str, key: str = "") -> Iterator[None]:
    """Name the file and key of a description in errors."""
    try:
        yield
    except MoetrafficError as error:
        if not file or str(error).startswith(f"in {file}"):
            raise
        raise FabricError(f"in {file}{f', {key}' * bool(key)}: {error}") from None


def _network(said: dict[str, Any], ranks: int, file: str) -> Network:
    """Build a network from the keys of its description."""
    if "capacity" not in said:
        key = '"capacity": "400Gbps"' if file else "--capacity 400Gbps"
        raise FabricError(
            f"a network needs the capacity of a NIC, but none is given: give {key}"
        )
    bytes_s = {}
    for key in ("capacity", "inside"):
        rate = said.pop(key, "450GB/s")
        with _in(file, key):
            bytes_s[key] = bytes_per_second(rate) if isinstance(rate, str) else rate
    each = said.pop("ranks_per_host", 1)
    at_least(1, each, "ranks of a host")
    nics = said.pop("nics", each)
    at_least(1, nics, "NICs of a host")
    hosts = Hosts(
        number=said.pop("hosts", ceil(ranks / each)),
        ranks=each,
        nics=nics,
        nic_bytes_s=bytes_s["capacity"],
        inside_bytes_s=bytes_s["inside"],
    )
    placement, rates = said.pop("placement", "block"), said.pop("rates", {})
    with _in(file, "hosts" if hosts.slots < ranks else "placement"):
        slots = placed(placement, ranks, hosts)
    topology = said.pop("topology", "single")
    network = replace(_built(topology, hosts, said, file).placed(slots), file=file)
    if not rates:
        return network
    with _in(file, "rates"):
        network = _rated(network, rates, file)
        route(network, routing="shortest")  # every rank reaches every other
    return network


def _built(topology: str, hosts: Hosts, options: dict[str, Any], file: str) -> Network:
    """Build a network from the options of its topology (a shape as text: "4x4")."""
    check_choice("the topology", topology, TOPOLOGIES, FabricError)
    for name in sorted(set(options) - set(TOPOLOGIES[topology])):
        takers = [other for other, names in TOPOLOGIES.items() if name in names]
        option = name if file else _WRITTEN.get(name, name)
        raise FabricError(
            f"{option} is of {', '.join(takers)}, but the topology is {topology}: "
            f"leave out {'the key ' if file else '--'}{option}"
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
        fitting = next(
            k for k in range(2, 10**6, 2) if k**3 // 4 >= number * hosts.nics
        )
        return fat_tree(hosts, k=options.get("k", fitting))
    sizes = _shape(options.get("shape"), topology, number)
    if topology == "torus":
        return torus(hosts, shape=sizes)
    per_router, routers, links = sizes
    return dragonfly(
        hosts, hosts_a_router=per_router, routers=routers, global_links=links
    )


def _shape(text: str | None, topology: str, hosts: int) -> list[int]:
    """Parse a shape such as "4x4"; the default of a torus is nearly square."""
    if text is None and topology == "torus":
        short = max(n for n in range(1, int(hosts**0.5) + 1) if hosts % n == 0)
        return [hosts // short, short] if short > 1 else [hosts]
    sizes = (text or "").split("x")
    if all(map(str.isdecimal, sizes)) and (topology == "torus" or len(sizes) == 3):
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


def _rated(network: Network, rates: Any, file: str) -> Network:
    """Return a network with the rates of single ranks, hosts and links.

    That of a link is used before that of a rank, and this before that of its host.
    """
    if not isinstance(rates, dict):
        raise FabricError(
            f'rates are an object such as {{"rank3": "50Mbps"}}, but are {rates!r}: '
            "correct them"
        )
    hosts = network.hosts
    ends = {name: [number] for number, name in enumerate(network.links)}
    touching = {int(node): list[int]() for node in network.nics.ravel()}
    for number, pair in enumerate(
        zip(network.tail.tolist(), network.head.tolist(), strict=True)
    ):
        nic = [node for node in pair if node in touching]
        if nic and network.is_switch[[*pair]].any():
            touching[nic[0]].append(number)
    for host in range(hosts.number):
        nodes = network.nics[host].tolist()
        ends[f"host{host}"] = [link for node in nodes for link in touching[node]]
    for rank, slot in enumerate(network.slots.tolist()):
        host, at = divmod(slot, hosts.ranks)
        node = int(network.nics[host, at * hosts.nics // hosts.ranks])
        ends[f"rank{rank}"] = touching[node]
    capacity = network.capacity.copy()
    owner: dict[int, str] = {}  # whose rate each link has
    for name, rate in sorted(rates.items(), key=lambda item: _specific(item[0])):
        if name not in ends:
            raise _no_end(name, network, ends)
        if not isinstance(rate, str):
            raise FabricError(
                f"a rate is text, but that of {name} is {rate!r:.60}: give a rate such "
                "as 50Gbps"
            )
        with _in(file, name):
            room = bytes_per_second(rate, zero=True)
        for link in ends[name]:
            other = str(owner.get(link, name))
            same = _specific(other) == _specific(name) and other != name
            if same and room != capacity[link]:
                raise FabricError(
                    f"{other} and {name} have the same NIC, but the rates "
                    f"{rates[other]} and {rate}: give one of them"
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


def _no_end(name: str, network: Network, ends: Mapping[str, Any]) -> FabricError:
    """Return the error of a rate whose rank, host or link does not exist."""
    remedy = f"{nearest(name, ends)}correct the name"
    node = name.partition(" -> ")[0]
    if out := [link for link in network.links if link.startswith(f"{node} -> ")]:
        rest = f" and {len(out) - 8} others" * (len(out) > 8)
        remedy = f"links from {node} are {', '.join(out[:8])}{rest}"
    if re.fullmatch(r"(host|rank)\d+", name):
        remedy = (
            "leave this rate out (a folded or selected trace has fewer ranks "
            "than were captured)"
        )
    return FabricError(
        f"a rate is of a rank (rank0 to rank{network.ranks - 1}), a host (host0 to "
        f"host{network.hosts.number - 1}) or a link (such as {network.links[0]}), but "
        f"{name[:60]!r} is none of these: {remedy}"
    )


def _specific(name: str) -> int:
    """Order the names of rates: a host, a rank, a link; the last one is in force."""
    return 2 if " -> " in name else int(name.startswith("rank"))


def other_rates(network: Network, most: int = 3) -> list[str]:
    """List failed links, and the rates of others than the capacity of a NIC.

    At most ``most``, then the number of the rest: ``["rank2 30 Mbps"]``, ``["host1 2
    NICs of 25 Gbps"]``, ``["leaf0 -> spine0 failed"]``.
    """
    nics = network.hosts.nics
    rates = {n: bytes_per_second(r, zero=True) for n, r in network.rates.items()}
    several = f" {nics} NICs of" * (nics > 1)
    named = [f"{name} failed" for name, rate in rates.items() if not rate]
    named += [
        f"{name}{several * (_specific(name) == 0)} {bit_rate(rate)}"
        for name, rate in rates.items()
        if rate
    ]
    more = len(named) - most
    rest = [f"{more} other rate{'s' * (more > 1)}"] if more > 0 else []
    return [*named[:most], *rest]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object of JSON whose keys differ, or raise ValueError."""
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"the key {name[:60]!r} is repeated")
    return dict(pairs)


def _read(asked: str) -> dict[str, Any]:
    """Read the description of a network, and check its keys and their types."""
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
    for name, value in said.items():
        if name not in _KEYS:
            raise FabricError(
                f"in {asked}, {name[:60]!r} is no key of a network, which has "
                f"{', '.join(_KEYS)}: correct it"
            )
        kind: tuple[type | tuple[type, ...], str] | None = None
        if name in _WHOLE:
            kind = int, "a whole number"
        elif name in _TEXTS:
            kind = str, "text"
        elif name == "oversubscription":
            kind = (int, float), "a number"
        if kind and (not isinstance(value, kind[0]) or isinstance(value, bool)):
            raise FabricError(
                f"in {asked}, {name} is {kind[1]}, not {value!r:.60}: give {kind[1]}"
            )
    return said

"""Six topologies: single switch, leaf-spine, rails, fat-tree, torus, dragonfly.

References
----------
C. Clos, "A Study of Non-Blocking Switching Networks", Bell Syst. Tech. J. 32 (1953).
M. Al-Fares, A. Loukissas, A. Vahdat, "A Scalable, Commodity Data Center Network
Architecture", SIGCOMM 2008: the k-ary fat-tree.
W. Wang et al., "Rail-only: A Low-Cost High-Performance Network for Training LLMs with
Trillion Parameters", arXiv 2307.12169: rails, with and without spines.
W. J. Dally, B. Towles, "Principles and Practices of Interconnection Networks" (2004),
chapter 5: k-ary n-cubes; the bisection of a torus is ``2 k^(n-1)`` links each way.
J. Kim, W. J. Dally, S. Scott, D. Abts, "Technology-Driven, Highly-Scalable Dragonfly
Topology", ISCA 2008: groups of a routers, p terminals and h global links a router, at
most ``a h + 1`` groups; a minimal path is local, global, local.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from math import prod

import networkx as nx
import numpy as np

from moetraffic.errors import FabricError

from .topology import Cut, Hosts, Network, at_least, nic_name, positive

GLOBAL_COST = 3
"""Cost of a global link, so that two of them exceed a local-global-local path."""


def _cable(graph: nx.Graph, one: str, other: str, rate: float, cost: int = 1) -> None:
    """Add a cable; capacities of parallel cables add up."""
    had = graph.get_edge_data(one, other, {}).get("capacity", 0)
    graph.add_edge(one, other, capacity=had + rate, cost=cost)


def _half(what: str, number: int, size: int, switches: Sequence[str] = ()) -> list[Cut]:
    """Cut numbered parts of ``size`` hosts each into halves; none if there is one.

    Examples
    --------
    >>> _half("leaf", 5, 2)[0].name
    'leaf0 to leaf1 against leaf2 to leaf4'
    """
    half = number // 2
    if not half:
        return []
    name = " against ".join(
        f"{what}{first}" + f" to {what}{last}" * (last > first)
        for first, last in ((0, half - 1), (half, number - 1))
    )
    return [Cut(name=name, hosts=range(half * size), switches=switches)]


def single_switch(hosts: Hosts) -> Network:
    """Build a network with all NICs on one non-blocking switch."""
    graph = nx.Graph()
    for nic in product(range(hosts.number), range(hosts.nics)):
        _cable(graph, nic_name(*nic), "switch", hosts.nic_bytes_s)
    cuts = {"bisection": _half("host", hosts.number, 1)}
    return Network.from_graph(graph, hosts=hosts, name="single switch", cuts=cuts)


def leaf_spine(
    hosts: Hosts, *, leaves: int, oversubscription: float = 1.0, spines: int = 0
) -> Network:
    """Build a leaf-spine network in which each leaf connects to every spine.

    Every leaf has as many hosts.  The capacity of its NICs is ``oversubscription``
    times that of its uplinks; at 1 the network is rearrangeably non-blocking.  Without
    a number of ``spines``, an uplink matches a NIC.

    Raises
    ------
    FabricError
        If the hosts do not divide evenly among leaves, or a size is impossible.
    """
    size = _share(hosts, leaves, "leaves")
    below = {
        f"leaf{leaf}": list(
            product(range(leaf * size, (leaf + 1) * size), range(hosts.nics))
        )
        for leaf in range(leaves)
    }
    half = _half("leaf", leaves, size, [*below][: leaves // 2])
    cuts = [
        Cut(name=leaf, hosts=sorted({h for h, _ in nics}), switches=[leaf])
        for leaf, nics in below.items()
    ]
    return Network.from_graph(
        _two_tiers(below, hosts.nic_bytes_s, oversubscription, spines),
        hosts=hosts,
        name=f"leaf-spine {oversubscription:g}:1",
        cuts={"leaf": cuts, "bisection": half or _half("host", hosts.number, 1)},
    )


def rail_optimized(
    hosts: Hosts,
    *,
    pods: int = 1,
    oversubscription: float = 1.0,
    spines: int = 0,
    forwarding: str = "rail",
) -> Network:
    """Build a rail-optimized network: NIC i of all hosts of a pod shares a leaf.

    Each leaf connects to every spine, as in :func:`leaf_spine`.  With ``rail``
    forwarding, traffic within a pod stays on its rail; with ``own``, traffic between
    different rails crosses the spines.
    """
    size = _share(hosts, pods, "pods")
    below, cuts = {}, []
    for pod in range(pods):
        members = range(pod * size, (pod + 1) * size)
        prefix = f"pod{pod}." if pods > 1 else ""
        rails = [f"{prefix}rail{nic}" for nic in range(hosts.nics)]
        for nic, rail in enumerate(rails):
            below[rail] = [(host, nic) for host in members]
        cuts.append(Cut(name=f"pod{pod}", hosts=members, switches=rails))
    half = _half("pod", pods, size, [*below][: pods // 2 * hosts.nics])
    families = {
        "pod": cuts if pods > 1 else [],
        "bisection": half or _half("host", hosts.number, 1),
    }
    return Network.from_graph(
        _two_tiers(below, hosts.nic_bytes_s, oversubscription, spines),
        hosts=hosts,
        name=f"rail-optimized, {oversubscription:g}:1",
        cuts=families,
        forwarding=forwarding,
    )


def _share(hosts: Hosts, parts: int, name: str) -> int:
    """Return the number of hosts per part, or raise if they do not divide evenly."""
    at_least(1, parts, f"number of {name} (--leaves)")
    if hosts.number % parts:
        raise FabricError(
            f"{name} share the hosts evenly, but there are {hosts.number} hosts for "
            f"{parts} {name}: choose a divisor of {hosts.number}, or fewer ranks a host"
        )
    return hosts.number // parts


def _two_tiers(
    below: Mapping[str, Sequence[tuple[int, int]]],
    rate: float,
    oversubscription: float,
    spines: int,
) -> nx.Graph:
    """Connect the NICs of each leaf to it, and all leaves to all spines."""
    positive(oversubscription, "oversubscription")
    at_least(0, spines, "spines")
    uplinks = len(next(iter(below.values()))) / oversubscription  # in NICs
    number = spines or max(1, round(uplinks))
    graph = nx.Graph()
    graph.add_nodes_from(f"spine{spine}" for spine in range(number))
    for leaf, nics in below.items():
        for nic in nics:
            _cable(graph, nic_name(*nic), leaf, rate)
        for spine in range(number):
            _cable(graph, leaf, f"spine{spine}", uplinks * rate / number)
    return graph


def fat_tree(hosts: Hosts, *, k: int) -> Network:
    """Build the k-ary fat-tree of Al-Fares et al., all links at the NIC capacity.

    It has k pods of k/2 edge and k/2 aggregation switches and (k/2)^2 cores: 5 k^2/4
    switches for k^3/4 NICs, at full bisection.  Aggregation switch a of a pod reaches
    the cores a k/2 to (a + 1) k/2 - 1.  Hosts fill the edge switches one after another.
    """
    half, places, nics = k // 2, k**3 // 4, hosts.number * hosts.nics
    if k < 2 or k % 2:
        raise FabricError(
            "a fat-tree's switches have an even number of ports, but k (--ports) is "
            f"{k}: give an even number of 2 or more"
        )
    if nics > places:
        raise FabricError(
            f"a fat-tree of {k}-port switches takes {places} NICs, but there are "
            f"{nics}: choose a larger k (--ports)"
        )
    graph, rate = nx.Graph(), hosts.nic_bytes_s
    edges = [[f"pod{p}.edge{n}" for n in range(half)] for p in range(k)]
    aggs = [[f"pod{p}.agg{n}" for n in range(half)] for p in range(k)]
    for pod in range(k):
        graph.add_nodes_from(edges[pod] + aggs[pod])
        for above, edge in product(aggs[pod], edges[pod]):
            _cable(graph, edge, above, rate)
    for core, pod in product(range(half * half), range(k)):
        _cable(graph, aggs[pod][core // half], f"core{core}", rate)
    pod_of = np.arange(nics).reshape(-1, hosts.nics) // half // half  # [H, n]
    for number, pod in enumerate(pod_of.ravel().tolist()):
        edge = edges[pod][number // half % half]
        _cable(graph, nic_name(*divmod(number, hosts.nics)), edge, rate)
    cuts = []
    for pod in range(k):
        inside = np.flatnonzero((pod_of == pod).all(axis=1)).tolist()
        if inside:
            switches = edges[pod] + aggs[pod]
            cuts.append(Cut(name=f"pod{pod}", hosts=inside, switches=switches))
    bisection = _half("host", hosts.number, 1)  # full, too, where hosts do not fill it
    first = np.flatnonzero((pod_of < half).all(axis=1)).tolist()
    if 0 < len(first) < hosts.number:
        below = [name for pod in range(half) for name in edges[pod] + aggs[pod]]
        (name,) = (cut.name for cut in _half("pod", k, 1))
        bisection.insert(0, Cut(name=name, hosts=first, switches=below))
    families = {"pod": cuts, "bisection": bisection}
    name = f"fat-tree, k = {k}"
    return Network.from_graph(graph, hosts=hosts, name=name, cuts=families)


def torus(hosts: Hosts, *, shape: Sequence[int]) -> Network:
    """Build a torus: a grid of routers with wraparound links and one host per router.

    The last dimension varies fastest.  Each NIC connects to its router with the total
    capacity of the router's other links.  Rings of two routers have one cable, not two.
    """
    text = "x".join(map(str, shape))
    if not shape or min(shape) < 1 or prod(shape) != hosts.number:
        raise FabricError(
            f"a torus has a host at each place, but the shape {text} is for "
            f"{prod(shape)} hosts, and there are {hosts.number}: choose lengths whose "
            f"product is {hosts.number}"
        )
    places = list(product(*map(range, shape)))
    router = {place: "node" + ".".join(map(str, place)) for place in places}
    degree = max(1, sum(min(length - 1, 2) for length in shape))
    graph = nx.Graph()
    for (host, place), nic in product(enumerate(places), range(hosts.nics)):
        rate = degree * hosts.nic_bytes_s
        _cable(graph, router[place], nic_name(host, nic), rate)
    for place, (axis, length) in product(places, enumerate(shape)):
        if length > 2 or (length == 2 and place[axis] == 0):
            ahead = (place[axis] + 1) % length
            beyond = router[(*place[:axis], ahead, *place[axis + 1 :])]
            _cable(graph, router[place], beyond, hosts.nic_bytes_s)
    cuts = []
    for axis, length in enumerate(shape):
        inside = [h for h, place in enumerate(places) if place[axis] < length // 2]
        name = f"{'xyzuvw'[axis] if axis < 6 else axis} below {length // 2}"
        below = [router[places[host]] for host in inside]
        cuts += [Cut(name=name, hosts=inside, switches=below)] * bool(inside)
    families = {"bisection": cuts}
    return Network.from_graph(graph, hosts=hosts, name=f"torus {text}", cuts=families)


def dragonfly(
    hosts: Hosts, *, hosts_a_router: int, routers: int, global_links: int
) -> Network:
    """Build a dragonfly: fully connected routers in groups, all groups connected.

    ``hosts_a_router`` p, ``routers`` a of a group, and ``global_links`` h of a router.
    Global port k of group i leads to group i + 1 + k (the "consecutive" wiring), and
    with fewer than ``a h + 1`` groups, groups are joined by several cables each.

    Raises
    ------
    FabricError
        If the hosts do not fill whole groups, or there are over ``a h + 1`` groups.
    """
    at_least(1, hosts_a_router, "hosts a router")
    at_least(1, routers, "routers of a group")
    at_least(1, global_links, "global links of a router")
    size, ports = hosts_a_router * routers, routers * global_links
    groups, rest = divmod(hosts.number, size)
    if rest:
        raise FabricError(
            f"a dragonfly's groups have {size} hosts each, but there are "
            f"{hosts.number}: choose a multiple of {size}"
        )
    if groups > ports + 1:
        raise FabricError(
            f"{ports} global links a group reach {ports} other groups, but there are "
            f"{groups} groups: give larger groups or more global links"
        )
    graph, rate, others = nx.Graph(), hosts.nic_bytes_s, groups - 1
    inside = [[f"group{g}.router{a}" for a in range(routers)] for g in range(groups)]
    flat = [router for members in inside for router in members]
    graph.add_nodes_from(flat)
    for host, nic in product(range(hosts.number), range(hosts.nics)):
        _cable(graph, nic_name(host, nic), flat[host // hosts_a_router], rate)
    for members in inside:
        for one, other in combinations(members, 2):
            _cable(graph, one, other, rate)
    for group in range(groups):
        for port in range(ports // others * others if others else 0):
            turn, ahead = divmod(port, others)
            far = (group + 1 + ahead) % groups
            back = turn * others + (others - 1 - ahead)
            if group < far:  # each cable once
                one = inside[group][port // global_links]
                other = inside[far][back // global_links]
                _cable(graph, one, other, rate, GLOBAL_COST)
    cuts = [
        Cut(name=f"group{g}", hosts=range(g * size, (g + 1) * size), switches=members)
        for g, members in enumerate(inside)
    ]
    half = _half("group", groups, size, flat[: groups // 2 * routers])
    return Network.from_graph(
        graph,
        hosts=hosts,
        name=f"dragonfly, {groups} groups of {routers} routers with {hosts_a_router} "
        "hosts",
        cuts={"group": cuts, "bisection": half},
    )

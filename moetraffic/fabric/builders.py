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

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from math import prod

import networkx as nx

from moetraffic.errors import FabricError

from .topology import Cut, Hosts, Network, at_least, nic_name, positive

GLOBAL_COST = 3
"""Cost of a global link, so that two of them exceed a local-global-local path."""


def _cable(graph: nx.Graph, one: str, other: str, rate: float, cost: int = 1) -> None:
    """Add a cable; capacities of parallel cables add up."""
    had = graph.get_edge_data(one, other, {}).get("capacity", 0)
    graph.add_edge(one, other, capacity=had + rate, cost=cost)


def _attach(graph: nx.Graph, hosts: Hosts, some: Iterable[int], switch: str) -> None:
    """Connect all NICs of some hosts to one switch."""
    for host in some:
        for nic in range(hosts.nics):
            _cable(graph, nic_name(host, nic), switch, hosts.nic_bytes_s)


def _halves(what: str, number: int) -> str:
    """Name the halves of numbered parts of a network.

    Examples
    --------
    >>> _halves("leaf", 2), _halves("host", 5)
    ('leaf0 against leaf1', 'host0 to host1 against host2 to host4')
    """
    half = number // 2
    spans = ((0, half - 1), (half, number - 1))
    return " against ".join(
        f"{what}{first}" + f" to {what}{last}" * (last > first) for first, last in spans
    )


def _half_of_hosts(hosts: Hosts) -> dict[str, list[Cut]]:
    """Cut hosts under the same switches into halves."""
    if hosts.number < 2:
        return {}
    name = _halves("host", hosts.number)
    return {"bisection": [Cut(name=name, hosts=range(hosts.number // 2))]}


def single_switch(hosts: Hosts) -> Network:
    """Build a network with all NICs on one non-blocking switch."""
    graph = nx.Graph()
    _attach(graph, hosts, range(hosts.number), "switch")
    cuts = _half_of_hosts(hosts)
    return Network.from_graph(graph, hosts=hosts, name="single switch", cuts=cuts)


def leaf_spine(
    hosts: Hosts, *, leaves: int, oversubscription: float = 1.0, spines: int = 0
) -> Network:
    """Build a leaf-spine network in which each leaf connects to every spine.

    The capacity of the NICs on a leaf is ``oversubscription`` times that of its
    uplinks.

    Parameters
    ----------
    hosts
        Hosts, the same number on each leaf.
    leaves
        Number of leaf switches.
    oversubscription
        At 1 the network is rearrangeably non-blocking.
    spines
        Number of spine switches; 0: chosen so that an uplink matches a NIC.

    Raises
    ------
    FabricError
        If the hosts do not divide evenly among leaves, or a size is impossible.
    """
    size = _share(hosts, leaves, "leaves")
    down = size * hosts.nics * hosts.nic_bytes_s
    graph = nx.Graph()
    spine = _spines(graph, down, hosts, oversubscription, spines)
    names = [f"leaf{number}" for number in range(leaves)]
    below = [range(n * size, (n + 1) * size) for n in range(leaves)]
    for leaf, some in zip(names, below, strict=True):
        graph.add_node(leaf)
        _attach(graph, hosts, some, leaf)
        for other in spine:
            _cable(graph, leaf, other, down / oversubscription / len(spine))
    cuts = {
        "leaf": [
            Cut(name=leaf, hosts=some, switches=[leaf])
            for leaf, some in zip(names, below, strict=True)
        ],
        **_half_of_hosts(hosts),
    }
    if half := leaves // 2:
        name, some = _halves("leaf", leaves), range(half * size)
        cuts["bisection"] = [Cut(name=name, hosts=some, switches=names[:half])]
    name = f"leaf-spine {oversubscription:g}:1"
    return Network.from_graph(graph, hosts=hosts, name=name, cuts=cuts)


def rail_optimized(
    hosts: Hosts,
    *,
    pods: int = 1,
    oversubscription: float = 1.0,
    spines: int = 0,
    forwarding: str = "rail",
) -> Network:
    """Build a rail-optimized network: NIC i of all hosts of a pod shares a leaf.

    Each leaf connects to every spine.  With ``rail`` forwarding, traffic within a pod
    stays on its rail.

    Parameters
    ----------
    hosts
        Hosts, the same number in each pod; each NIC of a host is on one rail.
    pods
        Number of pods: groups of hosts that share their leaves.
    oversubscription, spines
        As in :func:`leaf_spine`.
    forwarding
        "rail" or "own"; with "own", traffic between different rails crosses the spines.
    """
    size = _share(hosts, pods, "pods")
    down = size * hosts.nic_bytes_s
    graph = nx.Graph()
    spine = _spines(graph, down, hosts, oversubscription, spines)
    cuts = _half_of_hosts(hosts)
    pod_cuts, below = [], list[str]()
    for pod in range(pods):
        some = range(pod * size, (pod + 1) * size)
        before = f"pod{pod}." if pods > 1 else ""
        rails = [f"{before}rail{rail}" for rail in range(hosts.nics)]
        graph.add_nodes_from(rails)
        for nic, rail in enumerate(rails):
            for host in some:
                _cable(graph, nic_name(host, nic), rail, hosts.nic_bytes_s)
            for other in spine:
                _cable(graph, rail, other, down / oversubscription / len(spine))
        pod_cuts.append(Cut(name=f"pod{pod}", hosts=some, switches=rails))
        below += rails * (pod < pods // 2)
    if pods > 1:
        name, some = _halves("pod", pods), range(pods // 2 * size)
        half = [Cut(name=name, hosts=some, switches=below)]
        cuts = {"pod": pod_cuts, "bisection": half}
    name = f"rail-optimized, {oversubscription:g}:1"
    return Network.from_graph(
        graph, hosts=hosts, name=name, cuts=cuts, forwarding=forwarding
    )


def fat_tree(hosts: Hosts, *, k: int) -> Network:
    """Build the k-ary fat-tree of Al-Fares et al., all links at the NIC capacity.

    It has k pods of k/2 edge and k/2 aggregation switches and (k/2)^2 cores: 5 k^2/4
    switches for k^3/4 NICs, at full bisection.  Aggregation switch a of a pod reaches
    the cores a k/2 to (a + 1) k/2 - 1.

    Parameters
    ----------
    hosts
        At most k^3/4 NICs; they fill the edge switches one after another, a host's
        NICs on neighboring ports.
    k
        Ports per switch, even.
    """
    half, ports, nics = k // 2, k**3 // 4, hosts.number * hosts.nics
    if k < 2 or k % 2:
        raise FabricError(
            "a fat-tree's switches have an even number of ports, but k (--ports) is "
            f"{k}: give an even number of 2 or more"
        )
    if nics > ports:
        raise FabricError(
            f"a fat-tree of {k}-port switches takes {ports} NICs, but there are "
            f"{nics}: choose a larger k (--ports)"
        )
    graph = nx.Graph()
    for pod in range(k):
        graph.add_nodes_from(f"pod{pod}.edge{at}" for at in range(half))
        for at in range(half):
            for below in range(half):
                edge, above = f"pod{pod}.edge{below}", f"pod{pod}.agg{at}"
                graph.add_node(above)
                _cable(graph, edge, above, hosts.nic_bytes_s)
    for core in range(half * half):
        for pod in range(k):
            graph.add_node(f"core{core}")
            above = f"pod{pod}.agg{core // half}"
            _cable(graph, above, f"core{core}", hosts.nic_bytes_s)
    pods_of: list[set[int]] = [set() for _ in range(hosts.number)]
    for number in range(nics):
        host, nic = divmod(number, hosts.nics)
        pod, at = divmod(number // half, half)
        pods_of[host].add(pod)
        _cable(graph, nic_name(host, nic), f"pod{pod}.edge{at}", hosts.nic_bytes_s)
    switches = [
        [f"pod{pod}.{kind}{at}" for kind in ("edge", "agg") for at in range(half)]
        for pod in range(k)
    ]
    cuts = _half_of_hosts(hosts)  # hosts that do not fill it have full bisection, too
    pod_cuts = []
    for pod in range(k):
        some = [host for host, pods in enumerate(pods_of) if pods == {pod}]
        if some:
            pod_cuts.append(Cut(name=f"pod{pod}", hosts=some, switches=switches[pod]))
    first = [host for host, pods in enumerate(pods_of) if max(pods) < half]
    if 0 < len(first) < hosts.number:
        inside = [name for pod in switches[:half] for name in pod]
        named = Cut(name=_halves("pod", k), hosts=first, switches=inside)
        cuts["bisection"] = [named, *cuts["bisection"]]
    cuts = {"pod": pod_cuts, **cuts} if pod_cuts else cuts
    return Network.from_graph(graph, hosts=hosts, name=f"fat-tree, k = {k}", cuts=cuts)


def torus(hosts: Hosts, *, shape: Sequence[int]) -> Network:
    """Build a torus: a grid of routers with wraparound links and one host per router.

    Each NIC connects to its router with the total capacity of the router's other links.
    Rings of two routers have one cable, not two.

    Parameters
    ----------
    hosts
        One host per grid position; the last dimension varies fastest.  All NICs of a
        host connect to its router.
    shape
        Length of each dimension.

    Raises
    ------
    FabricError
        If the product of the shape is not the number of hosts.
    """
    text = "x".join(map(str, shape))
    if not shape or min(shape) < 1 or prod(shape) != hosts.number:
        raise FabricError(
            f"a torus has a host at each place, but the shape {text} is for "
            f"{prod(shape)} hosts, and there are {hosts.number}: choose lengths whose "
            f"product is {hosts.number}"
        )
    places = list(product(*map(range, shape)))
    routers = ["node" + ".".join(map(str, place)) for place in places]
    degree = sum(min(length - 1, 2) for length in shape)
    graph = nx.Graph()
    for host, router in enumerate(routers):
        graph.add_node(router)
        for nic in range(hosts.nics):
            rate = max(1, degree) * hosts.nic_bytes_s
            _cable(graph, nic_name(host, nic), router, rate)
    router_at = dict(zip(places, routers, strict=True))
    cuts = []
    for place, router in router_at.items():
        for axis, length in enumerate(shape):
            if length > 2 or (length == 2 and place[axis] == 0):
                ahead = (place[axis] + 1) % length
                beyond = (*place[:axis], ahead, *place[axis + 1 :])
                _cable(graph, router, router_at[beyond], hosts.nic_bytes_s)
    for axis, length in enumerate(shape):
        if half := length // 2:
            inside = [h for h, place in enumerate(places) if place[axis] < half]
            name = f"{'xyzuvw'[axis] if axis < 6 else axis} below {half}"
            switches = [routers[host] for host in inside]
            cuts.append(Cut(name=name, hosts=inside, switches=switches))
    families = {"bisection": cuts} if cuts else {}
    return Network.from_graph(graph, hosts=hosts, name=f"torus {text}", cuts=families)


def dragonfly(
    hosts: Hosts, *, hosts_a_router: int, routers: int, global_links: int
) -> Network:
    """Build a dragonfly: fully connected routers in groups, all groups connected.

    Global port k of group i leads to group i + 1 + k (the "consecutive" wiring), and
    with fewer than ``a h + 1`` groups, groups are joined by several cables each.

    Parameters
    ----------
    hosts
        Hosts, the same number in each group.
    hosts_a_router
        p: hosts per router, each with all its NICs.
    routers
        a: routers per group.
    global_links
        h: global links per router.

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
    graph, rate = nx.Graph(), hosts.nic_bytes_s
    inside = [[f"group{g}.router{a}" for a in range(routers)] for g in range(groups)]
    graph.add_nodes_from(router for group in inside for router in group)
    for host in range(hosts.number):
        group, at = divmod(host // hosts_a_router, routers)
        _attach(graph, hosts, [host], inside[group][at])
    for members in inside:
        for one, other in combinations(members, 2):
            _cable(graph, one, other, rate)
    others = groups - 1
    for group in range(groups):
        for port in range(ports // others * others if others else 0):
            turn, ahead = divmod(port, others)
            far = (group + 1 + ahead) % groups
            back = turn * others + (others - 1 - ahead)
            if group < far:  # each cable once
                one = inside[group][port // global_links]
                other = inside[far][back // global_links]
                _cable(graph, one, other, rate, GLOBAL_COST)
    cuts = {
        "group": [
            Cut(
                name=f"group{g}",
                hosts=range(g * size, (g + 1) * size),
                switches=inside[g],
            )
            for g in range(groups)
        ]
    }
    if half := groups // 2:
        switches = [router for group in inside[:half] for router in group]
        name, some = _halves("group", groups), range(half * size)
        cuts["bisection"] = [Cut(name=name, hosts=some, switches=switches)]
    name = (
        f"dragonfly, {groups} groups of {routers} routers with {hosts_a_router} hosts"
    )
    return Network.from_graph(graph, hosts=hosts, name=name, cuts=cuts)


def _share(hosts: Hosts, parts: int, name: str) -> int:
    """Return the number of hosts per part, or raise if they do not divide evenly."""
    at_least(1, parts, f"number of {name} (--leaves)")
    if hosts.number % parts:
        are, remedy = (
            f"are {hosts.number} hosts",
            f"a divisor of {hosts.number} (--leaves)",
        )
        if hosts.number == 1:
            are, remedy = "is 1 host", "1, or have fewer ranks on each of more hosts"
        raise FabricError(
            f"{name} share the hosts evenly, but there {are} for {parts} {name}: "
            f"choose {remedy}"
        )
    return hosts.number // parts


def _spines(
    graph: nx.Graph, down: float, hosts: Hosts, oversubscription: float, spines: int
) -> list[str]:
    """Add the spines: as many as given, or so that an uplink matches a NIC."""
    positive(oversubscription, "oversubscription")
    at_least(0, spines, "spines")
    fitting = round(down / hosts.nic_bytes_s / oversubscription)
    names = [f"spine{number}" for number in range(spines or max(1, fitting))]
    graph.add_nodes_from(names)
    return names

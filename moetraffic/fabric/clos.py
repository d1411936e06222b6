"""Folded Clos topologies: single switch, leaf-spine, rail-optimized, fat-tree.

References
----------
C. Clos, "A Study of Non-Blocking Switching Networks", Bell Syst. Tech. J. 32 (1953).
M. Al-Fares, A. Loukissas, A. Vahdat, "A Scalable, Commodity Data Center Network
Architecture", SIGCOMM 2008: the k-ary fat-tree.
W. Wang et al., "Rail-only: A Low-Cost High-Performance Network for Training LLMs with
Trillion Parameters", arXiv 2307.12169: rails, with and without spines.
"""

from __future__ import annotations

from moetraffic.errors import FabricError

from .topology import Hosts, Topology, TopologyBuilder, at_least, positive, sides


def single_switch(hosts: Hosts) -> Topology:
    """Build a topology with all NICs on one non-blocking switch."""
    draft = TopologyBuilder(hosts)
    switch = draft.switch("switch")
    draft.attach_hosts(range(hosts.number), switch)
    if hosts.number > 1:
        halves = sides("host", hosts.number)
        draft.cut("bisection", halves, range(hosts.number // 2), [])
    return draft.finish("single switch")


def leaf_spine(
    hosts: Hosts, *, leaves: int, oversubscription: float = 1.0, spines: int = 0
) -> Topology:
    """Build a leaf-spine topology in which each leaf connects to every spine.

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
    each = _each(hosts, leaves, "leaves")
    down = each * hosts.nics * hosts.nic_bytes_s
    draft = TopologyBuilder(hosts)
    spine = _spines(draft, down, hosts, oversubscription, spines)
    for number in range(leaves):
        leaf = draft.switch(f"leaf{number}")
        mine = range(number * each, (number + 1) * each)
        draft.attach_hosts(mine, leaf)
        for other in spine:
            draft.cable(leaf, other, down / oversubscription / len(spine))
        draft.cut("leaf", leaf, mine, [leaf])
    half = leaves // 2
    if half:
        below = [f"leaf{number}" for number in range(half)]
        draft.cut("bisection", sides("leaf", leaves), range(half * each), below)
    elif hosts.number > 1:
        halves = sides("host", hosts.number)
        draft.cut("bisection", halves, range(hosts.number // 2), [])
    return draft.finish(f"leaf-spine {oversubscription:g}:1")


def rail_optimized(
    hosts: Hosts,
    *,
    pods: int = 1,
    oversubscription: float = 1.0,
    spines: int = 0,
    forwarding: str = "rail",
) -> Topology:
    """Build a rail-optimized topology: NIC i of all hosts of a pod shares a leaf.

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
    each = _each(hosts, pods, "pods")
    down = each * hosts.nic_bytes_s
    draft = TopologyBuilder(hosts)
    spine = _spines(draft, down, hosts, oversubscription, spines)
    for pod in range(pods):
        mine = range(pod * each, (pod + 1) * each)
        rails = [
            draft.switch(f"pod{pod}.rail{rail}" if pods > 1 else f"rail{rail}")
            for rail in range(hosts.nics)
        ]
        for rail, leaf in enumerate(rails):
            for host in mine:
                draft.attach(host, rail, leaf)
            for other in spine:
                draft.cable(leaf, other, down / oversubscription / len(spine))
        if pods > 1:
            draft.cut("pod", f"pod{pod}", mine, rails)
    if pods > 1:
        below = [f"pod{p}.rail{r}" for p in range(pods // 2) for r in range(hosts.nics)]
        draft.cut("bisection", sides("pod", pods), range(pods // 2 * each), below)
    elif hosts.number > 1:
        halves = sides("host", hosts.number)
        draft.cut("bisection", halves, range(hosts.number // 2), [])
    return draft.finish(
        f"rail-optimized, {oversubscription:g}:1", forwarding=forwarding
    )


def fat_tree(hosts: Hosts, *, k: int) -> Topology:
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
    half = k // 2
    if k < 2 or k % 2:
        raise FabricError(
            "a fat-tree's switches have an even number of ports, but k (--ports) is "
            f"{k}: give an even number of 2 or more"
        )
    ports = k**3 // 4
    if hosts.number * hosts.nics > ports:
        raise FabricError(
            f"a fat-tree of {k}-port switches takes {ports} NICs, but there are "
            f"{hosts.number * hosts.nics}: choose a larger k (--ports)"
        )
    draft = TopologyBuilder(hosts)
    for pod in range(k):
        for at in range(half):
            draft.switch(f"pod{pod}.edge{at}")
        for at in range(half):
            above = draft.switch(f"pod{pod}.agg{at}")
            for below in range(half):
                draft.cable(f"pod{pod}.edge{below}", above, hosts.nic_bytes_s)
    for core in range(half * half):
        name = draft.switch(f"core{core}")
        for pod in range(k):
            draft.cable(f"pod{pod}.agg{core // half}", name, hosts.nic_bytes_s)
    pod_of: list[set[int]] = [set() for _ in range(hosts.number)]
    for host in range(hosts.number):
        for nic in range(hosts.nics):
            edge = (host * hosts.nics + nic) // half
            pod_of[host].add(edge // half)
            draft.attach(host, nic, f"pod{edge // half}.edge{edge % half}")
    switches = [
        [f"pod{pod}.{kind}{at}" for kind in ("edge", "agg") for at in range(half)]
        for pod in range(k)
    ]
    for pod in range(k):
        mine = [host for host, pods in enumerate(pod_of) if pods == {pod}]
        if mine:
            draft.cut("pod", f"pod{pod}", mine, switches[pod])
    first = [h for h, pods in enumerate(pod_of) if max(pods) < half]
    if 0 < len(first) < hosts.number:
        inside = [name for mine in switches[:half] for name in mine]
        draft.cut("bisection", sides("pod", k), first, inside)
    if hosts.number > 1:  # hosts that do not fill it have full bisection, too
        halves = sides("host", hosts.number)
        draft.cut("bisection", halves, range(hosts.number // 2), [])
    return draft.finish(f"fat-tree, k = {k}")


def _each(hosts: Hosts, parts: int, name: str) -> int:
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
    draft: TopologyBuilder,
    down: float,
    hosts: Hosts,
    oversubscription: float,
    spines: int,
) -> list[str]:
    positive(oversubscription, "oversubscription")
    at_least(0, spines, "spines")
    fitting = round(down / hosts.nic_bytes_s / oversubscription)
    return [draft.switch(f"spine{s}") for s in range(spines or max(1, fitting))]

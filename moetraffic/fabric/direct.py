"""Direct network topologies, with hosts attached to every router: torus, dragonfly.

References
----------
W. J. Dally, B. Towles, "Principles and Practices of Interconnection Networks" (2004),
chapter 5: k-ary n-cubes; the bisection of a torus is ``2 k^(n-1)`` links each way.
J. Kim, W. J. Dally, S. Scott, D. Abts, "Technology-Driven, Highly-Scalable Dragonfly
Topology", ISCA 2008: groups of a routers, p terminals and h global links a router, at
most ``a h + 1`` groups; a minimal path is local, global, local.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from moetraffic.errors import FabricError

from .topology import Hosts, Topology, TopologyBuilder, at_least, nic_name, sides

GLOBAL_COST = 3
"""Cost of a global link, so that two of them exceed a local-global-local path."""


def torus(hosts: Hosts, *, shape: Sequence[int]) -> Topology:
    """Build a torus: a grid of routers with wraparound links and one host per router.

    Each NIC connects to its router with the total capacity of the router's other links.
    Rings of two routers have one cable, not two.

    Parameters
    ----------
    hosts
        One host per grid position; the last dimension varies fastest.  All NICs of a
        host connect to its router.
    shape
        Length of each dimension, usually two or three (any number is accepted).

    Raises
    ------
    FabricError
        If the product of the shape is not the number of hosts.
    """
    if not shape or min(shape) < 1 or prod(shape) != hosts.number:
        raise FabricError(
            "a torus has a host at each place, but the shape "
            f"{'x'.join(map(str, shape))} is for {prod(shape)} hosts, and there are "
            f"{hosts.number}: choose lengths whose product is {hosts.number}"
        )
    draft = TopologyBuilder(hosts)
    places = list(product(*map(range, shape)))
    degree = sum(0 if k == 1 else 1 if k == 2 else 2 for k in shape)
    for host, place in enumerate(places):
        router = draft.switch(_router(place))
        for nic in range(hosts.nics):
            capacity = max(1, degree) * hosts.nic_bytes_s
            draft.cable(nic_name(host, nic), router, capacity)
    for place in places:
        for axis, length in enumerate(shape):
            if length > 2 or (length == 2 and place[axis] == 0):
                beyond = list(place)
                beyond[axis] = (place[axis] + 1) % length
                draft.cable(_router(place), _router(beyond), hosts.nic_bytes_s)
    for axis, length in enumerate(shape):
        if length < 2:
            continue
        inside = [h for h, at in enumerate(places) if at[axis] < length // 2]
        draft.cut(
            "bisection",
            f"{'xyzuvw'[axis] if axis < 6 else axis} below {length // 2}",
            inside,
            [_router(places[h]) for h in inside],
        )
    return draft.finish(f"torus {'x'.join(map(str, shape))}")


def dragonfly(
    hosts: Hosts, *, hosts_a_router: int, routers: int, global_links: int
) -> Topology:
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
    for name, value in (
        ("hosts a router", hosts_a_router),
        ("routers of a group", routers),
        ("global links of a router", global_links),
    ):
        at_least(1, value, name)
    size = hosts_a_router * routers
    if hosts.number % size:
        raise FabricError(
            f"a dragonfly's groups have {size} hosts each, but there are "
            f"{hosts.number}: choose a multiple of {size}"
        )
    groups = hosts.number // size
    ports = routers * global_links
    if groups > ports + 1:
        raise FabricError(
            f"{ports} global links a group reach {ports} other groups, but there are "
            f"{groups} groups: give larger groups or more global links"
        )
    draft = TopologyBuilder(hosts)
    rate = hosts.nic_bytes_s
    inside = [
        [draft.switch(f"group{group}.router{at}") for at in range(routers)]
        for group in range(groups)
    ]
    for host in range(hosts.number):
        router = host // hosts_a_router
        draft.attach_hosts([host], inside[router // routers][router % routers])
    for mine in inside:
        for at, one in enumerate(mine):
            for other in mine[at + 1 :]:
                draft.cable(one, other, rate)
    others = groups - 1
    for group in range(groups):
        for port in range(ports // others * others if others else 0):
            turn, ahead = divmod(port, others)
            far = (group + 1 + ahead) % groups
            back = turn * others + (others - 1 - ahead)
            if group < far:  # each cable once
                draft.cable(
                    inside[group][port // global_links],
                    inside[far][back // global_links],
                    rate,
                    cost=GLOBAL_COST,
                )
    for group in range(groups):
        mine_hosts = range(group * size, (group + 1) * size)
        draft.cut("group", f"group{group}", mine_hosts, inside[group])
    if groups > 1:
        half = groups // 2
        draft.cut(
            "bisection",
            sides("group", groups),
            range(half * size),
            [router for mine in inside[:half] for router in mine],
        )
    return draft.finish(
        f"dragonfly, {groups} groups of {routers} routers with {hosts_a_router} hosts"
    )


def _router(place: Sequence[int]) -> str:
    return "node" + ".".join(map(str, place))

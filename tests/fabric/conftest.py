from __future__ import annotations

from collections.abc import Callable

import pytest

from moetraffic.fabric import (
    Hosts,
    Network,
    dragonfly,
    fat_tree,
    leaf_spine,
    rail_optimized,
    single_switch,
    torus,
)

GBS = 1e9


def hosts(number: int, ranks: int = 1, nics: int = 0) -> Hosts:
    return Hosts(number=number, ranks=ranks, nics=nics, nic_bytes_s=50 * GBS)


NETWORKS: dict[str, Callable[[], Network]] = {
    "switch": lambda: single_switch(hosts(6)),
    "switch of hosts": lambda: single_switch(hosts(3, 4, 2)),
    "leaf-spine 1:1": lambda: leaf_spine(hosts(8), leaves=4),
    "leaf-spine 4:1": lambda: leaf_spine(hosts(4, 4), leaves=2, oversubscription=4),
    "leaf-spine 3 spines": lambda: leaf_spine(hosts(6), leaves=3, spines=3),
    "rails": lambda: rail_optimized(hosts(4, 4)),
    "rails in pods": lambda: rail_optimized(hosts(4, 4), pods=2, spines=2),
    "rails, own NICs": lambda: rail_optimized(hosts(4, 4), forwarding="own"),
    "rails of two": lambda: rail_optimized(hosts(4, 4, 2)),
    "fat-tree": lambda: fat_tree(hosts(16), k=4),
    "fat-tree, half": lambda: fat_tree(hosts(4, 2), k=4),
    "torus 4x4": lambda: torus(hosts(16), shape=(4, 4)),
    "torus 2x2x3": lambda: torus(hosts(12, 2, 1), shape=(2, 2, 3)),
    "dragonfly": lambda: dragonfly(
        hosts(18), hosts_a_router=1, routers=2, global_links=4
    ),
    "dragonfly, 2 groups": lambda: dragonfly(
        hosts(4, 2), hosts_a_router=1, routers=2, global_links=1
    ),
}


@pytest.fixture(params=NETWORKS)
def network(request: pytest.FixtureRequest) -> Network:
    """One of every kind of topology."""
    made: Network = NETWORKS[request.param]()
    return made

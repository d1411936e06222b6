"""Network models: topologies, routing, link loads, lower bounds, circuit schedules.

Pure functions on byte matrices and demand patterns, independent of traces.
"""

from .clos import fat_tree, leaf_spine, rail_optimized, single_switch
from .collisions import (
    collisions,
    expected_max_load,
    max_load_at_most,
    no_collision,
)
from .compatibility import (
    Job,
    compatibility,
    score,
    unify,
)
from .decomposition import (
    MATCHINGS,
    Decomposition,
    coverage,
    decompose,
    stuffing,
)
from .direct import dragonfly, torus
from .loads import (
    bisection_bytes_s,
    cut_bounds,
    hottest,
    link_loads,
    link_times,
    port_bound,
    rank_bound,
)
from .routing import ROUTINGS, route
from .topology import Hosts, Topology, block, explicit, strided

__all__ = [
    "MATCHINGS",
    "ROUTINGS",
    "Decomposition",
    "Hosts",
    "Job",
    "Topology",
    "bisection_bytes_s",
    "block",
    "collisions",
    "compatibility",
    "coverage",
    "cut_bounds",
    "decompose",
    "dragonfly",
    "expected_max_load",
    "explicit",
    "fat_tree",
    "hottest",
    "leaf_spine",
    "link_loads",
    "link_times",
    "max_load_at_most",
    "no_collision",
    "port_bound",
    "rail_optimized",
    "rank_bound",
    "route",
    "score",
    "single_switch",
    "strided",
    "stuffing",
    "torus",
    "unify",
]

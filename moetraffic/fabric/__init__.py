"""Networks, link loads, lower bounds, and decompositions of byte matrices."""

from .assessment import assess, compare, failures
from .builders import (
    dragonfly,
    fat_tree,
    leaf_spine,
    rail_optimized,
    single_switch,
    torus,
)
from .circuits import Decomposition, coverage, decompose, stuffing, terms_for
from .collisions import collisions, expected_max_load
from .loads import (
    bounds,
    cut_bounds,
    forwarding_bound,
    link_loads,
    link_times,
    port_bound,
    routing_bound,
    transfer_seconds,
)
from .named import load_fabric, other_rates
from .routing import ROUTINGS, Routes, route
from .shifts import Job, compatibility, score, unify
from .topology import Cut, Hosts, Network, explicit, nic_name, placed

__all__ = [
    "ROUTINGS",
    "Cut",
    "Decomposition",
    "Hosts",
    "Job",
    "Network",
    "Routes",
    "assess",
    "bounds",
    "collisions",
    "compare",
    "compatibility",
    "coverage",
    "cut_bounds",
    "decompose",
    "dragonfly",
    "expected_max_load",
    "explicit",
    "failures",
    "fat_tree",
    "forwarding_bound",
    "leaf_spine",
    "link_loads",
    "link_times",
    "load_fabric",
    "nic_name",
    "other_rates",
    "placed",
    "port_bound",
    "rail_optimized",
    "route",
    "routing_bound",
    "score",
    "single_switch",
    "stuffing",
    "terms_for",
    "torus",
    "transfer_seconds",
    "unify",
]

"""The answer of ``fabric`` names every bound and link that ties with the largest."""

from __future__ import annotations

import numpy as np

from moetraffic.fabric import Hosts, leaf_spine
from moetraffic.fabric.assessment import assess
from moetraffic.report.results import fabric as report


def test_tied_bounds_are_all_named_and_a_tied_link_beyond_the_listed_is_found() -> None:
    """At full bisection, ports and cuts through leaves take equally long."""
    network = leaf_spine(Hosts(number=4, nic_bytes_s=1e9), leaves=2, spines=2)
    sent = np.zeros((4, 4), np.int64)
    sent[:2, 2:] = 1_000_000
    found = assess(network, range(4), sent, flows=64, hot=1)
    (line,) = (one for one in report.sentences(found) if "lower bound" in one)
    bounds = {name: float(values[0]) for name, values in found.bounds_s.items()}
    assert bounds["port"] == bounds["cut leaf"] == bounds["cut host"]
    for name in ("bottleneck port of a host", "cut through a leaf (leaf0)"):
        assert name in line
    # the slowest link is found by its load, however few links are listed
    few, all_links = (
        assess(network, range(4), sent, routing="ecmp", hot=hot) for hot in (1, 99)
    )
    assert [report._of_bottleneck(few, one) for one in few.collisions] == [
        report._of_bottleneck(all_links, one) for one in all_links.collisions
    ]

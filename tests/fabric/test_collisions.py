"""Balls in bins: exact cases, and that hashed flows follow them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.errors import FabricError
from moetraffic.fabric import (
    Hosts,
    collisions,
    expected_max_load,
    leaf_spine,
    route,
)
from moetraffic.fabric.collisions import max_load_at_most


def test_eight_flows_on_eight_links() -> None:
    assert max_load_at_most(8, 8, 1) == pytest.approx(0.00240326, abs=1e-8)
    assert expected_max_load(8, 8) == pytest.approx(2.59723, abs=1e-5)


@pytest.mark.parametrize(("flows", "links"), [(1, 3), (3, 2), (4, 3), (5, 4), (2, 5)])
def test_closed_forms_are_the_mean_over_all_hashes(flows: int, links: int) -> None:
    counts = np.array(
        [
            np.bincount(one, minlength=links)
            for one in product(range(links), repeat=flows)
        ]
    )
    assert expected_max_load(flows, links) == pytest.approx(counts.max(axis=1).mean())
    assert max_load_at_most(flows, links, 1) == pytest.approx(
        (counts <= 1).all(axis=1).mean()
    )


@given(flows=st.integers(0, 40), links=st.integers(1, 20))
def test_the_largest_load_is_distributed(flows: int, links: int) -> None:
    chances = [max_load_at_most(flows, links, c) for c in range(flows + 1)]
    assert all(0 <= c <= 1 for c in chances)
    assert (np.diff(chances) >= -1e-12).all()
    assert chances[-1] == 1.0
    assert flows / links <= expected_max_load(flows, links) + 1e-9 <= flows + 2e-9


def test_many_flows_follow_the_published_asymptote() -> None:
    flows, links = 4096, 16  # m >> n ln n
    found = expected_max_load(flows, links)
    simulated = (
        np.random.default_rng(0)
        .multinomial(flows, np.full(links, 1 / links), 4000)
        .max(axis=1)
        .mean()
    )
    assert found == pytest.approx(simulated, rel=2e-3)
    asymptote = flows / links + np.sqrt(2 * flows * np.log(links) / links)
    assert found < asymptote < found * 1.1


def test_hashed_flows_collide_as_often_as_balls() -> None:
    """4 leaves of 8 hosts and 8 spines: a permutation between leaves, 8 flows each."""
    made = leaf_spine(Hosts(number=32, nic_bytes_s=1.0), leaves=4)
    ranks = np.arange(32)
    sent = np.zeros((32, 32), np.int64)
    sent[ranks, (ranks + 8) % 32] = 5
    found = [
        one
        for seed in range(60)
        for one in collisions(route(made, seed=seed), sent)
        if made.links[one["links"][0]].startswith("leaf")
    ]
    assert len(found) == 240
    assert {(one["flows"], len(one["links"])) for one in found} == {(8.0, 8)}
    largest = np.array([one["max_flows"] for one in found])
    assert found[0]["expected_max_flows"] == pytest.approx(2.59723, abs=1e-5)
    spread = 4 * largest.std() / np.sqrt(240)
    assert largest.mean() == pytest.approx(2.59723, abs=spread)
    assert all(one["over_even"] == one["max_flows"] for one in found)


def test_exchanges_of_counts_are_no_flows() -> None:
    """Rank r sends to rank r + 4 only, after 8 bytes between all pairs."""
    made = leaf_spine(Hosts(number=16, nic_bytes_s=1.0), leaves=4)
    routes = route(made)
    ranks = np.arange(16)
    sent = np.zeros((16, 16), np.int64)
    sent[ranks, (ranks + 4) % 16] = 1_000_000
    counts = np.where(ranks == ranks[:, None], 0, 8)
    alone, beside = (
        {one["links"]: one for one in collisions(routes, bytes_)}
        for bytes_ in (sent, sent + counts)
    )
    assert len(alone) == 4
    assert alone.keys() == beside.keys()
    for links, one in alone.items():
        other = beside[links]
        assert one["flows"] == other["flows"] == 4
        assert one["max_flows"] == other["max_flows"]
        assert one["expected_max_flows"] == other["expected_max_flows"]
        assert one["over_even"] == pytest.approx(other["over_even"], rel=1e-3)
    (small,) = {one["flows"] for one in collisions(routes, counts)}
    assert small == 48  # they are the traffic where there is no other


def test_pairs_without_bytes_are_no_flows() -> None:
    made = leaf_spine(Hosts(number=4, nic_bytes_s=1.0), leaves=2)
    routes = route(made)
    assert collisions(routes, np.zeros((4, 4))) == []
    sent = np.zeros((2, 4, 4))
    sent[1, 0, 3] = 9.0
    (one,) = collisions(routes, sent)
    assert [made.links[link] for link in one["links"]] == [
        *("leaf0 -> spine0", "leaf0 -> spine1")
    ]
    assert (one["flows"], one["max_flows"]) == (1.0, 1.0)
    assert one["no_collision"] == pytest.approx(1.0)
    assert one["over_even"] == 2.0
    with pytest.raises(FabricError, match="route by ecmp"):
        collisions(route(made, routing="ideal"), sent)

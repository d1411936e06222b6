"""Statistics of experts: EP degrees, correlations, hosts per token; exact cases."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic import Trace
from moetraffic.analysis.exchange import Source
from moetraffic.analysis.expert_statistics import (
    ExpertStatistics,
    expert_statistics,
)
from moetraffic.analysis.token_choices import balanced_hosts


def statistics_of(load, *, k: int = 1, hosts: int = 2) -> ExpertStatistics:
    """Statistics of expert loads ``[T, E]`` of two ranks."""
    counts = np.asarray(load, np.int64)
    nothing = np.zeros(0, np.int64)
    source = Source(
        layer=0,
        group=0,
        phase="dispatch",
        ranks=(0, 1),
        nodes=("a", "b" if hosts == 2 else "a"),
        experts=counts.shape[1],
        iterations=np.arange(len(counts)),
        elapsed=np.arange(len(counts)),
        left_out=0,
        routed=nothing,
        sent=nothing,
    )
    meta = Trace.from_arrays(np.ones((1, 1, 2, counts.shape[1]), np.int64), k=k).meta
    tokens = counts.sum(axis=1) // (2 * k)
    found = expert_statistics(source, {"demand.load": counts}, meta, tokens=tokens)
    assert found is not None
    return found


def test_imbalance_by_ep_degree() -> None:
    found = statistics_of([[4, 0, 1, 1, 0, 0, 1, 1]] * 5)
    assert [each.ep for each in found.ep_degrees] == [2, 4, 8]
    assert [each.max_over_mean for each in found.ep_degrees] == [1.5, 2.0, 4.0]
    assert [each.p99 for each in found.ep_degrees] == [1.5, 2.0, 4.0]
    # more ranks have fewer experts each: more noise
    floors = [each.noise_floor for each in found.ep_degrees]
    assert floors == sorted(floors)
    assert floors[0] > 1
    # E itself, where it is no power of two
    assert [e.ep for e in statistics_of(np.ones((3, 6))).ep_degrees] == [2, 6]


@given(st.integers(0, 99))
def test_more_ranks_are_never_more_even(seed: int) -> None:
    load = np.random.default_rng(seed).integers(0, 50, (4, 16)) + 1
    found = [each.max_over_mean for each in statistics_of(load).ep_degrees]
    assert found == sorted(found)


def test_experts_that_rise_and_fall_together_are_found() -> None:
    rng = np.random.default_rng(3)
    share = np.full((200, 8), 1.0)
    share[:, [2, 5]] += 0.8 * np.sin(np.arange(200) / 9)[:, None]
    load = np.array([rng.multinomial(4000, p / p.sum()) for p in share])
    found = statistics_of(load)
    assert found.correlated == (2, 5)
    assert found.correlation > 0.8
    # shares of exchangeable experts add up to 1
    even = statistics_of(rng.multinomial(4000, np.full(8, 1 / 8), 2000))
    assert even.correlation_mean == pytest.approx(-1 / 7, abs=0.005)
    assert even.correlation < 0.1
    assert statistics_of(np.full((9, 4), 7)).correlated is None


@pytest.mark.parametrize(("experts", "hosts", "k"), [(8, 2, 2), (8, 4, 3), (6, 3, 6)])
def test_hosts_of_a_balanced_router_are_the_mean_over_all_sets(experts, hosts, k):
    held = experts // hosts
    sets = [
        len({e // held for e in chosen})
        for chosen in itertools.combinations(range(experts), k)
    ]
    assert balanced_hosts(experts, hosts, k) == pytest.approx(np.mean(sets))


def test_hosts_per_token_only_where_they_are_known() -> None:
    load = np.full((5, 8), 10)
    assert statistics_of(load).hosts_per_token == 1
    several = statistics_of(load, k=2)
    assert np.isnan(several.hosts_per_token)
    assert several.hosts_per_token_balanced == pytest.approx(11 / 7)
    assert "hosts per token" in several.unavailable[0]
    one = statistics_of(load, k=2, hosts=1)
    assert one.hosts_per_token == one.hosts_per_token_balanced == 1
    assert "hosts" not in one.unavailable[0]

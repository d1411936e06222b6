"""Distinct hosts per token: exact cases, bounds, and the closed form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic import Trace, analyze
from moetraffic.analysis.claim import Outcome
from moetraffic.analysis.token_choices import (
    balanced_hosts,
    distinct_hosts,
    host_numbers,
)
from moetraffic.data import path
from moetraffic.report.plain_data import as_dict
from moetraffic.report.results.experts import expert_tables
from moetraffic.trace import ROUTING
from moetraffic.trace.choices import expert_mask
from moetraffic.trace.what_if.relocate import Relocation, relocate
from tests.analysis.known_processes.routings import independent


@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 99))
def test_hosts_are_those_of_the_experts(experts: int, hosts: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    k = int(rng.integers(1, experts + 1))
    host = rng.integers(0, hosts, experts)
    mask = independent(rng, 20, np.zeros(experts), k)
    found = distinct_hosts(mask, host)
    assert found.tolist() == [len(set(host[row])) for row in mask]
    assert found.min() >= 1
    assert found.max() <= min(k, len(set(host)))


@pytest.mark.parametrize(
    ("experts", "ranks", "numbers"),
    [(8, 4, [2, 4, 8]), (6, 2, [2, 3, 6]), (12, 6, [2, 3, 6, 12]), (1, 1, [])],
)
def test_numbers_of_hosts(experts: int, ranks: int, numbers: list[int]) -> None:
    assert host_numbers(experts, ranks) == numbers


def test_independent_balanced_choices_have_the_hosts_of_the_closed_form() -> None:
    rng = np.random.default_rng(2)
    for experts, hosts, k in ((8, 2, 2), (64, 8, 8), (16, 4, 4)):
        mask = independent(rng, 20_000, np.zeros(experts), k)
        found = distinct_hosts(mask, np.arange(experts) * hosts // experts)
        error = found.std() / np.sqrt(len(found))
        assert abs(found.mean() - balanced_hosts(experts, hosts, k)) < 5 * error


def hosts_by_hand(trace: Trace, layer: int, hosts: int) -> np.ndarray:
    """Distinct hosts of all sampled tokens, experts placed contiguously."""
    chosen = expert_mask(
        trace.chosen(trace.find(operation=ROUTING, layer=layer)), trace.meta.experts
    )
    tokens = chosen.reshape(-1, chosen.shape[-1])
    tokens = tokens[tokens.any(axis=1)]
    return tokens.reshape(len(tokens), hosts, -1).any(axis=2).sum(axis=1)


def test_an_analysis_measures_hosts_per_token() -> None:
    with Trace.open(path("golden-token-sample.h5")) as trace:
        analysis = analyze(trace, parts=["skew", "claims"])
        for exchange in analysis.exchanges:
            found = exchange.experts
            assert found is not None
            assert [each.hosts for each in found.contiguous] == [2, 3, 6]
            for each in found.contiguous:
                by_hand = hosts_by_hand(trace, exchange.layer, each.hosts)
                assert each.mean == pytest.approx(by_hand.mean())
                assert each.low < each.mean < each.high or each.hosts == 6
                shares = np.bincount(by_hand)[1:] / len(by_hand)
                assert each.shares == pytest.approx(shares.tolist())
                assert each.balanced == balanced_hosts(6, each.hosts, 2)
            # two nodes, of one rank with three experts each
            assert found.hosts_per_token == found.contiguous[0].mean
            assert found.hosts_per_token_low == found.contiguous[0].low
            assert found.sampled_tokens == len(by_hand)
            assert not found.unavailable
            (claim,) = [c for c in exchange.claims if c.name == "co-activated"]
            assert claim.used == found.sampled_tokens
            assert claim.outcome in Outcome
        plain = as_dict(analysis)["exchanges"][0]["experts"]
        assert len(plain["co_activation"]["pairs"]) == 10
        assert plain["contiguous"][0]["hosts"] == 2
        assert [len(t.rows) for t in expert_tables(analysis.exchanges)][-2:] == [2, 6]
        frame = analysis.to_frame()
        assert (frame.statistic == "co_activation_lift").sum() == 20


def test_hosts_per_token_follow_the_placement() -> None:
    with Trace.open(path("golden-token-sample.h5")) as trace:
        odd = Relocation(
            ranks=2,
            groups=[(0, 1)],
            place=lambda load, width: (np.arange(6), np.arange(6) % 2),
        )
        moved = relocate(trace, odd)
        moved = moved.replaced(meta=replace(moved.meta, nodes=("a", "b")))
        found = analyze(moved, parts=["skew"], layers=[1]).exchanges[0].experts
        assert found is not None
        chosen = expert_mask(
            moved.chosen(moved.find(operation=ROUTING, layer=1)), moved.meta.experts
        )
        hosts = chosen[..., ::2].any(axis=-1).astype(int) + chosen[..., 1::2].any(
            axis=-1
        )
        assert found.hosts_per_token == pytest.approx(hosts[hosts > 0].mean())
        assert found.hosts_per_token != found.contiguous[0].mean
        # without the names of nodes, contiguous placements alone are known
        nameless = moved.replaced(meta=replace(moved.meta, nodes=("", "")))
        found = analyze(nameless, parts=["skew"], layers=[1]).exchanges[0].experts
        assert found is not None
        assert np.isnan(found.hosts_per_token)
        assert len(found.contiguous) == 3

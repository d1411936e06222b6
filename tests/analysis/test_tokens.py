"""Experts of sampled tokens: hosts, and pairs; exact cases and closed forms."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moetraffic import Trace
from moetraffic.analysis.exchange import exchanges
from moetraffic.analysis.tokens import (
    balanced_hosts,
    distinct_hosts,
    host_numbers,
    lift_rows,
    lift_sums,
    mean_interval,
    pair_counts,
    pair_probabilities,
    token_tables,
)
from moetraffic.data import path
from moetraffic.trace import ROUTING
from moetraffic.trace.choices import expert_mask
from moetraffic.trace.what_if.relocate import Relocation, relocate


def independent(seed: int, tokens: int, logits: np.ndarray, k: int) -> np.ndarray:
    """k draws without replacement of each token, masks ``[tokens, E]``."""
    rng = np.random.default_rng(seed)
    scores = logits + rng.gumbel(size=(tokens, len(logits)))
    mask = np.zeros(scores.shape, bool)
    np.put_along_axis(mask, np.argsort(-scores, axis=1)[:, :k], True, 1)
    return mask


# ---- hosts ---------------------------------------------------------------------------


@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 99))
def test_hosts_are_those_of_the_experts(experts: int, hosts: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    host = rng.integers(0, hosts, experts)
    mask = independent(seed, 20, np.zeros(experts), int(rng.integers(1, experts + 1)))
    assert distinct_hosts(mask, host).tolist() == [len(set(host[row])) for row in mask]


@pytest.mark.parametrize(
    ("experts", "ranks", "numbers"),
    [(8, 4, [2, 4, 8]), (6, 2, [2, 3, 6]), (12, 6, [2, 3, 6, 12]), (1, 1, [])],
)
def test_numbers_of_hosts(experts: int, ranks: int, numbers: list[int]) -> None:
    assert host_numbers(experts, ranks) == numbers


@pytest.mark.parametrize(("experts", "hosts", "k"), [(8, 2, 2), (8, 4, 3), (6, 3, 6)])
def test_hosts_of_a_balanced_router_are_the_mean_over_all_sets(
    experts: int, hosts: int, k: int
) -> None:
    held = experts // hosts
    sets = [
        len({expert // held for expert in chosen})
        for chosen in itertools.combinations(range(experts), k)
    ]
    assert balanced_hosts(experts, hosts, k) == pytest.approx(np.mean(sets))


def test_the_interval_of_a_mean_is_students_over_iterations() -> None:
    mean, low, high = mean_interval([10, 14], [10, 10])
    # t(0.975, 1) = 12.7062, standard error 0.2
    assert (mean, high - mean) == (1.2, pytest.approx(12.7062 * 0.2, rel=1e-4))
    assert mean - low == pytest.approx(high - mean)
    assert np.isnan(mean_interval([10], [10])[1:]).all()


def tables(trace: Trace, layer: int) -> dict[str, list[dict[str, Any]]]:
    (exchange,) = exchanges(trace, [], layers=[layer])
    return token_tables(trace, exchange)


def sample(trace: Trace, layer: int) -> np.ndarray:
    """Experts of all sampled tokens, masks ``[tokens, E]``."""
    calls = trace.find(operation=ROUTING, layer=layer)
    chosen = expert_mask(trace.chosen(calls), trace.meta.experts)
    tokens = chosen.reshape(-1, chosen.shape[-1])
    return tokens[tokens.any(axis=1)]


def test_hosts_per_token_of_a_run() -> None:
    with Trace.open(path("golden-token-sample.h5")) as trace:
        for layer in trace.layers:
            made, tokens = tables(trace, layer), sample(trace, layer)
            own, *contiguous = made["hosts"]
            assert [row["hosts"] for row in contiguous] == [2, 3, 6]
            for row in contiguous:
                hosts = tokens.reshape(len(tokens), row["hosts"], -1).any(axis=2)
                mean = hosts.sum(axis=1).mean()
                assert row["hosts_per_token"] == pytest.approx(mean)
                assert row["balanced"] == balanced_hosts(6, row["hosts"], 2)
                low, high = row["hosts_per_token_low"], row["hosts_per_token_high"]
                assert low < mean < high or row["hosts"] == 6
            # two nodes, of one rank with three experts each
            assert own == {**contiguous[0], "placement": "captured"}
            assert own["sampled_tokens"] == len(tokens)
            assert len(made["coactivation"]) == 10


def test_hosts_per_token_follow_the_placement() -> None:
    with Trace.open(path("golden-token-sample.h5")) as trace:
        odd = Relocation(
            ranks=2,
            groups=[(0, 1)],
            place=lambda load, width: (np.arange(6), np.arange(6) % 2),
        )
        moved = relocate(trace, odd)
        moved = moved.replaced(meta=replace(moved.meta, nodes=("a", "b")))
        own, contiguous, *_ = tables(moved, 1)["hosts"]
        tokens = sample(moved, 1)
        hosts = tokens[:, ::2].any(axis=1).astype(int) + tokens[:, 1::2].any(axis=1)
        assert own["hosts_per_token"] == pytest.approx(hosts.mean())
        assert own["hosts_per_token"] != contiguous["hosts_per_token"]
        # without the names of nodes, contiguous placements alone are known
        nameless = moved.replaced(meta=replace(moved.meta, nodes=("", "")))
        placements = [row["placement"] for row in tables(nameless, 1)["hosts"]]
        assert placements == ["contiguous"] * 3


@pytest.mark.parametrize(
    ("nodes", "k", "mean", "balanced"),
    [
        (("a", "b"), 1, 1, 1),
        (("a", "b"), 2, np.nan, 11 / 7),
        (("a", "a"), 2, 1, 1),
    ],
)
def test_counts_alone_have_hosts_where_all_experts_are_on_one(
    nodes: tuple[str, str], k: int, mean: float, balanced: float
) -> None:
    trace = Trace.from_arrays(np.full((5, 1, 1, 2, 8), 10), k=k)
    trace = trace.replaced(meta=replace(trace.meta, nodes=nodes))
    made = tables(trace, 0)
    (row,) = made["hosts"]
    assert row["hosts_per_token"] == pytest.approx(mean, nan_ok=True)
    assert row["balanced"] == pytest.approx(balanced)
    assert (row["sampled_tokens"], made["coactivation"]) == (0, [])


# ---- pairs of experts ----------------------------------------------------------------


@given(st.integers(3, 8), st.data())
@settings(max_examples=10)
def test_pair_probabilities_are_those_of_all_sets(experts: int, data: Any) -> None:
    k = data.draw(st.integers(1, experts - 1))
    seed = data.draw(st.integers(0, 99))
    weights = np.exp(np.random.default_rng(seed).normal(0, 1, experts))
    both, total = np.zeros((experts, experts)), 0.0
    for chosen in itertools.combinations(range(experts), k):
        weight = float(np.prod(weights[list(chosen)]))
        both[np.ix_(chosen, chosen)] += weight
        total += weight
    both /= total
    loads = np.diag(both).copy()
    np.fill_diagonal(both, 0)
    computed = pair_probabilities(loads, k)
    assert computed == pytest.approx(both, abs=1e-6)
    assert computed.sum(axis=1) == pytest.approx((k - 1) * loads, abs=1e-6)


def test_experts_that_all_or_no_tokens_have() -> None:
    computed = pair_probabilities([1, 0.5, 0.5, 0], 2)
    assert computed[0].tolist() == [0, 0.5, 0.5, 0]
    assert computed[1, 2] == 0
    assert pair_probabilities([1, 1, 1], 3)[0].tolist() == [0, 1, 1]


@given(st.integers(2, 20), st.integers(1, 5), st.integers(0, 99))
@settings(max_examples=10)
def test_rows_of_pair_counts_add_up_to_the_load(
    experts: int, k: int, seed: int
) -> None:
    k = min(k, experts)
    mask = independent(seed, 30, np.zeros(experts), k)
    both, load = pair_counts(mask), mask.sum(axis=0)
    assert (both == both.T).all()
    assert np.diag(both).tolist() == load.tolist()
    assert (both.sum(axis=1) - load).tolist() == ((k - 1) * load).tolist()


def test_a_known_routing_has_known_lifts() -> None:
    # 0 with 1 and 2 with 3, never otherwise: 16 of 40 tokens, and 24
    mask = np.zeros((40, 4), bool)
    mask[:16, :2] = mask[16:, 2:] = True
    table = lift_rows(lift_sums([mask] * 6) + lift_sums([mask] * 6), 12)
    pairs = {(row["expert"], row["other_expert"]): row for row in table}
    assert list(pairs)[:2] == [(0, 1), (2, 3)]
    # loads .4 .4 .6 .6: of two distinct experts with weights 1 1 w w, the load of the
    # first is (1 + 2w)/(1 + 4w + w^2)
    weight = 2.0
    for _ in range(99):
        weight *= (1 + 2 * weight) / (1 + 4 * weight + weight**2) / 0.4
    total = 1 + 4 * weight + weight**2
    for pair, probability, both in (
        ((0, 1), 1 / total, 16),
        ((2, 3), weight**2 / total, 24),
    ):
        load = mask[:, list(pair)].sum(axis=0)
        expected = probability / (load / 40).prod() * (load.prod() - both) / 39
        row = pairs[pair]
        assert row["common_tokens"] == 12 * both
        assert row["expected_tokens"] == pytest.approx(12 * expected, rel=1e-5)
        assert row["lift"] == pytest.approx(both / expected, rel=1e-5)
        assert row["lift_low"] == pytest.approx(row["lift"])  # no scatter


def test_intervals_hold_the_lift_of_independent_choices() -> None:
    logits = np.random.default_rng(0).normal(0, 0.5, 6)
    held = []
    for seed in range(40):
        masks = [independent(100 * seed + t, 200, logits, 2) for t in range(20)]
        sums = lift_sums(masks[:10]) + lift_sums(masks[10:])
        held += [r["lift_low"] < 1.1 < r["lift_high"] for r in lift_rows(sums, 20)[:1]]
        held += [r["lift_low"] <= 1 for r in lift_rows(sums, 20)]
    assert np.mean(held) > 0.9


def test_without_two_experts_or_two_iterations() -> None:
    assert lift_rows(lift_sums([np.eye(4, dtype=bool)]), 1) == []
    assert lift_rows(np.zeros((5, 0, 0)), 0) == []
    (row, *_) = lift_rows(lift_sums([independent(1, 50, np.zeros(4), 2)]), 1)
    assert np.isnan([row["lift_low"], row["lift_high"]]).all()

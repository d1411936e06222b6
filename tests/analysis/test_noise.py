"""A balanced router: enumerated draws, closed forms, and numbers of tokens."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from scipy.stats import binom

from moetraffic.analysis.exchange import exchanges
from moetraffic.analysis.measures import MEASURES, max_mean
from moetraffic.analysis.noise import (
    balanced,
    balanced_values,
    draw,
    rank_max_mean,
)
from moetraffic.analysis.rows import rows
from moetraffic.data import path
from moetraffic.errors import AnalysisError
from moetraffic.trace import Trace

pytestmark = pytest.mark.filterwarnings("error")


def enumerated(tokens: int, experts: int, k: int, sources: int = 1):
    """List the counts ``[n, sources, E]`` of all equally likely choices."""
    sets = [np.isin(range(experts), s) for s in combinations(range(experts), k)]
    rows = [sum(chosen) for chosen in product(sets, repeat=tokens)]
    return np.array(list(product(rows, repeat=sources)), np.int64)


@pytest.mark.parametrize("measure", MEASURES)
def test_the_load_of_few_tokens_has_the_mean_and_deviation_of_all_choices(measure):
    values = MEASURES[measure](enumerated(3, 4, 2)[:, 0])
    mean = balanced(3, experts=4, k=2)[measure]
    assert mean == pytest.approx(values.mean(), abs=4 * values.std() / np.sqrt(2000))
    if measure != "zero":  # its mean alone is known, exactly
        std = balanced(3, experts=4, k=2, deviation=True)[measure]
        assert std == pytest.approx(values.std(), rel=0.08)


@pytest.mark.parametrize("of", ["cells", "pairs", "received"])
def test_matrices_of_few_tokens_have_the_means_of_all_choices(of):
    counts = enumerated(2, 4, 2, sources=2)
    diagonal = of != "pairs"
    if of != "cells":
        counts = counts.reshape(len(counts), 2, 2, 2).sum(axis=3)
    if of == "received":
        counts = (counts * ~np.eye(2, dtype=bool)).sum(axis=1, keepdims=True)
    means = balanced(2, experts=4, k=2, sources=2, of=of)
    assert {*means} == {*MEASURES, "line_efficiency"}
    for name, measure in MEASURES.items():
        values = measure(counts, axis=(1, 2), diagonal=diagonal)
        values = values[np.isfinite(values)]
        error = 4 * values.std() / np.sqrt(2000)
        assert means[name] == pytest.approx(values.mean(), abs=error + 1e-9), name


@pytest.mark.parametrize(
    ("tokens", "experts", "k", "sources"),
    [(1, 8, 2, 1), (60, 16, 4, 1), (40, 64, 8, 16), (7, 2, 1, 2)],
)
def test_entropy_and_cv_are_the_closed_forms(tokens, experts, k, sources):
    """Exact draws, and multinomial ones where these take too long."""
    means = balanced(tokens, experts=experts, k=k, sources=sources)
    spread = balanced(tokens, experts=experts, k=k, sources=sources, deviation=True)
    count = np.arange(1, tokens + 1)
    share = count / (tokens * k * sources)
    chance = binom(tokens, k / experts).pmf(count)
    bits = -experts * sources * (chance * share * np.log2(share)).sum()
    assert means["entropy_bits"] == pytest.approx(
        bits, abs=0.15 * spread["entropy_bits"] + 1e-9
    )
    squared = means["cv"] ** 2 + spread["cv"] ** 2
    assert squared == pytest.approx((experts - k) / (k * tokens), rel=0.02)
    assert means["zero"] == pytest.approx((1 - k / experts) ** tokens)


@pytest.mark.parametrize(
    ("experts", "k", "cells"), [(8, 3, 8), (12, 5, 3), (64, 70, 8)]
)
def test_draws_have_the_means_and_covariances_of_tokens(experts, k, cells):
    k = min(k, experts - 1)
    x = draw(40, experts=experts, k=k, cells=cells, draws=20_000)[:, 0]
    assert x.sum(axis=1) == pytest.approx(np.full(20_000, 40 * k))
    held, mean = experts // cells, 40 * k / cells
    # N j (1 - j/k) (E-k)/(E-1) of a rank that holds several experts, j copies a token
    several = (experts - k) / (experts - 1) * (1 - mean / 40 / k)
    variance = mean * (several if held > 1 else 1 - mean / 40)
    expected = np.full((cells, cells), -variance / (cells - 1))
    np.fill_diagonal(expected, variance)
    assert np.cov(x.T) == pytest.approx(expected, abs=0.06 * variance)


def test_values_are_scaled_to_each_number_of_tokens():
    tokens = np.array([200, 260, 300, 420, 500])
    together = balanced(tokens, experts=8, k=2, sources=4)
    for number, *scaled in zip(tokens, *together.values(), strict=True):
        alone = balanced(number, experts=8, k=2, sources=4)
        spread = balanced(number, experts=8, k=2, sources=4, deviation=True)
        for name, value in zip(together, scaled, strict=True):
            error = 0.12 * spread.get(name, 0.0) + 1e-12
            assert value == pytest.approx(alone[name], abs=error), name


def test_without_tokens_nothing_is_expected_and_with_all_experts_all_is_even():
    means = balanced([[0, 10]], experts=4, k=4)
    assert all(np.isnan(value[0, 0]) for value in means.values())
    assert means["cv"][0, 1] == 0
    assert means["entropy"][0, 1] == pytest.approx(1)
    assert np.isnan(balanced(0, experts=4, k=1)["cv"])
    assert np.isnan(balanced(9, experts=4, k=1, of="pairs")["cv"])  # one rank
    assert np.isnan(rank_max_mean(0, experts=4, k=1, ranks=2))


def test_the_busiest_of_ranks_with_several_experts():
    ranks = enumerated(3, 4, 2)[:, 0].reshape(-1, 2, 2).sum(axis=2)
    expected = float(max_mean(ranks).mean())
    assert rank_max_mean(3, experts=4, k=2, ranks=2) == pytest.approx(
        expected, rel=0.02
    )


@pytest.mark.parametrize(
    "router",
    [
        {"experts": 4, "k": 5},
        {"experts": 4, "k": 0},
        {"experts": 4, "k": 1, "sources": 0},
        {"experts": 4, "k": 1, "sources": 3, "of": "pairs"},
    ],
)
def test_impossible_routers_are_rejected(router):
    with pytest.raises(AnalysisError, match="k of E experts"):
        balanced(10, **router)


def test_an_exchange_has_values_of_each_subject():
    with Trace.open(path("run-top2-balanced.h5")) as trace:
        exchange = exchanges(trace, [])[0]
        values = balanced_values(exchange, rows(trace, exchange), trace.meta)
    subjects = {subject for subject, _ in values}
    assert subjects == {"expert_load", "demand", "wire", "received"}
    for (_, measure), value in values.items():
        assert value.shape == exchange.iterations.shape
        assert np.isfinite(value).all(), measure

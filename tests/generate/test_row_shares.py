"""How much less rows differ in experts that hold little, and how layers share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from moetraffic.generate import row_trial
from moetraffic.generate.fitting import fit_counts
from moetraffic.generate.row_coupling import kept_for
from moetraffic.generate.row_shares import colder, half_for, squares
from moetraffic.generate.rows import at_share


def test_an_even_share_differs_as_told_and_any_where_there_is_no_half() -> None:
    even = np.full((1, 8), 1 / 8)
    for half in (0.0, 0.3, 2.0):
        assert at_share(even, half, k=1) == pytest.approx(1)
    uneven = np.array([[0.0, 0.001, 0.1, 0.899]])
    assert (at_share(uneven, 0.0, k=1) == 1).all()


@pytest.mark.parametrize("k", [1, 2])
def test_at_the_half_rows_vary_half_as_much_as_they_could(k: int) -> None:
    half, experts = 0.25, 10
    shares = np.array([half * k / experts, 1e9])
    square = at_share(np.resize(shares, experts), half, k=k)[:2] ** 2
    assert square[0] == pytest.approx(square[1] / 2, rel=1e-6)


def test_colder_is_the_ratio_of_dispersions() -> None:
    rng = np.random.default_rng(0)
    share = np.tile([0.05, 0.15, 0.2, 0.6], (300, 1, 1))  # [n, L, E]
    size = share * (1 - share)
    spread = np.array([0.5, 0.5, 1.0, 1.0])  # E = 4: the first two are below 1/4 ...
    spread[2] = 0.5  # ... and the third is
    apart = rng.standard_normal((300, 9, 1, 4)) * np.sqrt(size)[:, None] * spread
    found = colder([squares(apart[:100], size[:100], share[:100])] * 2)
    assert found == pytest.approx(np.log(0.25), abs=0.1)


def test_the_half_is_found_where_samples_are_as_the_counts_and_else_none() -> None:
    def sampled(half: np.ndarray) -> np.ndarray:
        return -np.asarray(half) / (1 + np.asarray(half))

    wanted = sampled(np.array([0.0, 0.25, 0.7, 50.0]))
    wanted[0] = 0.1  # colder experts differ more
    assert (half_for(np.full(2, -0.05), lambda half: np.zeros(2)) == 0).all()
    found = half_for(wanted, sampled)
    assert found == pytest.approx([0.0, 0.25, 0.7, 0.0], abs=0.04)


def test_a_known_half_is_recovered_from_counts(known_model) -> None:
    model = known_model(experts=16, ranks=16, tokens=256, variance=0.03, sd=0.8, far=0)
    model = replace(model, rows=replace(model.rows, half=np.full(2, 0.7)))
    counts = np.concatenate(
        [b for _, b in model.sample(iterations=400, seed=1).blocks()]
    )
    found = fit_counts(counts, k=1, tokens=256).rows
    assert ((found.half > 0.3) & (found.half < 1.6)).all()
    assert found.variance.mean() == pytest.approx(0.03, rel=0.15)
    plain = replace(model, rows=replace(model.rows, half=np.zeros(2)))
    counts = np.concatenate(
        [b for _, b in plain.sample(iterations=400, seed=1).blocks()]
    )
    assert (fit_counts(counts, k=1, tokens=256).rows.half == 0).all()


def test_what_layers_share_is_turned_into_their_own_and_back() -> None:
    def coupled(kept: np.ndarray) -> np.ndarray:
        shared = np.minimum(0.4 * kept, 1.0)
        among = np.sqrt(np.outer(shared, shared))
        return np.asarray((among.sum(axis=1) - np.diag(among)) / 2)

    wanted = coupled(np.array([0.6, 1.0, 1.5]))
    assert coupled(kept_for(wanted, coupled)) == pytest.approx(wanted, abs=0.005)
    nothing = kept_for(np.full(3, np.nan), coupled)
    assert (nothing == 1).all()


def test_more_ranks_than_rows_are_tried_at_once_are_fitted_as_well(
    known_model, monkeypatch
) -> None:
    monkeypatch.setattr(row_trial, "TRIED", 100)
    model = known_model(ranks=4, tokens=16, experts=4, far=0)
    demand = model.sample(iterations=32, seed=1, ranks=150)
    found = fit_counts(np.concatenate([b for _, b in demand.blocks()]), k=1, tokens=16)
    assert np.isfinite(found.rows.factors).all()
    assert found.rows.variance.mean() == pytest.approx(0.015, rel=0.3)

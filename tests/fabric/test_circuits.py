"""Birkhoff: permutations add up to the matrix exactly; how well they serve it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from moetraffic.errors import FabricError
from moetraffic.fabric import Decomposition, coverage, decompose, stuffing
from moetraffic.fabric.circuits import MATCHINGS

MATRICES = st.integers(1, 7).flatmap(
    lambda n: arrays.arrays(
        np.int64, (n, n), elements=st.one_of(st.just(0), st.integers(0, 2**40))
    )
)


def added(found: Decomposition, of: np.ndarray) -> np.ndarray:
    out = np.zeros_like(found.demand)
    for chosen, amount in zip(found.permutations, of, strict=True):
        out[np.arange(len(out)), chosen] += amount
    return out


@pytest.mark.parametrize("matching", MATCHINGS)
@given(demand=MATRICES)
def test_terms_add_up_to_the_matrix_exactly(matching: str, demand: np.ndarray) -> None:
    found = decompose(demand, matching=matching)
    size = len(demand)
    assert (added(found, found.weights) == demand + found.slack).all()
    assert (added(found, found.served) == demand).all()  # nothing is inflated
    assert (found.served <= found.weights[:, None]).all()
    assert found.terms <= size * size - 2 * size + 2
    assert (found.weights > 0).all()
    for chosen in found.permutations:
        assert sorted(chosen) == list(range(size))
    served = coverage(found)
    assert (np.diff(served) >= 0).all()
    if demand.any():
        assert served[-1] == 1.0
        line = max(demand.sum(axis=0).max(), demand.sum(axis=1).max())
        assert found.weights.sum() == line
        assert found.served.max(axis=1).sum() <= line  # slack takes no time
    else:
        assert found.terms == 0


@given(demand=MATRICES)
def test_stuffing_equals_line_sums(demand: np.ndarray) -> None:
    slack = stuffing(demand)
    assert (slack >= 0).all()
    full = demand + slack
    sums = {*full.sum(axis=0).tolist(), *full.sum(axis=1).tolist()}
    assert sums == {max(demand.sum(axis=0).max(), demand.sum(axis=1).max())}


def test_slack_goes_onto_busy_entries_first() -> None:
    assert stuffing([[0, 5, 1], [1, 0, 5], [5, 1, 0]]).sum() == 0
    slack = stuffing([[0, 4, 0], [0, 0, 4], [2, 0, 0]])
    assert slack.tolist() == [[0, 0, 0], [0, 0, 0], [2, 0, 0]]


@pytest.mark.parametrize("matching", MATCHINGS)
def test_a_permutation_is_one_term(matching: str) -> None:
    demand = 9 * np.eye(8, dtype=np.int64)[np.random.default_rng(0).permutation(8)]
    found = decompose(demand, matching=matching)
    assert (found.terms, found.weights.tolist()) == (1, [9])


@pytest.mark.parametrize("matching", MATCHINGS)
def test_uniform_traffic_of_eight_ranks_is_seven_terms(matching: str) -> None:
    demand = 6 * (1 - np.eye(8, dtype=np.int64))
    found = decompose(demand, matching=matching)
    assert found.terms == 7
    assert found.weights.sum() == 6 * 7
    assert found.slack.sum() == 0


def test_max_min_begins_with_the_best_bottleneck() -> None:
    """By trying all permutations of a 5 x 5 matrix."""
    from itertools import permutations

    generator = np.random.default_rng(3)
    for _ in range(20):
        demand = generator.integers(0, 50, (5, 5))
        full = demand + stuffing(demand)
        best = max(min(full[np.arange(5), p]) for p in permutations(range(5)))
        found = decompose(demand, matching="max-min")
        assert found.weights[0] == best
        assert (np.diff(found.weights) <= 0).all()


def test_reference_matrices_have_the_known_terms() -> None:
    """A, B and H of the literature's comparison; slack of A is on the diagonal."""
    a = [[0, 6, 3, 1], [2, 0, 7, 1], [1, 3, 0, 6], [7, 1, 0, 0]]
    b = [[0, 8, 2], [2, 0, 8], [8, 2, 0]]
    h = [[0, 9, 1, 0], [9, 0, 0, 1], [0, 1, 0, 9], [1, 0, 9, 0]]
    for demand, weights in ((a, [6, 2, 1, 1]), (b, [8, 2]), (h, [9, 1])):
        assert decompose(demand).weights.tolist() == weights
    plan = decompose(a)
    assert plan.served.sum(axis=1).tolist()[:2] == [24, 6]
    assert plan.slack.tolist() == np.diag([0, 0, 0, 2]).tolist()


def test_max_min_needs_the_fewest_terms() -> None:
    """A skewed all-to-all between 24 ranks."""
    generator = np.random.default_rng(5)
    demand = (1e6 * generator.dirichlet(np.full(24, 0.5), 24)).astype(np.int64)
    np.fill_diagonal(demand, 0)
    terms = {name: decompose(demand, matching=name).terms for name in MATCHINGS}
    assert terms["max-min"] < terms["halving"]


@pytest.mark.parametrize(
    ("demand", "matching", "said"),
    [
        ([[1.5]], "max-min", "round it first"),
        ([[-1]], "max-min", "negative"),
        ([[1, 2]], "max-min", "is square"),
        ([[1]], "best", "max-min, halving"),
    ],
)
def test_impossible_decompositions(demand: object, matching: str, said: str) -> None:
    with pytest.raises(FabricError, match=said):
        decompose(demand, matching=matching)

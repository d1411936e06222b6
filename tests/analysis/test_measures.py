"""Skew: exact cases, bounds, invariants, and what has no shares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moetraffic.analysis import measures
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")

EXACT = 1e-6
ALL = sorted(measures.MEASURES)
counts = hnp.arrays(
    np.int64,
    st.tuples(st.integers(1, 4), st.integers(1, 9)),
    elements=st.integers(0, 10**12),
)


def test_a_uniform_matrix_without_its_diagonal_is_even():
    uniform = np.full((8, 8), 7)
    of = {"axis": (0, 1), "diagonal": False}
    assert measures.entropy_bits(uniform, **of) == pytest.approx(5.807355, abs=EXACT)
    assert measures.entropy(uniform, **of) == pytest.approx(1)
    assert measures.gini(uniform, **of) == pytest.approx(0, abs=1e-12)
    assert measures.cv(uniform, **of) == pytest.approx(0, abs=1e-12)
    assert measures.max_mean(uniform, **of) == pytest.approx(1, abs=1e-12)


def test_a_permutation_has_three_bits_of_eight_ranks():
    permutation = np.roll(np.eye(8, dtype=np.int64), 1, axis=1) * 5
    of = {"axis": (0, 1), "diagonal": False}
    assert measures.entropy_bits(permutation, **of) == pytest.approx(3, abs=EXACT)
    assert measures.entropy(permutation, **of) == pytest.approx(0.516586, abs=EXACT)


def test_zipf_over_eight():
    zipf = 1 / np.arange(1, 9)
    assert measures.entropy_bits(zipf) == pytest.approx(2.619715, abs=EXACT)
    assert measures.max_mean(zipf) == pytest.approx(2.943495, abs=EXACT)
    assert measures.gini(zipf) == pytest.approx(0.389126, abs=EXACT)


def test_one_to_four_and_one_hot():
    assert measures.gini([1, 2, 3, 4]) == pytest.approx(0.25, abs=EXACT)
    one_hot = np.eye(8)[3]
    assert measures.gini(one_hot) == pytest.approx(0.875, abs=EXACT)
    assert measures.entropy_bits(one_hot) == 0
    assert measures.max_mean(one_hot) == 8
    assert measures.cv(one_hot) == pytest.approx(np.sqrt(7), abs=EXACT)


@pytest.mark.parametrize("name", ALL)
def test_what_has_no_shares_is_nan_without_a_warning(name):
    measure = measures.MEASURES[name]
    values = np.array([[0.0, 0, 0], [1, 2, 3], [1, np.nan, 3], [1, np.inf, 3]])
    # that all cells are zero is known of zeros
    none = name != "zero"
    assert np.isnan(measure(values)).tolist() == [none, False, True, True]
    assert np.isnan(measure(np.zeros((2, 0)))).all()
    assert np.isnan(measure([[5]], axis=(0, 1), diagonal=False))
    assert measure(np.zeros((0, 4))).shape == (0,)


def test_one_cell_is_even_but_has_no_normalized_entropy():
    assert np.isnan(measures.entropy([5]))
    assert measures.gini([5]) == measures.cv([5]) == measures.entropy_bits([5]) == 0


@pytest.mark.parametrize("name", ALL)
def test_the_axis_chooses_matrix_row_or_column(name):
    demand = np.random.default_rng(0).integers(1, 90, size=(5, 4, 6))
    measure = measures.MEASURES[name]
    assert measure(demand, axis=(-2, -1)) == pytest.approx(
        [measure(m.ravel()) for m in demand]
    )
    assert measure(demand, axis=-1)[2, 3] == pytest.approx(measure(demand[2, 3]))
    assert measure(demand, axis=-2)[2, 5] == pytest.approx(measure(demand[2, :, 5]))


@pytest.mark.parametrize("name", ALL)
def test_a_diagonal_left_out_may_hold_anything(name):
    rng = np.random.default_rng(1)
    matrices = rng.integers(1, 90, size=(3, 5, 5))
    other = matrices + np.eye(5, dtype=np.int64) * 1000
    measure, of = measures.MEASURES[name], {"axis": (-2, -1), "diagonal": False}
    outside = matrices[:, ~np.eye(5, dtype=bool)]
    assert measure(matrices, **of) == pytest.approx(measure(other, **of))
    assert measure(matrices, **of) == pytest.approx(measure(outside))


@given(counts, st.integers(1, 1000))
def test_scale_and_order_do_not_matter(values, factor):
    shuffled = np.random.default_rng(0).permutation(values, axis=1)
    for name, measure in measures.MEASURES.items():
        once = measure(values)
        assert measure(values * factor) == pytest.approx(once, nan_ok=True), name
        assert measure(shuffled) == pytest.approx(once, nan_ok=True), name


@given(counts)
def test_every_measure_keeps_its_bounds(values):
    number = values.shape[1]
    some = values[values.sum(axis=1) > 0]
    bounds = {
        "entropy_bits": (0, np.log2(number)),
        "entropy": (0, 1),
        "gini": (0, 1 - 1 / number),
        "cv": (0, np.sqrt(number - 1)),
        "max_mean": (1, number),
    }
    for name, (low, high) in bounds.items():
        found = measures.MEASURES[name](some)
        found = found[np.isfinite(found)]
        assert (found >= low - 1e-9).all(), name
        assert (found <= high + 1e-9).all(), name
    assert (measures.entropy_bits(some) >= 0).all()
    assert (measures.entropy_bits(some) <= np.log2(number)).all()


@given(counts)
def test_moving_copies_from_a_larger_cell_to_a_smaller_evens_out(values):
    row = np.sort(values[0])
    if row[-1] - row[0] < 2:
        return
    moved = row.copy()
    moved[0] += 1
    moved[-1] -= 1
    assert measures.gini(moved) <= measures.gini(row) + 1e-12
    assert measures.entropy_bits(moved) >= measures.entropy_bits(row) - 1e-12
    assert measures.cv(moved) <= measures.cv(row) + 1e-9


def test_integers_of_any_width_do_not_overflow():
    assert measures.entropy(np.full(200, 255, np.uint8)) == pytest.approx(1)
    assert measures.gini(np.full(8, 2**62, np.int64)) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("values", "of", "says"),
    [
        ([1, -2], {}, "never negative"),
        ([[1, 2]], {"axis": (0, 1), "diagonal": False}, "square"),
        ([1, 2], {"diagonal": False}, "square"),
    ],
)
def test_what_is_no_distribution_is_refused(values, of, says):
    with pytest.raises(AnalysisError, match=says):
        measures.entropy_bits(values, **of)


def test_zero():
    matrix = np.array([[5, 0, 0], [0, 0, 3], [1, 1, 1]])
    assert measures.zero(matrix, axis=(0, 1)) == pytest.approx(4 / 9)
    assert measures.zero(matrix, axis=(0, 1), diagonal=False) == pytest.approx(0.5)
    assert measures.zero(matrix).tolist() == pytest.approx([2 / 3, 2 / 3, 0])
    assert measures.zero(matrix, axis=0).tolist() == pytest.approx(
        [1 / 3, 2 / 3, 1 / 3]
    )
    assert measures.zero(np.zeros((2, 2)), axis=(0, 1)) == 1
    assert np.isnan(measures.zero([[7]], axis=(0, 1), diagonal=False))

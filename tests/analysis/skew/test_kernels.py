"""Statistics of many matrices at once agree with the measures of single arrays."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moetraffic.analysis.skew import kernels, measures
from moetraffic.analysis.skew.kernels import MatrixStatistics, matrix_statistics
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")

SHAPES = [
    # N, A, B and the median count: counted by value, or sorted
    ((3, 64, 64), 30),
    ((4, 8, 8), 500),
    ((3, 9, 13), 3000),
    ((2, 40, 17), 20_000),
    ((3, 12, 12), 10**9),
    ((2, 4, 4), 10**14),
    ((3, 16, 16), 0.2),
    ((4, 1, 1), 3),
    ((4, 3, 1), 2),
    ((2, 1, 7), 9000),
]


def drawn(shape, middle, seed=3):
    rng = np.random.default_rng(seed)
    counts = rng.poisson(rng.lognormal(np.log(middle), 1, shape)).astype(np.int64)
    counts[0] = 0
    return counts


def assert_equal(one: MatrixStatistics, other: MatrixStatistics) -> None:
    for field in dataclasses.fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12, err_msg=field.name)


@pytest.mark.parametrize(("shape", "middle"), SHAPES)
@pytest.mark.parametrize("diagonal", [True, False])
def test_statistics_agree_with_the_measures(shape, middle, diagonal):
    if not diagonal and shape[1] != shape[2]:
        shape = (shape[0], shape[1], shape[1])
    counts = drawn(shape, middle)
    found = matrix_statistics(counts, diagonal=diagonal)
    of = {"axis": (-2, -1), "diagonal": diagonal}
    for name, measure in measures.MEASURES.items():
        np.testing.assert_allclose(
            getattr(found, name), measure(counts, **of), rtol=1e-11, atol=1e-12
        )
    kept = counts.copy()
    if not diagonal:
        kept[:, np.arange(shape[1]), np.arange(shape[1])] = 0
    assert found.sent.tolist() == kept.sum(axis=2).tolist()
    assert found.received.tolist() == kept.sum(axis=1).tolist()
    assert found.largest.tolist() == kept.max(axis=(1, 2)).tolist()
    assert found.nonzero.tolist() == (kept > 0).sum(axis=(1, 2)).tolist()
    if found.cells:
        for axis, name in ((2, "source_entropy"), (1, "destination_entropy")):
            np.testing.assert_allclose(
                getattr(found, name), measures.entropy(kept.sum(axis=axis)), atol=1e-12
            )


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint32])
def test_slices_types_and_memory_order_change_nothing(kind, monkeypatch):
    counts = drawn((30, 16, 16), 40).astype(kind)
    counts[7] *= 1000
    whole = matrix_statistics(counts)
    monkeypatch.setattr(kernels, "SLICE_BYTES", 3000)
    assert_equal(whole, matrix_statistics(counts))
    assert_equal(whole, matrix_statistics(np.asfortranarray(counts)))
    locked = counts.copy()
    locked.flags.writeable = False
    assert_equal(whole, matrix_statistics(locked, diagonal=True))
    assert_equal(whole, matrix_statistics(counts.astype(counts.dtype.newbyteorder())))


@given(
    hnp.arrays(
        st.sampled_from([np.int32, np.int64, np.uint8, np.int16]),
        st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 9)),
        elements=st.integers(0, 100) | st.integers(0, 127),
    ),
)
def test_any_small_counts(counts):
    found = matrix_statistics(counts)
    of = {"axis": (-2, -1)}
    np.testing.assert_allclose(
        found.entropy, measures.entropy(counts, **of), atol=1e-12
    )
    np.testing.assert_allclose(found.gini, measures.gini(counts, **of), atol=1e-12)


def test_exact_cases():
    uniform, permutation = np.full((8, 8), 7), np.roll(np.eye(8, dtype=int), 1, 1) * 5
    found = matrix_statistics([uniform, permutation], diagonal=False)
    assert found.entropy == pytest.approx([np.log2(56), 3], abs=1e-12)
    assert found.normalized_entropy == pytest.approx([1, 0.516586], abs=1e-6)
    assert found.cv_squared.tolist() == [0, pytest.approx(6)]
    assert found.gini == pytest.approx([0, 48 / 56])
    assert found.sparsity == pytest.approx([0, 48 / 56])
    assert found.bottleneck.tolist() == [49, 5]
    assert found.line_efficiency.tolist() == [1, 1]
    # the permutation's destination is known with its source, the uniform one's less
    assert found.mutual_information == pytest.approx([6 - np.log2(56), 3])
    assert found.conditional_entropy == pytest.approx([np.log2(56) - 3, 0], abs=1e-12)


def test_bytes_past_a_square_in_64_bits_are_still_exact():
    bytes_ = np.array([[[0, 3], [1, 0]]]) * 2**59
    found = matrix_statistics(bytes_)
    assert found.cv == pytest.approx(measures.cv([0, 3, 1, 0]), abs=1e-12)
    assert found.entropy == pytest.approx(measures.entropy([3, 1]), abs=1e-12)
    even = matrix_statistics(np.full((1, 64, 64), 123_456_789))
    assert even.cv.tolist() == [0] == even.gini.tolist()


def test_a_long_matrix_and_a_wide_one():
    counts = drawn((2, 256, 32), 15)[1]
    found = matrix_statistics(counts)
    across = matrix_statistics(counts.T)
    assert found.gini == across.gini
    assert found.entropy == pytest.approx(across.entropy, abs=1e-12)
    assert found.line_efficiency == across.line_efficiency < 1


def test_nothing_sent_says_what_can_be_said():
    found = matrix_statistics(np.zeros((2, 3, 3), int))
    assert found.sparsity.tolist() == [1, 1]
    assert found.bottleneck.tolist() == [0, 0]
    for name in ("entropy", "gini", "cv", "max_over_mean", "line_efficiency"):
        assert np.isnan(getattr(found, name)).all(), name
    assert np.isnan(found.mutual_information).all()
    one = matrix_statistics([[5]], diagonal=False)
    assert one.cells == 0
    assert np.isnan(one.entropy).all()
    assert np.isnan(one.sparsity).all()
    assert matrix_statistics(np.zeros((0, 4, 4), int)).entropy.shape == (0,)


def test_what_is_no_count_is_refused():
    with pytest.raises(AnalysisError, match="negative"):
        matrix_statistics([[1, -2], [3, 4]])
    with pytest.raises(AnalysisError, match="integers"):
        matrix_statistics([[0.5, 0.5]])
    with pytest.raises(AnalysisError, match="square"):
        matrix_statistics([[1, 2]], diagonal=False)
    with pytest.raises(AnalysisError, match="64 bits"):
        matrix_statistics([[2**62, 2**62]])
    with pytest.raises(AnalysisError, match=r"2\^63"):
        matrix_statistics(np.array([[2**64 - 1]], np.uint64))

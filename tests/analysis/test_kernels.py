"""Measures of many matrices at once agree with the measures of single arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moetraffic.analysis import kernels, measures
from moetraffic.analysis.kernels import matrix_statistics
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")

SHAPES = [  # N, A, B and the median count
    ((3, 64, 64), 30),
    ((3, 9, 13), 3000),
    ((2, 40, 17), 20_000),
    ((3, 12, 12), 10**9),
    ((2, 4, 4), 10**14),
    ((3, 16, 16), 0.2),
    ((4, 1, 1), 3),
    ((4, 3, 1), 2),
]


def drawn(shape: tuple[int, ...], middle: float) -> np.ndarray:
    rng = np.random.default_rng(3)
    counts = rng.poisson(rng.lognormal(np.log(middle), 1, shape)).astype(np.int64)
    counts[0] = 0
    return counts


@pytest.mark.parametrize(("shape", "middle"), SHAPES)
@pytest.mark.parametrize("diagonal", [True, False])
def test_statistics_agree_with_the_measures(
    shape: tuple[int, int, int], middle: float, diagonal: bool
) -> None:
    if not diagonal:
        shape = (shape[0], shape[1], shape[1])
    counts = drawn(shape, middle)
    measured = matrix_statistics(counts, diagonal=diagonal)
    for name, measure in measures.MEASURES.items():
        np.testing.assert_allclose(
            measured[name],
            measure(counts, axis=(-2, -1), diagonal=diagonal),
            rtol=1e-11,
            atol=1e-12,
            err_msg=name,
        )
    kept = counts.copy()
    if not diagonal:
        kept[:, np.arange(shape[1]), np.arange(shape[1])] = 0
    assert measured["sent"].tolist() == kept.sum(axis=2).tolist()
    assert measured["received"].tolist() == kept.sum(axis=1).tolist()


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_slices_types_and_memory_order_change_nothing(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = drawn((30, 16, 16), 40).astype(kind)
    counts[7] *= 1000
    whole = matrix_statistics(counts)
    monkeypatch.setattr(kernels, "SLICE_BYTES", 3000)
    for other in (counts, np.asfortranarray(counts)):
        for name, values in matrix_statistics(other).items():
            np.testing.assert_allclose(values, whole[name], rtol=1e-12, atol=1e-12)


@given(
    hnp.arrays(
        st.sampled_from([np.int32, np.int64, np.uint8, np.int16]),
        st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 9)),
        elements=st.integers(0, 127),
    ),
)
def test_any_small_counts(counts: np.ndarray) -> None:
    measured = matrix_statistics(counts)
    for name, measure in measures.MEASURES.items():
        expected = measure(counts, axis=(-2, -1))
        np.testing.assert_allclose(measured[name], expected, atol=1e-11)


def test_exact_cases() -> None:
    uniform, permutation = np.full((8, 8), 7), np.roll(np.eye(8, dtype=int), 1, 1) * 5
    measured = matrix_statistics(np.array([uniform, permutation]), diagonal=False)
    assert measured["entropy_bits"] == pytest.approx([np.log2(56), 3], abs=1e-12)
    assert measured["entropy"] == pytest.approx([1, 0.516586], abs=1e-6)
    assert measured["cv"] == pytest.approx([0, np.sqrt(6)])
    assert measured["gini"] == pytest.approx([0, 48 / 56])
    assert measured["zero"] == pytest.approx([0, 48 / 56])
    assert measured["bottleneck"].tolist() == [49, 5]
    assert measured["line_efficiency"].tolist() == [1, 1]


def test_bytes_beyond_a_square_in_64_bits() -> None:
    measured = matrix_statistics(np.array([[[0, 3], [1, 0]]]) * 2**59)
    assert measured["cv"] == pytest.approx(measures.cv([0, 3, 1, 0]), abs=1e-12)
    even = matrix_statistics(np.full((1, 64, 64), 123_456_789))
    assert even["cv"] == pytest.approx(0, abs=1e-9)


def test_nothing_sent() -> None:
    measured = matrix_statistics(np.zeros((2, 3, 3), int))
    assert measured["zero"].tolist() == [1, 1]
    assert measured["bottleneck"].tolist() == [0, 0]
    for name in ("gini", "cv", "max_mean", "line_efficiency", "entropy"):
        assert np.isnan(measured[name]).all(), name
    single = matrix_statistics(np.array([[[5]]]), diagonal=False)
    assert np.isnan(single["entropy"]).all()
    assert matrix_statistics(np.zeros((0, 4, 4), int))["cv"].shape == (0,)


def test_negative_counts_are_refused() -> None:
    with pytest.raises(AnalysisError, match="negative"):
        matrix_statistics(np.array([[[1, -2], [3, 4]]]))

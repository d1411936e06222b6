"""The fast pass: as the slow measures, and to the bit the same whoever counts it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moetraffic import machine_code
from moetraffic.analysis.skew import kernels, measures
from moetraffic.analysis.skew.kernels import MatrixStatistics, matrix_statistics
from moetraffic.analysis.skew.logarithms import logarithm, terms
from moetraffic.errors import AnalysisError

pytestmark = pytest.mark.filterwarnings("error")

SHAPES = [
    # N, A, B and the middle of the counts: binned, in the table, by logarithm
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


def assert_same_bits(one: MatrixStatistics, other: MatrixStatistics) -> None:
    for field in dataclasses.fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), field.name


@pytest.mark.parametrize(("shape", "middle"), SHAPES)
@pytest.mark.parametrize("diagonal", [True, False])
def test_it_is_what_the_measures_are(shape, middle, diagonal):
    if not diagonal and shape[1] != shape[2]:
        shape = (shape[0], shape[1], shape[1])
    counts = drawn(shape, middle)
    found = matrix_statistics(counts, diagonal=diagonal)
    of = {"axis": (-2, -1), "diagonal": diagonal}
    for name, measure in measures.MEASURES.items():
        np.testing.assert_allclose(
            getattr(found, name), measure(counts, **of), rtol=1e-11, atol=1e-12
        )
    np.testing.assert_allclose(
        found.corrected_entropy,
        measures.entropy(counts, bias_corrected=True, **of),
        rtol=1e-12,
        atol=1e-12,
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


# each type compiles for itself, which takes long the first time
KINDS = [np.int32, pytest.param(np.int64, marks=pytest.mark.slow)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shape", "middle"), SHAPES)
@pytest.mark.parametrize("diagonal", [True, False])
def test_whoever_counts_counts_the_same_bits(shape, middle, diagonal, kind):
    pytest.importorskip("numba")
    if not diagonal and shape[1] != shape[2]:
        shape = (shape[0], shape[1], shape[1])
    counts = np.minimum(drawn(shape, middle), np.iinfo(kind).max // 2)
    plain = matrix_statistics(counts, diagonal=diagonal, way="numpy")
    given = counts.astype(kind)
    assert_same_bits(plain, matrix_statistics(given, diagonal=diagonal, way="numba"))
    assert_same_bits(plain, matrix_statistics(given, diagonal=diagonal, way="numpy"))


@pytest.mark.parametrize("way", ["numba", "numpy"])
def test_threads_chunks_and_memory_order_change_nothing(way, monkeypatch):
    if way == "numba":
        pytest.importorskip("numba")
    counts = drawn((30, 16, 16), 40).astype(np.int32)
    counts[7] *= 1000
    whole = matrix_statistics(counts, way=way, threads=1)
    monkeypatch.setattr(kernels, "SLICE_BYTES", 3000)
    monkeypatch.setattr(kernels, "SORTED_CELLS", 300)
    assert_same_bits(whole, matrix_statistics(counts, way=way, threads=4))
    assert_same_bits(whole, matrix_statistics(np.asfortranarray(counts), way=way))
    locked = counts.copy()
    locked.flags.writeable = False
    assert_same_bits(whole, matrix_statistics(locked, way=way))
    swapped = counts.astype(counts.dtype.newbyteorder())
    assert_same_bits(whole, matrix_statistics(swapped, way=way))
    for i in (1, 7):
        alone = matrix_statistics(counts[i], way=way)
        for field in dataclasses.fields(alone):
            if field.name != "cells":
                a, b = getattr(alone, field.name)[0], getattr(whole, field.name)[i]
                assert np.array_equal(a, b), field.name


@settings(max_examples=40)
@given(
    hnp.arrays(
        st.sampled_from([np.int32, np.int64, np.uint8, np.int16]),
        st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 9)),
        elements=st.integers(0, 100) | st.integers(0, 127),
    ),
    st.booleans(),
)
def test_any_small_counts(counts, gini):
    found = matrix_statistics(counts, gini=gini, way="numpy")
    of = {"axis": (-2, -1)}
    np.testing.assert_allclose(
        found.entropy, measures.entropy(counts, **of), atol=1e-12
    )
    np.testing.assert_allclose(
        found.gini, measures.gini(counts, **of) if gini else found.gini, atol=1e-12
    )


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
    assert found.max_violation == pytest.approx([0, 6])
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


def test_bytes_of_whole_rows_are_counted_in_rows():
    rows = drawn((3, 12, 12), 40)
    whole = matrix_statistics(rows * 4096, diagonal=False, unit=4096)
    plain = matrix_statistics(rows * 4096, diagonal=False)
    for field in dataclasses.fields(whole):
        a, b = getattr(whole, field.name), getattr(plain, field.name)
        assert np.allclose(a, b, rtol=1e-12, atol=1e-12, equal_nan=True), field.name
    with pytest.raises(AnalysisError, match="multiples"):
        matrix_statistics([[4096, 4095]], unit=4096)
    with pytest.raises(AnalysisError, match="from 1 on"):
        matrix_statistics([[4096]], unit=0)


@pytest.mark.slow
def test_a_full_disk_costs_the_compilation_only(tmp_path):
    pytest.importorskip("numba")
    code = (
        "import numba.core.caching as kept\n"
        "def full(*_): raise OSError(28, 'No space left on device')\n"
        "kept.IndexDataCacheFile.save = full\n"
        "from moetraffic.analysis.skew.kernels import matrix_statistics\n"
        "print(matrix_statistics([[1, 1]], way='numba').entropy.tolist())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert ran.stdout.strip() == "[1.0]"


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
    for name in ("entropy", "gini", "cv", "jain", "max_over_mean", "line_efficiency"):
        assert np.isnan(getattr(found, name)).all(), name
    assert np.isnan(found.mutual_information).all()
    one = matrix_statistics([[5]], diagonal=False)
    assert one.cells == 0
    assert np.isnan(one.entropy).all()
    assert np.isnan(one.sparsity).all()
    assert matrix_statistics(np.zeros((0, 4, 4), int)).entropy.shape == (0,)


def test_a_process_compiles_only_when_it_has_counted_enough(monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setattr(kernels._Bill, "cells", 0)
    monkeypatch.setattr(kernels._Bill, "ready", set())
    monkeypatch.setattr(kernels, "PATIENCE", 150)
    seen: list[str] = []
    monkeypatch.setattr(
        "moetraffic.analysis.skew.compiled_pass.sweep",
        lambda kind: seen.append(kind) or no_sums,
    )

    def no_sums(*_):
        pass

    for _ in range(3):
        matrix_statistics(np.ones((1, 8, 8), np.int32))
    assert seen == ["int32"]
    # what is compiled is used from the first matrix on
    monkeypatch.setattr(kernels._Bill, "cells", 0)
    matrix_statistics(np.ones((1, 8, 8), np.int32))
    assert seen == ["int32"] * 2
    # and where many matrices are to come, the first waits for the compiler
    matrix_statistics(np.ones((1, 4, 4), np.int64))
    assert seen == ["int32"] * 2
    kernels.foresee(500)
    matrix_statistics(np.ones((1, 4, 4), np.int64))
    assert seen == ["int32"] * 2 + ["int64"]


def test_what_is_no_count_is_refused():
    with pytest.raises(AnalysisError, match="negative"):
        matrix_statistics([[1, -2], [3, 4]])
    with pytest.raises(AnalysisError, match="integers"):
        matrix_statistics([[0.5, 0.5]])
    with pytest.raises(AnalysisError, match="square"):
        matrix_statistics([[1, 2]], diagonal=False)
    with pytest.raises(AnalysisError, match="64 bits"):
        matrix_statistics([[2**62, 2**62]])
    with pytest.raises(AnalysisError, match="63 bits"):
        matrix_statistics(np.array([[2**64 - 1]], np.uint64))
    with pytest.raises(AnalysisError, match="ways"):
        matrix_statistics([[1]], way="fortran")


def test_without_numba_numpy_counts_and_numba_is_asked_for_by_name(monkeypatch):
    monkeypatch.setattr(machine_code, "available", lambda: False)
    monkeypatch.setattr(kernels, "PATIENCE", 0)
    assert matrix_statistics([[1, 1]]).entropy.tolist() == [1]
    with pytest.raises(AnalysisError, match=r"moetraffic\[fast\]"):
        matrix_statistics([[1]], way="numba")


def test_logarithms_are_those_of_the_library_and_exact_for_powers_of_two():
    values = np.concatenate(
        [np.arange(1, 5000), 2.0 ** np.arange(0, 62), np.geomspace(1, 1e18, 5000)]
    )
    np.testing.assert_allclose(
        logarithm(values), np.log2(values), rtol=4e-16, atol=4e-16
    )
    powers = 2.0 ** np.arange(-30, 62)
    assert logarithm(powers).tolist() == list(range(-30, 62))
    assert terms([0, 1]).tolist() == [0, 0]

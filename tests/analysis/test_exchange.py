"""Matrices are the same however they are cut, and whoever reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moetraffic.analysis.exchange import read, sources, windows
from moetraffic.analysis.mapper import in_threads, observed
from moetraffic.analysis.observation import joined, observe, sample, samples
from moetraffic.data import path
from moetraffic.errors import AnalysisError
from moetraffic.trace import Trace


def test_iterations_that_repeat_others_are_left_out_and_named() -> None:
    notes: list[str] = []
    with Trace.open(path("golden-generated.h5")) as trace:
        for asked, last in ((None, 29), (range(10, 60), 29), (range(5, 20), 19)):
            for source in sources(trace, notes, iterations=asked):
                assert source.iterations[-1] == last
        with pytest.raises(AnalysisError, match="from 30 on repeat"):
            sources(trace, notes, iterations=range(30, 40))
        more = "ranks 2 to 3 repeat captured ones; analog model fitted to run.h5"
        many = trace.replaced(meta=replace(trace.meta, source=more))
        sources(many, ranks := list[str](), iterations=range(5, 20))
    assert notes == 2 * [
        "synthetic: iterations 30 to 39 repeat captured ones, left out"
    ]
    assert ranks == ["synthetic: ranks 2 to 3 repeat captured ones"]


def test_a_window_holds_the_sums_that_matrix_gives(captured: Path) -> None:
    with Trace.open(captured) as trace:
        for source in sources(trace, []):
            whole = read(trace, source, range(len(source.iterations)))
            assert whole.wire is not None
            assert whole.demand is not None
            for at, iteration in enumerate(source.iterations.tolist()):
                told = trace.matrix(iteration, source.layer, "dispatch", of="wire")
                sent = whole.wire[at].astype(np.int64) * whole.wire_unit
                assert np.array_equal(sent, told.values)
                # every copy that was routed is in the demand
                of = trace.find(
                    operation="routing",
                    layer=source.layer,
                    iterations=range(iteration, iteration + 1),
                )
                assert np.array_equal(whole.demand[at], trace.demand(of).sum(axis=0))


@pytest.mark.parametrize("phase", ["combine", "combine_grad", "dispatch_grad"])
def test_other_phases_are_read_in_their_own_orientation(phase: str) -> None:
    with Trace.open(path("golden.h5")) as trace:
        found = sources(trace, [], phase=phase, of=("wire",))
        assert found
        for source in found:
            window = read(trace, source, range(2, 4))
            assert window.wire is not None
            for at, iteration in enumerate(source.iterations[2:4].tolist()):
                told = trace.matrix(iteration, source.layer, phase, of="wire")
                assert np.array_equal(
                    np.asarray(window.wire[at], np.int64) * window.wire_unit,
                    told.values,
                )


@pytest.mark.parametrize("size", [1, 3000, 1 << 23])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_rows_do_not_depend_on_windows_or_threads(
    captured: Path, size: int, threads: int
) -> None:
    with Trace.open(captured) as trace:
        for source in sources(trace, []):
            whole = observe(source, read(trace, source, range(len(source.iterations))))
            cut = windows(source, size_bytes=size)
            assert [i for part in cut for i in part] == list(
                range(len(source.iterations))
            )
            parts = joined(list(in_threads(trace, threads)(source, cut)))
            assert parts.keys() == whole.keys()
            for name, rows in whole.items():
                assert rows.dtype == parts[name].dtype
                np.testing.assert_allclose(
                    rows, parts[name], rtol=1e-12, atol=1e-14, err_msg=name
                )


def test_rows_conserve_bytes(captured: Path) -> None:
    with Trace.open(captured) as trace:
        for source in sources(trace, []):
            rows = observed(source, in_threads(trace, 2))
            assert np.array_equal(
                rows["wire.sent"].sum(axis=1), rows["wire.received"].sum(axis=1)
            )
            assert np.array_equal(
                rows["demand.load"].sum(axis=1), rows["demand.sent"].sum(axis=1)
            )
            # all cells of so small a matrix are followed
            assert len(samples(source)["wire"].index) == len(source.ranks) * 3
            assert np.array_equal(
                rows["wire.cells"].sum(axis=1), rows["wire.sent"].sum(axis=1)
            )


def test_large_matrices_are_followed_in_a_sample() -> None:
    few = sample(1024 * 256, 100_000)
    assert few.of == 1024 * 256
    assert len(few.index) == 64
    assert len(np.unique(few.index)) == 64
    assert np.array_equal(few.index, sample(1024 * 256, 100_000).index)
    assert len(sample(56, 10).index) == 56


def test_what_is_no_choice_is_refused(captured: Path) -> None:
    with Trace.open(captured) as trace:
        with pytest.raises(AnalysisError, match="a phase is one of"):
            sources(trace, [], phase="gather")
        with pytest.raises(AnalysisError, match="demand or of wire"):
            sources(trace, [], of=("loss",))
        notes: list[str] = []
        assert sources(trace, notes, of=("demand",))[0].sent.size == 0
        assert notes == []


@pytest.mark.parametrize("evaluations", [0, 1])
def test_iterations_that_are_none_of_training_are_refused(evaluations: int) -> None:
    """Other steps are named only where there are some."""
    with Trace.open(path("golden.h5")) as trace:
        kind = ("evaluation",) * evaluations + trace.steps.kind[evaluations:]
        steps = replace(trace.steps, kind=kind)
        with pytest.raises(AnalysisError, match="none of the") as refused:
            sources(trace.replaced(steps=steps), [], iterations=range(50, 60))
    assert ("evaluations, are numbered, too" in str(refused.value)) == evaluations

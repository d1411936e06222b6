"""Matrices and rows are the same however windows are cut, and whoever reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moetraffic.analysis.exchange import exchanges, read, training_steps, windows
from moetraffic.analysis.rows import in_threads, rows, sampled_cells, window_arrays
from moetraffic.data import path
from moetraffic.errors import AnalysisError
from moetraffic.trace import Trace


def test_iterations_that_repeat_others_are_left_out_and_named() -> None:
    notes: list[str] = []
    with Trace.open(path("golden-generated.h5")) as trace:
        for asked, last in ((None, 29), (range(10, 60), 29), (range(5, 20), 19)):
            for exchange in exchanges(trace, notes, iterations=asked):
                assert exchange.iterations[-1] == last
        with pytest.raises(AnalysisError, match="from 30 on repeat"):
            exchanges(trace, notes, iterations=range(30, 40))
        more = "ranks 2 to 3 repeat captured ones; analog model fitted to run.h5"
        many = trace.replaced(meta=replace(trace.meta, source=more))
        exchanges(many, ranks := list[str](), iterations=range(5, 20))
    assert notes == 2 * [
        "synthetic: iterations 30 to 39 repeat captured ones, left out"
    ]
    assert ranks == ["synthetic: ranks 2 to 3 repeat captured ones"]


@pytest.mark.parametrize(
    "phase", ["dispatch", "combine", "combine_grad", "dispatch_grad"]
)
def test_a_window_holds_the_sums_that_matrix_gives(phase: str) -> None:
    with Trace.open(path("golden.h5")) as trace:
        located = exchanges(trace, [], phase=phase)
        assert located
        for exchange in located:
            window = read(trace, exchange, range(len(exchange.iterations)))
            assert window.wire is not None
            assert window.demand is not None
            for index, iteration in enumerate(exchange.iterations.tolist()):
                matrix = trace.matrix(iteration, exchange.layer, phase, of="wire")
                sent = window.wire[index].astype(np.int64) * window.row_bytes
                assert np.array_equal(sent, matrix.values)
                calls = trace.find(
                    operation="routing",
                    layer=exchange.layer,
                    iterations=range(iteration, iteration + 1),
                )
                copies = trace.demand(calls).sum(axis=0)
                assert np.array_equal(window.demand[index], copies)


@pytest.mark.parametrize("size", [1, 3000, 1 << 23])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_rows_do_not_depend_on_windows_or_threads(
    captured: Path, size: int, threads: int
) -> None:
    with Trace.open(captured) as trace:
        for exchange in exchanges(trace, []):
            total = len(exchange.iterations)
            whole = window_arrays(exchange, read(trace, exchange, range(total)))
            cut = windows(exchange, size_bytes=size)
            assert [index for window in cut for index in window] == list(range(total))
            parts = list(in_threads(trace, threads)(exchange, cut))
            for name, array in whole.items():
                joined = np.concatenate([part[name] for part in parts])
                assert array.dtype == joined.dtype
                np.testing.assert_allclose(
                    array, joined, rtol=1e-12, atol=1e-14, err_msg=name
                )


def test_rows_conserve_bytes_and_copies(captured: Path) -> None:
    with Trace.open(captured) as trace:
        for exchange in exchanges(trace, []):
            table = rows(trace, exchange)
            assert table.sent is not None
            assert table.received is not None
            assert table.pairs is not None
            assert table.load is not None
            assert table.routed is not None
            total = table.sent.sum(axis=1)
            assert np.array_equal(total, table.received.sum(axis=1))
            assert np.array_equal(total, table.pairs.sum(axis=1))
            assert np.array_equal(table.load.sum(axis=1), table.routed.sum(axis=1))
            assert table.row_bytes > 1


def test_large_matrices_are_followed_in_a_sample() -> None:
    few = sampled_cells(1024 * 256, 100_000)
    assert len(np.unique(few)) == 64
    assert np.array_equal(few, sampled_cells(1024 * 256, 100_000))
    assert len(sampled_cells(56, 10)) == 56


def test_an_unknown_phase_or_layer_is_refused(captured: Path) -> None:
    with Trace.open(captured) as trace:
        with pytest.raises(AnalysisError, match="a phase is one of"):
            exchanges(trace, [], phase="gather")
        with pytest.raises(AnalysisError, match=r"not of \[2\]"):
            exchanges(trace, [], layers=[2])


@pytest.mark.parametrize("evaluations", [0, 1])
def test_iterations_that_are_none_of_training_are_refused(evaluations: int) -> None:
    """Other steps are named only where there are some."""
    with Trace.open(path("golden.h5")) as trace:
        kind = ("evaluation",) * evaluations + trace.steps.kind[evaluations:]
        steps = replace(trace.steps, kind=kind)
        with pytest.raises(AnalysisError, match="none of the") as refused:
            exchanges(trace.replaced(steps=steps), [], iterations=range(50, 60))
    assert ("evaluations, are numbered, too" in str(refused.value)) == evaluations


def test_evaluations_between_training_steps_are_no_gap() -> None:
    counts = np.ones((300, 1, 4, 8), int)
    trace = Trace.from_arrays(counts, k=1)
    kinds = ["train"] * 300
    kinds[100] = kinds[200] = "evaluation"
    trace = trace.replaced(steps=replace(trace.steps, kind=tuple(kinds)))
    steps = training_steps(trace, trace.iterations)
    assert np.array_equal(steps, np.arange(298))
    (exchange,) = exchanges(trace, [])
    assert exchange.regular == (slice(0, 298), 1)

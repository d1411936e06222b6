"""Traces of arrays, and a trace as array, table and text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from moetraffic.analysis import analyze
from moetraffic.errors import TraceError
from moetraffic.interop import import_files, import_trace
from moetraffic.report.views.info import info
from moetraffic.trace import PHASES, ROUTING, Trace
from tests.interop.samples import routed_table

from .conftest import make_trace

DEMAND = np.arange(2 * 3 * 2 * 2 * 4).reshape(2, 3, 2, 2, 4)  # T, L, M, W, E


def test_demand_and_wire_of_given_counts(tmp_path: Path) -> None:
    made = Trace.from_arrays(DEMAND, k=2, row_bytes=8)
    made.save(tmp_path / "made.h5")
    with Trace.open(tmp_path / "made.h5") as trace:
        assert np.array_equal(
            trace.to_xarray().transpose(
                "iteration", "layer", "micro_batch", "src", "expert"
            ),
            DEMAND,
        )
        one = DEMAND[1, 2, 0]
        by_rank = np.stack([one[:, :2].sum(axis=1), one[:, 2:].sum(axis=1)], axis=1)
        for of in ("demand", "wire"):
            matrix = trace.matrix(1, 2, "dispatch", micro_batch=0, of=of)
            assert np.array_equal(matrix, 8 * by_rank)
        back = trace.matrix(1, 2, "combine", micro_batch=0, unit="tokens")
        assert np.array_equal(back, by_rank.T)
        assert (trace.meta.k, trace.meta.ep, trace.meta.experts) == (2, 2, 4)


def test_one_micro_batch_needs_no_axis() -> None:
    short, long = (Trace.from_arrays(d) for d in (DEMAND[:, :, 0], DEMAND[:, :, :1]))
    assert np.array_equal(short.to_xarray(), long.to_xarray())


def test_given_placement_drops_and_numbers() -> None:
    counts = np.full((1, 2, 2, 2), 5)
    trace = Trace.from_arrays(
        counts,
        placement=[[0, 1], [1, 0]],
        dropped=counts // 2,
        iterations=[7],
        layers=[1, 3],
    )
    assert trace.layers == (1, 3)
    assert trace.iterations.tolist() == [7]
    assert trace.holder(3, 0, 7).tolist() == [1, 0]
    assert (
        np.asarray(trace.matrix(7, 3, "dispatch", of="wire")).tolist() == [[3, 3]] * 2
    )
    assert trace.dropped(trace.find(operation=ROUTING)).sum() == 16


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"demand": np.ones((2, 2, 2), int)}, "has the shape"),
        ({"demand": DEMAND[:0]}, "holds no iteration: give one or more"),
        ({"demand": np.ones((1, 1, 2, 2))}, "of type float64"),
        ({"demand": -DEMAND}, "values from -95 to 0"),
        ({"placement": [0, 1, 2, 0]}, "the rank, below 2, of each expert"),
        ({"placement": [0, 1]}, "check its shape"),
        ({"dropped": DEMAND + 1}, "at most its values"),
        ({"iterations": [1, 1]}, "2 increasing numbers"),
        ({"row_bytes": -5}, "^row_bytes is at least 1, but it is -5"),
        ({"k": 0}, "^k is at least 1, but it is 0: .* leave it out"),
        ({"demand": DEMAND.swapaxes(-1, -2)}, "check the order of the axes"),
    ],
)
def test_impossible_arrays_are_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(TraceError, match=said):
        Trace.from_arrays(**({"demand": DEMAND} | given))  # type: ignore[arg-type]


def test_a_matrix_is_an_array() -> None:
    matrix = make_trace().matrix(3, 0, "dispatch")
    array = np.asarray(matrix)
    assert array is matrix.values
    assert np.asarray(matrix, float).dtype == float
    assert np.array(matrix, copy=True) is not matrix.values
    assert (np.asarray(matrix) / 2 == matrix.values / 2).all()


def test_repr_is_one_line_that_describes_the_trace() -> None:
    assert repr(make_trace()) == (
        "<Trace 'trace': captured run of größe, 4 ranks, 2 MoE layers, 8 experts, "
        "39 training iterations, 520 calls, calls unknown (40 of 440)>"
    )


def test_rows_of_unknown_size_are_named(tmp_path: Path) -> None:
    Trace.from_arrays(DEMAND).save(tmp_path / "run.h5")
    assert "1 byte per token copy assumed" in repr(Trace.open(tmp_path / "run.h5"))
    assert "assumed" not in repr(Trace.from_arrays(DEMAND, row_bytes=1))


def test_arrays_and_a_table_of_them_are_described_alike(tmp_path: Path) -> None:
    """Neither has times, nor a parallel layout beyond its group."""
    counts = np.random.default_rng().integers(1, 50, (40, 4, 8))
    made = Trace.from_arrays(counts[:, None], row_bytes=8)
    read = import_trace(routed_table(tmp_path, counts))
    for trace in (made, read):
        assert "imported run, 4 ranks, 1 MoE layer, 8 experts" in repr(trace)
        assert ": imported, 4 ranks (ep 4, dp unknown)" in info(trace).head
        assert "no times of steps: the imported run has none" in analyze(trace).notes


def test_calls_are_a_tidy_table() -> None:
    trace = make_trace(missing=(30, 2))
    calls = trace.calls()
    assert len(calls) == len(trace.occurrences)
    dispatch = calls[(calls.phase == "dispatch") & (calls.layer == 1)]
    assert dispatch.bytes.isna().sum() == 10  # of which rank 2 has no record
    found = trace.find(phase="dispatch", layer=1, kind=None)
    assert (dispatch.bytes[:30] == trace.wire(found[:30]).sum(axis=(1, 2))).all()
    assert calls[calls.operation == ROUTING].bytes.isna().all()
    gathers = trace.find(operation="all_gather", kind=None)
    assert (calls.bytes[gathers] == trace.volume(gathers).sum(axis=1)).all()
    assert set(calls.phase) == {"", *PHASES}
    issue, _, end = trace.times(gathers)
    first = min(trace.times(trace.find(layer=n, kind=None))[0].min() for n in (0, 1))
    rest = trace.times(trace.find(layer=-1, operation="all_to_all", kind=None))[0].min()
    least = min(first, rest, trace.times(np.flatnonzero(calls.ranks == 2))[0].min())
    assert np.allclose(calls.issue_s[gathers], (issue.min(axis=1) - least) / 1e9)
    assert np.allclose(calls.end_s[gathers], (end.max(axis=1) - least) / 1e9)
    assert calls.start_s.isna().all()
    assert calls.issue_s.min() == 0


def test_demand_is_a_tidy_table() -> None:
    trace = make_trace(missing=(30, 2))
    found = trace.find(operation=ROUTING, layer=1)
    table = trace.demand_frame(found)
    demand = trace.demand(found)
    present = trace.present(found)
    assert len(table) == present.sum() * demand.shape[2]
    assert table.tokens.sum() == demand[present].sum()
    iterations = trace.occurrences.iteration[found]
    for at in (0, len(found) - 1):
        rows = table[table.iteration == iterations[at]].sort_values(["src", "expert"])
        mine = iterations == iterations[at]
        assert rows.tokens.sum() == demand[mine][present[mine]].sum()
    wide = table.pivot_table(index="src", columns="expert", values="tokens")
    assert wide.shape == demand.shape[1:]
    every = trace.demand_frame()
    assert every[every.layer == 1].tokens.sum() == table.tokens.sum()
    whole = make_trace()
    labeled = whole.to_xarray().to_series().rename("tokens").reset_index()
    keys = ["iteration", "micro_batch", "layer", "src", "expert"]
    merged = labeled.merge(whole.demand_frame(), on=keys, how="outer")
    assert (merged.tokens_x == merged.tokens_y).all()


def test_a_table_of_demand_has_evaluation_steps_where_asked_for() -> None:
    trace = make_trace()
    forward = {"operation": ROUTING, "direction": "forward"}
    both = trace.demand_frame(trace.find(**forward, kind=None))
    alone = trace.demand_frame(trace.find(**forward, kind="evaluation"))
    training = set(trace.demand_frame().iteration)
    assert set(alone.iteration) == {39}
    assert set(both.iteration) == training | {39} != training


def test_a_trace_without_routing_has_a_table_of_demand_without_rows() -> None:
    trace = make_trace()
    none = trace.demand_frame(trace.find(operation=ROUTING, layer=7))
    assert none.empty
    assert list(none) == list(trace.demand_frame())


def test_a_labeled_array_needs_routing(tmp_path: Path) -> None:
    table = tmp_path / "sent.csv"
    lines = [f"{i},0,dispatch,{s},{1 - s},64" for i in range(3) for s in range(2)]
    head = "iteration,layer,phase,source,destination,bytes"
    table.write_text("\n".join([head, *lines]) + "\n")
    _, merged = import_files([table])
    with pytest.raises(TraceError, match="the trace has no routing"):
        merged.trace.to_xarray()


def test_demand_without_a_token_copy_or_with_nan_is_refused() -> None:
    with pytest.raises(TraceError, match="holds no token copy: give counts"):
        Trace.from_arrays(np.zeros((3, 1, 2, 4), int))
    lacking = np.ones((1, 1, 2, 2))
    lacking[0, 0, 1] = np.nan
    with pytest.raises(TraceError, match="2 of its 4 values are NaN: give a count"):
        Trace.from_arrays(lacking)

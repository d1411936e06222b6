"""What a trace answers: demand, wire, matrices, order, and what is absent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from moetraffic.errors import TraceError
from moetraffic.trace import PHASES, ROUTING, Meta, Trace
from moetraffic.trace.clock import to_common
from moetraffic.trace.model import CLOCK, UNKNOWN_TIME
from tests.timed import with_times


def test_wire_told_by_demand_is_kept_copies_times_row_bytes(trace: Trace) -> None:
    for layer in (0, 1):
        routed = trace.find(operation=ROUTING, layer=layer, kind=None)
        kept = trace.demand(routed) - trace.dropped(routed)
        by_rank = kept.reshape(len(kept), 4, 4, 2).sum(axis=3) * 512
        for phase in PHASES:
            wire = trace.wire(trace.find(phase=phase, layer=layer, kind=None))
            turned = phase in ("combine", "dispatch_grad")
            assert np.array_equal(
                wire, by_rank.transpose(0, 2, 1) if turned else by_rank
            )


def test_phases_of_a_layer_are_transposes(trace: Trace) -> None:
    matrices = {
        (of, phase): trace.matrix(7, 1, phase, of=of).values
        for of in ("demand", "wire")
        for phase in PHASES
    }
    for of in ("demand", "wire"):
        dispatch = matrices[of, "dispatch"]
        assert np.array_equal(matrices[of, "combine"], dispatch.T)
        assert np.array_equal(matrices[of, "combine_grad"], dispatch)
        assert np.array_equal(matrices[of, "dispatch_grad"], dispatch.T)
    # layer 1 drops: what was sent is less than what was wanted
    assert matrices["wire", "dispatch"].sum() < matrices["demand", "dispatch"].sum()


def test_units_and_spaces_agree(trace: Trace) -> None:
    tokens = trace.matrix(3, 0, "combine", unit="tokens")
    world = trace.matrix(3, 0, "combine", unit="bytes", space="world")
    assert np.array_equal(tokens.values * 512, world.values)
    assert world.ranks == (0, 1, 2, 3)
    assert (
        tokens.label == "demand of combine, layer 0, iteration 3, micro-batch 0, tokens"
    )


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"iteration": 99}, "training iterations 0 to 38"),
        ({"layer": 5}, r"MoE layers are \[0, 1\]"),
        ({"phase": "shuffle"}, "phase is one of dispatch"),
        ({"unit": "GB"}, "unit is one of bytes, tokens"),
        ({"group": 1}, "has no demand"),
    ],
)
def test_a_matrix_that_does_not_exist_is_refused(
    trace: Trace, asked: dict[str, object], said: str
) -> None:
    question: dict[str, object] = {"iteration": 1, "layer": 0, "phase": "dispatch"}
    with pytest.raises(TraceError, match=said):
        trace.matrix(**(question | asked))  # type: ignore[arg-type]


def test_a_matrix_of_an_evaluation_step_is_called_one(trace: Trace) -> None:
    label = trace.matrix(39, 0, "dispatch").label
    assert "iteration 39 (evaluation)" in label
    for of, unit in (("wire", "bytes"), ("demand", "tokens")):
        with pytest.raises(TraceError, match=r"39 \(evaluation\) has no backward pass"):
            trace.matrix(39, 0, "combine_grad", of=of, unit=unit)  # type: ignore[call-overload]


def test_a_search_for_a_word_that_the_format_lacks_is_refused(trace: Trace) -> None:
    with pytest.raises(TraceError, match="not 'rooting': did you mean routing"):
        trace.find(operation="rooting")
    with pytest.raises(TraceError, match="not 'dispach': did you mean dispatch"):
        trace.find(phase="dispach")
    assert not len(trace.find(operation="broadcast"))  # it does not occur


def test_absent_is_absent_and_never_zero(ragged: Trace) -> None:
    found = ragged.find(operation=ROUTING, layer=0, kind=None)
    whole = ragged.complete(found)
    assert ragged.occurrences.iteration[whole].max() == 29
    assert ragged.present(found)[30:, 2].sum() == 0
    with pytest.raises(TraceError, match=r"lacks that of group ranks \[2\]"):
        ragged.matrix(35, 0, "dispatch")
    with pytest.raises(TraceError, match="some are absent"):
        ragged.to_xarray()


def test_labeled_array_holds_the_demand(trace: Trace) -> None:
    labeled = trace.to_xarray()
    assert dict(labeled.sizes) == {
        "iteration": 39,  # the evaluation step is no training iteration
        "micro_batch": 1,
        "layer": 2,
        "src": 4,
        "expert": 8,
    }
    one = labeled.sel(iteration=5, layer=1, micro_batch=0).to_numpy()
    routed = trace.find(operation=ROUTING, layer=1, iterations=range(5, 6))
    assert np.array_equal(one, trace.demand(routed)[0])


def test_a_closed_trace_is_not_called_damaged(trace: Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "run.h5")
    with Trace.open(tmp_path / "run.h5") as opened:
        pass
    with pytest.raises(TraceError, match=r"run\.h5 is closed: read it before the end"):
        opened.to_xarray()


def test_evaluation_steps_are_found_when_asked_for(trace: Trace) -> None:
    assert len(trace.find(phase="dispatch", layer=0)) == 39
    assert len(trace.find(phase="dispatch", layer=0, kind="evaluation")) == 1
    assert len(trace.find(phase="dispatch", layer=0, kind=None)) == 40


def test_order_is_the_order_of_issue(trace: Trace) -> None:
    order = trace.order(2)
    assert len(order) == len(trace.occurrences)
    iterations = trace.occurrences.iteration[order]
    assert (np.diff(iterations) >= 0).all()
    first = order[iterations == 0]
    issued = np.concatenate(
        [
            trace.times(first[i : i + 1], own_clock=True)[0].max(keepdims=True)[:, 0]
            for i in range(len(first))
            if trace.size(int(first[i])) == 4
        ]
    )
    assert len(issued) == 11


def test_a_selection_keeps_its_bytes(trace: Trace) -> None:
    some = trace.find(phase="combine", layer=1, iterations=range(10, 20))
    part = trace.select(some)
    assert np.array_equal(part.wire(part.find(phase="combine")), trace.wire(some))
    other = trace.find(operation="all_gather")[3:5]
    assert np.array_equal(trace.select(other).volume(np.arange(2)), trace.volume(other))


def test_replaced_times_leave_the_traffic(trace: Trace, tmp_path: Path) -> None:
    rows = trace.panels["call_2/issue"].shape[0]
    new = with_times(
        trace,
        {"end": {2: np.full((rows, 2), 7)}},
        meta=Meta(world=4, origin="replayed"),
    )
    new.save(tmp_path / "new.h5")
    with Trace.open(tmp_path / "new.h5") as again:
        assert again.meta.origin == "replayed"
        gathers = again.find(operation="all_gather")
        assert (again.times(gathers, own_clock=True)[2] == 7).all()
        assert np.array_equal(again.volume(gathers), trace.volume(gathers))


def test_offsets_between_clock_knots_are_interpolated() -> None:
    clocks = np.array(
        [(1, 10**15, 100, 2), (1, 10**15 + 1000, 300, 2), (3, 5, -7, 1)], CLOCK
    )
    ranks = np.array([[0, 1, 3]])
    times = np.array([[50, 10**15 + 500, 50]])
    assert to_common(clocks, ranks, times).tolist() == [[50, 10**15 + 700, 43]]
    before = np.array([[50, 10**15 - 500, UNKNOWN_TIME]])
    assert to_common(clocks, ranks, before).tolist() == [
        [50, 10**15 - 400, UNKNOWN_TIME]
    ]


def test_a_real_capture_keeps_the_invariants(captured: Path) -> None:
    with Trace.open(captured) as trace:
        assert trace.layers == (1, 3)  # every second layer carries experts
        assert len(trace.iterations) == 24
        for layer in trace.layers:
            for slot in (0, 1):  # the micro-batch axis is real
                routed = trace.find(operation=ROUTING, layer=layer, slot=slot)
                demand = trace.demand(routed)
                assert len(routed) == 24
                # each of 2 x 32 tokens goes to 2 experts
                assert (demand.sum(axis=2) == 2 * 2 * 32).all()
        shares = trace.to_xarray().sum(("src", "layer", "micro_batch"))
        assert shares.std("expert").min() > 0  # text is not balanced traffic


def test_a_call_is_found_by_its_site_and_iteration(trace: Trace) -> None:
    sites = np.array([1, 1, 1, 2, 0])
    iterations = np.array([0, 39, 40, -1, 7])
    assert trace.at(sites, iterations).tolist() == [40, 79, -1, -1, 7]

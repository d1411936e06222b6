"""A summary's figures follow from bytes and times; the trace holds both."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from moetraffic.replay import make_plan
from moetraffic.replay.plan.program import Timing
from moetraffic.replay.results.audit import audit
from moetraffic.replay.results.baselines import Baselines
from moetraffic.replay.results.call_times import measure
from moetraffic.replay.results.replayed_trace import replayed_trace
from moetraffic.replay.results.result import summarize
from moetraffic.trace.model import UNKNOWN_TIME
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.trace import Trace


def timed(plan, took) -> dict[int, Timing]:
    """Times in which rank r needs ``took(r, operation)`` ns, back to back."""
    found = {}
    for rank, program in plan.programs.items():
        lasts = np.array([took(rank, int(o)) for o in program.operation], np.int64)
        issue = 1000 + 10_000 * rank + np.concatenate([[0], np.cumsum(lasts)[:-1]])
        found[rank] = Timing(
            operation=program.operation,
            issue=issue,
            start=issue,
            end=issue + lasts,
            due=np.full(len(lasts), UNKNOWN_TIME, np.int64),
        )
    return found


def _at(timing: Timing, operation: int, name: str) -> int:
    """One time of one operation."""
    return int(getattr(timing, name)[timing.operation == operation][0])


def summary_of(plan, times, **more):
    return summarize(
        plan,
        measure(plan, times),
        backend="gloo",
        nodes=["a"] * plan.world,
        verified="full",
        **more,
    )


def with_wire(trace: Trace, wire: np.ndarray) -> Trace:
    name = f"call_{wire.shape[1]}/wire"
    counts = trace.panels[name].read(0, 1)
    panel = ArrayPanel(np.concatenate([counts, wire]))
    return trace.replaced(panels=trace.panels | {name: panel})


@pytest.mark.parametrize("world", [2, 4, 8])
def test_for_an_even_exchange_busbw_is_nccls(toy, world):
    """nccl-tests: algbw = S/t and busbw = algbw (n-1)/n, S a rank's whole buffer."""
    trace = toy(world=world, iterations=(0,), layers=(0,))
    part = 5000
    plan = make_plan(with_wire(trace, np.full((2, world, world), part)), dense=False)
    summary = summary_of(plan, timed(plan, lambda r, o: 2_000))
    algbw = world * part / 2e-6 / 1e9
    assert summary.algbw_gbs is not None
    assert summary.busbw_gbs is not None
    assert summary.algbw_gbs.max == pytest.approx(algbw)
    assert summary.busbw_gbs.max == pytest.approx(algbw * (world - 1) / world)


def test_for_an_uneven_exchange_busbw_is_the_busiest_links(toy):
    trace = toy(world=3, iterations=(0,), layers=(0,))
    wire = np.array([[[900, 10, 20], [5, 0, 0], [70, 300, 4]]] * 2)
    plan = make_plan(with_wire(trace, wire), dense=False)
    summary = summary_of(plan, timed(plan, lambda r, o: 1_000 + r))
    assert summary.busbw_gbs is not None
    assert summary.algbw_gbs is not None
    # rank 2 sends 370 to others; rank 0 holds 975 in its receive buffer
    assert summary.busbw_gbs.max == pytest.approx(370 / 1.002e-6 / 1e9)
    assert summary.algbw_gbs.max == pytest.approx(975 / 1.002e-6 / 1e9)
    assert summary.total_bytes == 2 * 1309 + 9 * 8
    assert summary.network_bytes == 2 * 405 + 6 * 8
    assert summary.rank_bytes == (2 * 930 + 24, 2 * 5 + 24, 2 * 374 + 24)


def test_an_operation_takes_as_long_as_its_slowest_member(toy):
    plan = make_plan(toy(world=4, groups=[(0, 2), (3, 1)]), dense=False)
    # on operation o, member rank r needs 100 r + o us; rank r begins 10 r us late
    times = timed(plan, lambda r, o: (100 * r + o) * 1000)
    took = measure(plan, times)
    for n in range(len(plan)):
        members = plan.groups[plan.group[n]]
        assert took.call_s[n] == pytest.approx((100 * max(members) + n) / 1e6)
        assert took.slowest[n] == max(members)
        issues = {r: _at(times[r], n, "issue") for r in members}
        assert took.last[n] == max(issues, key=issues.__getitem__)
        ends = [_at(times[r], n, "end") for r in members]
        moved = max(ends) - max(issues.values())
        assert took.transfer_s[n] == pytest.approx(moved / 1e9)
    summary = summary_of(plan, times)
    assert summary.straggler in (2, 3)
    assert summary.straggler_share == 0.5
    # from the first call of rank 0, 30 us before that of rank 3
    assert summary.wall_s == pytest.approx(
        (30 + sum(100 * 3 + int(o) for o in plan.programs[3].operation)) / 1e6
    )
    assert summary.time_us.max == pytest.approx(took.call_s.max() * 1e6)
    assert summary.time_us.p50 == pytest.approx(np.median(took.call_s) * 1e6)
    assert [s.time_us for s in summary.slowest] == sorted(took.call_s * 1e6)[:-6:-1]
    assert summary.slowest[0].operation == plan.name(int(took.call_s.argmax()))


def test_ranks_alone_wait_for_nobody_and_cross_no_network(toy):
    plan = make_plan(toy(world=2, groups=[(0,), (1,)]), dense=False)
    summary = summary_of(plan, timed(plan, lambda r, o: 1000))
    assert summary.straggler is None
    assert summary.busbw_gbs is None
    assert summary.total_busbw_gbs is None
    assert summary.algbw_gbs is not None
    assert summary.network_bytes == 0
    assert json.loads(summary.to_json())["busbw_gbs"] is None


def test_the_frame_has_a_row_for_each_part_with_its_bytes_and_times(toy):
    plan = make_plan(toy(world=4, groups=[(0, 2), (3, 1)]))
    times = timed(plan, lambda r, o: 1000 + r + o)
    measured = measure(plan, times)
    bound = Baselines(bound_s=measured.call_s / 2, bound_of="half")
    fidelity = audit(plan, times, measured, baselines=bound)
    frame = summary_of(plan, times, fidelity=fidelity).to_frame()
    frame = frame.set_index(["part", "label"])
    whole, layer = frame.loc["all", ""], frame.loc["layer", "1"]
    in_layer = np.array([s.layer for s in plan.sites])[plan.site] == 1
    for row, mine in ((whole, plan.iteration >= 0), (layer, in_layer)):
        assert row["number"] == mine.sum()
        assert row["total_bytes"] == plan.total_bytes[mine].sum()
        assert row["network_bytes"] == plan.network_bytes[mine].sum()
        assert row["time_total_s"] == pytest.approx(measured.call_s[mine].sum())
        assert row["time_max_s"] == pytest.approx(measured.call_s[mine].max())
        assert row["over_bound"] == pytest.approx(2)
        assert row["over_bound_low"] <= 2 <= row["over_bound_high"]
    assert np.isnan(whole["over_captured"])
    kinds = frame.loc["operation", "number"]
    assert kinds.to_dict() == {"all_to_all": 36, "all_reduce": 3}
    assert len(frame) == len(fidelity.parts)


def test_the_replayed_trace_is_the_same_traffic_at_new_times(toy, tmp_path):
    trace = toy(world=5, groups=[(4, 0, 2), (1, 3)], iterations=(3, 5, 8))
    plan = make_plan(trace, iterations=range(4, 9))
    times = timed(plan, lambda r, o: 1000 + 7 * r + o)
    made = replayed_trace(trace, plan, times, backend="gloo", nodes=["n"] * 5)
    path = tmp_path / "replayed.h5"
    made.save(path)
    with Trace.open(path) as found:
        assert (found.meta.origin, found.meta.source) == ("replayed", "trace")
        assert found.meta.nodes == ("n",) * 5
        assert found.meta.backend == "gloo"
        assert found.iterations.tolist() == [5, 8]
        again = make_plan(found)
        assert (again.checksum == plan.checksum).all()
        assert (again.iteration == plan.iteration).all()
        for n, occurrence in enumerate(again.occurrence):
            one = np.array([occurrence])
            told = np.stack(found.times(one))[:, 0]
            group = found.sites[found.occurrences.site[occurrence]].group
            for member, rank in enumerate(found.groups[group].ranks):
                at = int(np.flatnonzero(times[rank].operation == n)[0])
                assert told[:, member].tolist() == [
                    times[rank].issue[at],
                    times[rank].start[at],
                    times[rank].end[at],
                ]
        steps = found.steps
        for rank in range(5):
            of = plan.iteration[times[rank].operation] == 8
            assert steps.start[1, rank] == times[rank].issue[of].min()
            assert steps.end[1, rank] == times[rank].end[of].max()
        assert np.isnan(steps.loss).all()
        assert (steps.tokens == -1).all()


def test_routings_keep_their_demand_and_lose_their_times(captured):
    with Trace.open(captured) as trace:
        plan = make_plan(trace, iterations=range(2))
        times = timed(plan, lambda r, o: 1000)
        made = replayed_trace(trace, plan, times, backend="gloo", nodes=[""] * 4)
        for layer in trace.layers:
            routed = made.find(operation="routing", layer=layer)
            want = trace.find(operation="routing", layer=layer, iterations=range(2))
            np.testing.assert_array_equal(made.demand(routed), trace.demand(want))
            for time in made.times(routed):
                assert (time == UNKNOWN_TIME).all()
        assert (make_plan(made).checksum == plan.checksum).all()
        assert dataclasses.replace(made.meta, **_changed(trace)) == trace.meta


def _changed(trace: Trace) -> dict[str, object]:
    names = ("origin", "source", "backend", "nodes", "complete", "missing")
    names += ("moetraffic", "torch", "python", "created")
    return {name: getattr(trace.meta, name) for name in names}

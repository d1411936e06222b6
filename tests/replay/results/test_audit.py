"""What is said of a replay beside the run it repeats: exact cases by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from moetraffic.analysis.times.completion import (
    completion,
    wall_times,
)
from moetraffic.analysis.times.ratios import compare_times
from moetraffic.errors import ReplayError
from moetraffic.patterns.bandwidth import BandwidthTable, Sample
from moetraffic.patterns.collectives import wire_bytes
from moetraffic.replay import make_plan
from moetraffic.replay.execution.pace import parse_pace
from moetraffic.replay.plan.program import Timing
from moetraffic.replay.plan.sizes import operation_matrices
from moetraffic.replay.request import Request
from moetraffic.replay.results.audit import audit, punctuality, slowdown
from moetraffic.replay.results.baselines import (
    Baselines,
    captured_times,
    modeled,
)
from moetraffic.replay.results.call_times import measure
from moetraffic.replay.results.conclusion import conclude
from moetraffic.replay.results.replayed_trace import replayed_trace
from moetraffic.replay.results.result import Fidelity
from moetraffic.trace.model import CLOCK, UNKNOWN_TIME
from moetraffic.trace.trace import Trace


def timed(plan, took, *, skew=0) -> dict[int, Timing]:
    """Times in which rank r needs ``took(r, operation)`` ns, back to back."""
    found = {}
    for rank, program in plan.programs.items():
        lasts = np.array([took(rank, int(o)) for o in program.operation], np.int64)
        issue = 1000 + skew * rank + np.concatenate([[0], np.cumsum(lasts)[:-1]])
        found[rank] = Timing(
            operation=program.operation,
            issue=issue,
            start=issue,
            end=issue + lasts,
            due=np.full(len(lasts), UNKNOWN_TIME, np.int64),
        )
    return found


def said(plan, times, **more) -> Fidelity:
    return audit(plan, times, measure(plan, times), **more)


def part(found: Fidelity, by: str, label: str = ""):
    (one,) = (p for p in found.parts if (p.by, p.label) == (by, label))
    return one


def test_parts_are_of_the_operations_that_they_name(toy):
    plan = make_plan(toy(world=2, iterations=range(6)))

    # layer 3 takes twice as long as layer 1, dense operations a tenth
    def took(rank, o):
        site = plan.sites[plan.site[o]]
        return {1: 1000, 3: 2000, -1: 100}[site.layer]

    found = said(plan, timed(plan, took))
    labels = {(p.by, p.label) for p in found.parts}
    assert {("operation", "all_to_all"), ("operation", "all_reduce")} <= labels
    assert {("layer", "1"), ("layer", "3"), ("phase", "dispatch")} <= labels
    assert part(found, "all").number == len(plan)
    assert part(found, "layer", "3").time_s.p99 == pytest.approx(2e-6)
    assert part(found, "layer", "1").time_s.max == pytest.approx(1e-6)
    assert part(found, "operation", "all_reduce").time_s.p50 == pytest.approx(1e-7)
    once = part(found, "iteration")
    assert once.number == 6
    assert once.time_s.p50 == pytest.approx((3 * 1000 + 3 * 2000 + 100) / 1e9)
    total = sum(p.time_s.total for p in found.parts if p.by == "operation")
    assert total == pytest.approx(part(found, "all").time_s.total)


def test_times_over_the_bound_are_the_slack_that_was_given(toy):
    """A replay that takes twice the port bound of each operation has the ratio 2."""
    plan = make_plan(toy(world=4, iterations=range(9)), dense=False)
    bound = plan.bottleneck_bytes / 1e9
    times = timed(plan, lambda r, o: 2 * int(plan.bottleneck_bytes[o]))
    found = said(plan, times, baselines=Baselines(bound_s=bound, bound_of="x"))
    for p in found.parts:
        if p.by != "iteration":
            assert p.over_bound.value == pytest.approx(2)
            assert p.over_bound.low == pytest.approx(2)
            assert p.busbw_gbs == pytest.approx(0.5)


def test_matrices_hold_the_bytes_of_the_plan(captured):
    with Trace.open(captured) as trace:
        plan = make_plan(trace, iterations=range(2), ranks=())
        seen = np.zeros(len(plan), int)
        for at, members, wire in operation_matrices(trace, plan):
            seen[at] += 1
            off = wire * ~np.eye(wire.shape[1], dtype=bool)
            np.testing.assert_array_equal(off.sum(axis=(1, 2)), plan.network_bytes[at])
            assert members.shape == wire.shape[:2]
        assert (seen == 1).all()


def test_a_replay_at_the_captured_times_has_the_ratio_one(captured):
    """Times taken from the trace itself: every ratio is 1, and the schedule is kept."""
    with Trace.open(captured) as trace:
        plan = make_plan(trace, iterations=range(6))
        times = {}
        for rank, program in plan.programs.items():
            columns = np.zeros((3, len(program)), np.int64)
            for n, o in enumerate(plan.occurrence[program.operation].tolist()):
                one = np.array([o])
                at = int(np.flatnonzero(trace.members(one)[0] == rank)[0])
                columns[:, n] = [t[0, at] for t in trace.times(one)]
            issue, start, end = columns
            times[rank] = Timing(
                operation=program.operation,
                issue=issue,
                start=np.where(start == UNKNOWN_TIME, issue, start),
                end=end,
                due=issue - 5_000,
            )
        request = Request(
            trace=captured, capacity="100Gbps", pace=parse_pace("open-loop")
        )
        made = conclude(request, trace, plan, [times], nodes=["a"] * plan.world)
        found = made.fidelity
        for p in found.parts:
            assert p.over_captured.value == pytest.approx(1)
            if p.by != "iteration":
                assert p.transfer_over_captured.value == pytest.approx(1, abs=1e-6)
        kept = found.punctuality
        assert kept is not None
        assert kept.error_max_s == pytest.approx(5e-6)
        assert kept.off == pytest.approx(0, abs=1e-9)
        assert found.bound_of == "100 Gbps = 12.5 GB/s a rank"

        call, transfer = captured_times(trace, plan)
        every = completion(trace)
        assert np.isin(np.round(call, 12), np.round(every["call_s"], 12)).all()
        assert np.isfinite(transfer).all()

        # and the trace of this replay has those times
        made = replayed_trace(
            trace, plan, times, backend="gloo", nodes=["n"] * plan.world
        )
        for row in compare_times(trace, made):
            assert row["ratio"] == pytest.approx(1, abs=1e-6)
        when, took = wall_times(made, completion(made))
        measured = measure(plan, times)
        np.testing.assert_array_equal(when, measured.iteration)
        np.testing.assert_allclose(took, measured.wall_s)


def test_the_same_times_on_another_clock_are_the_same_transfers(toy):
    plan = make_plan(toy(world=3, iterations=range(3)))
    times = timed(plan, lambda r, o: 1000 + 13 * r + o, skew=200)
    clocks = np.zeros(3, CLOCK)
    clocks["rank"], clocks["offset_ns"] = range(3), [0, 10_000_000, -999_999]
    clocks["error_ns"] = [0, 40, 90]
    shifted = {
        r: replace(
            t,
            **{
                name: getattr(t, name) - clocks["offset_ns"][r]
                for name in ("issue", "start", "end")
            },
        )
        for r, t in times.items()
    }
    one, other = measure(plan, times), measure(plan, shifted, clocks)
    for name in ("call_s", "transfer_s", "last", "slowest", "wall_s"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    found = audit(plan, shifted, other, clocks=clocks)
    assert found.clock_error_s == pytest.approx(90e-9)


def test_a_table_tells_the_time_of_what_it_measured(toy):
    plan = make_plan(toy(world=4, iterations=range(3)))
    rows = [
        Sample(
            collective="all_to_all",
            ranks=4,
            span=1,
            size_bytes=size,
            time_us=5 + float(wire_bytes("all_to_all", 4, size)) / 1000,
        )
        for size in (100, 10_000, 1_000_000)
    ]
    table = BandwidthTable(rows)
    model = modeled(plan, table, ["a"] * 4)
    exchanges = (plan.kind == 0) & (plan.bottleneck_bytes > 0)
    want = 5e-6 + plan.bottleneck_bytes[exchanges] / 1e9
    sizes = plan.bottleneck_bytes[exchanges] / wire_bytes("all_to_all", 4, 1.0)
    outside = int(((sizes < 100) | (sizes > 1e6)).sum())
    assert model.beyond == (
        f"all_to_all: {outside} of {len(sizes)} sizes or ranks lie outside the "
        "measured range",
    )
    np.testing.assert_allclose(model.operation_s[exchanges], want, rtol=1e-3)
    assert np.isnan(model.operation_s[plan.kind != 0]).all()
    assert "all_reduce: not in the table" in model.lacking
    # hosts that were not measured are said, not hidden
    apart = modeled(plan, table, ["a", "b", "c", "d"])
    assert any("over 4 hosts: not in the table" in note for note in apart.lacking)


def test_punctuality_is_issue_minus_due():
    issue = np.array([0, 1_000_000, 2_000_000, 9_000_000], np.int64)
    due = np.array([0, 1_000_500, UNKNOWN_TIME, 5_000_000], np.int64)
    timing = Timing(
        operation=np.arange(4), issue=issue, start=issue, end=issue + 10, due=due
    )
    found = punctuality({3: timing}, absolute=True)
    assert found is not None
    assert found.scheduled == 3
    assert found.error_max_s == pytest.approx(4e-3)
    assert found.error_p50_s == pytest.approx(500e-9)
    assert (found.late, found.worst_rank) == (1, 3)
    assert found.behind_s == pytest.approx(4e-3)
    assert found.off == pytest.approx(9 / 5 - 1)
    moved = punctuality({3: timing})
    assert moved is not None
    # what is due follows what happened: errors add up, 4 ms less half a microsecond
    assert moved.schedule_s == pytest.approx(9e-3 - 4e-3 + 5e-7)
    nothing = replace(timing, due=np.full(4, UNKNOWN_TIME))
    assert punctuality({0: nothing}) is None


def test_the_slowdown_is_that_of_the_all_to_alls_alone(toy):
    plan = make_plan(toy(world=2, iterations=range(12)))
    rng = np.random.default_rng(0)
    pairs = []
    for _ in range(4):
        noise = rng.integers(900, 1100, len(plan))
        # dense operations take a thousand times as long, which is none of theirs
        alone = timed(plan, lambda r, o, n=noise: int(n[o]))
        beside = timed(
            plan,
            lambda r, o, n=noise: int(1.3 * n[o]) * (1 if plan.kind[o] == 0 else 1000),
        )
        pairs.append((alone, beside))
    transfers = [tuple(measure(plan, t).transfer_s for t in pair) for pair in pairs]
    found = slowdown(plan, transfers)
    assert found.value == pytest.approx(1.3, rel=2e-3)
    assert found.low <= found.value <= found.high
    assert found.high - found.low < 0.01
    with pytest.raises(ReplayError, match="pairs of passes"):
        slowdown(plan, [])
    whole = said(plan, pairs[0][1], pairs=[(*p, p[0]) for p in pairs])
    assert (whole.slowdown, whole.pairs) == (found, 4)
    # the controls are passes alone: all of it is by bytes
    assert whole.slowdown_by_bytes is not None
    assert whole.slowdown_by_bytes.value == pytest.approx(1.3, rel=2e-3)
    assert 1 < whole.slowdown_by_bytes.low <= whole.slowdown_by_bytes.high < 1.4

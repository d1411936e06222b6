"""The trace of a replay holds what was sent, on whatever ranks, at its times."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from moetraffic.analysis.exchange import exchanges
from moetraffic.replay import make_plan
from moetraffic.replay.plan.background import BackgroundCollective, BackgroundTraffic
from moetraffic.replay.plan.program import KINDS, Timing
from moetraffic.replay.results.call_times import measure
from moetraffic.replay.results.replayed_trace import replayed_trace
from moetraffic.report.views.info import about, layout
from moetraffic.trace.model import CLOCK, UNKNOWN_TIME, Site
from moetraffic.trace.trace import Trace
from moetraffic.trace.what_if.rescale import Scaling, rescale

BESIDE = BackgroundTraffic(
    groups=((0, 1), (0, 1)),
    group_kinds=("tp", "pp"),
    operations=(
        BackgroundCollective(
            group=0,
            kind="all_reduce",
            size=4096,
            site=Site(group=0, operation="all_reduce", label="tp"),
        ),
        BackgroundCollective(
            group=1,
            kind="send_recv",
            size=512,
            sender=1,
            receiver=0,
            site=Site(group=1, operation="send_recv", label="pp", peers=(1, 0)),
        ),
    ),
    identity="beside",
)


def timed(plan) -> dict[int, Timing]:
    found = {}
    for rank, program in plan.programs.items():
        issue = 1000 + 100 * np.arange(len(program), dtype=np.int64) + rank
        found[rank] = Timing(
            operation=program.operation,
            issue=issue,
            start=issue + 1,
            end=issue + 50,
            due=np.full(len(program), UNKNOWN_TIME, np.int64),
        )
    return found


def saved(made: Trace, path) -> Trace:
    made.save(path)
    return Trace.open(path)


@pytest.mark.parametrize(
    "ranks", [{"fold": "2"}, {"fold": "2:strided"}, {"expand": "8"}], ids=str
)
def test_on_other_ranks_it_holds_the_bytes_of_the_plan(toy, tmp_path, ranks):
    trace = toy(world=4, groups=[(0, 2), (3, 1)], iterations=range(4))
    trace = trace.replaced(meta=replace(trace.meta, virtual=True))
    trace = rescale(trace, Scaling(**ranks, factor=Fraction(1, 2)))
    plan = make_plan(trace, in_common=True)
    times = timed(plan)
    made = replayed_trace(
        trace,
        plan,
        times,
        backend="gloo",
        nodes=["n"] * plan.world,
        rescaled=True,
        runs=[measure(plan, times)] * 5,
        settings="--pace asap --bytes x1/2",
    )
    with saved(made, tmp_path / "out.h5") as found:
        assert found.meta.world == plan.world
        # real ranks, on which the layout is unknown; the times are of one of the runs
        assert not found.meta.virtual
        assert layout(found) == "layout unknown"
        assert "EP" not in about(found)
        assert found.meta.source.endswith(
            " (median run of 5) with --pace asap --bytes x1/2"
        )
        again = make_plan(found, in_common=True)
        for name in ("total_bytes", "network_bytes", "bottleneck_bytes", "iteration"):
            key = np.lexsort((plan.iteration, plan.site))
            mine = getattr(plan, name)[key]
            theirs = getattr(again, name)[np.lexsort((again.iteration, again.site))]
            np.testing.assert_array_equal(np.sort(mine), np.sort(theirs))
        np.testing.assert_array_equal(again.rank_bytes, plan.rank_bytes)
        for rank, program in again.programs.items():
            # each rank goes through the same operations in the same order
            was = [plan.name(o) for o in plan.programs[rank].operation]
            assert [again.name(o) for o in program.operation] == was
        assert found.runs["calls"].sum() == 5 * (len(found.find()) + 4)
        occurrence = np.array([found.find()[0]])
        assert (np.stack(found.times(occurrence)) != UNKNOWN_TIME).all()


def test_what_was_added_is_there_with_its_groups_and_bytes(toy, tmp_path):
    trace = toy(world=2, iterations=range(3))
    plan = make_plan(trace, background=BESIDE)
    clocks = np.zeros(2, CLOCK)
    clocks["rank"], clocks["offset_ns"] = [0, 1], [0, 77]
    made = replayed_trace(
        trace, plan, timed(plan), backend="gloo", nodes=["a", "b"], clocks=clocks
    )
    with saved(made, tmp_path / "out.h5") as found:
        assert [g.kind for g in found.groups[-2:]] == ["tp", "pp"]
        assert found.clocks["offset_ns"].tolist() == [0, 77]
        reduced = found.find(operation="all_reduce", group=len(found.groups) - 2)
        assert (found.volume(reduced) == 4096).all()
        sent = found.find(operation="send_recv")
        assert len(sent) == 3
        assert found.volume(sent).tolist() == [[0, 512]] * 3
        again = make_plan(found)
        np.testing.assert_array_equal(
            np.bincount(again.kind, minlength=len(KINDS)),
            np.bincount(plan.kind, minlength=len(KINDS)),
        )
        assert again.total_bytes.sum() == plan.total_bytes.sum()
        assert (found.steps.end > found.steps.start).all()


def test_dense_operations_of_the_trace_have_times_too(captured):
    with Trace.open(captured) as trace:
        plan = make_plan(trace, iterations=range(2))
        made = replayed_trace(
            trace, plan, timed(plan), backend="gloo", nodes=[""] * plan.world
        )
        dense = made.find(operation="all_reduce")
        assert len(dense)
        for times in made.times(dense):
            assert (times != UNKNOWN_TIME).all()
        np.testing.assert_array_equal(
            made.volume(dense),
            trace.volume(trace.find(operation="all_reduce", iterations=range(2))),
        )


@pytest.mark.parametrize("change", ["", "ranks", "traffic"])
def test_why_a_replay_has_no_demand_is_true_of_every_replay(toy, change):
    """No router was seen in the capture; other ranks or added traffic have none."""
    trace = toy(world=2, iterations=range(4))
    rescaled, added = change == "ranks", BESIDE if change == "traffic" else None
    if rescaled:
        trace = rescale(trace, Scaling(expand="4"))
    plan = make_plan(trace, in_common=True, background=added)
    nodes = ["n"] * plan.world
    made = replayed_trace(
        trace, plan, timed(plan), backend="gloo", nodes=nodes, rescaled=rescaled
    )
    notes: list[str] = []
    exchanges(made, notes)
    (note,) = (each for each in notes if "no demand" in each)
    for cause in ("changed ranks or bytes", "added traffic", "no router was seen"):
        assert cause in note
    assert "register yours" not in note

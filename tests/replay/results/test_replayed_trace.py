"""The trace of a replay holds what was sent, on whatever ranks, at its times."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from moetraffic.errors import ReplayError, TraceError
from moetraffic.replay.options import Options
from moetraffic.replay.plan.background import BackgroundCollective, BackgroundTraffic
from moetraffic.replay.plan.operations import operations
from moetraffic.replay.plan.program import programs
from moetraffic.replay.results.durations import durations
from moetraffic.replay.results.replayed_trace import replayed_trace, write
from moetraffic.report.views.info import about, layout
from moetraffic.trace.model import CLOCK, UNKNOWN_TIME, Site
from moetraffic.trace.trace import Trace
from moetraffic.trace.what_if.rescale import Scaling, rescale
from tests.replay.results.timed import back_to_back

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


def replayed(trace, plan, *, scaling=Scaling(), nodes="", **more) -> Trace:  # noqa: B008
    before = programs(trace, plan, range(plan.world))
    orders = {rank: program.operation for rank, program in before.items()}
    times = back_to_back(plan, lambda r, o: 50 + r, orders=orders)
    return replayed_trace(
        trace,
        plan,
        times,
        options=Options(trace=Path("toy.h5"), scaling=scaling),
        nodes=list(nodes or "n" * plan.world),
        **more,
    )


@pytest.mark.parametrize(
    "ranks", [{"fold": "2"}, {"fold": "2:strided"}, {"expand": "8"}], ids=str
)
def test_on_other_ranks_it_holds_the_bytes_of_the_plan(toy, tmp_path, ranks):
    trace = toy(world=4, groups=[(0, 2), (3, 1)], iterations=range(4))
    trace = trace.replaced(meta=replace(trace.meta, virtual=True))
    scaling = Scaling(**ranks, factor=Fraction(1, 2))
    trace = rescale(trace, scaling)
    plan = operations(trace, in_common=True)
    own = durations(plan, back_to_back(plan, lambda r, o: 50 + r))
    replayed(trace, plan, scaling=scaling, runs=[own] * 5).save(tmp_path / "out.h5")
    with Trace.open(tmp_path / "out.h5") as made:
        assert made.meta.world == plan.world
        # real ranks, on which the layout is unknown; the times are of one of the runs
        assert not made.meta.virtual
        assert layout(made) == "layout unknown"
        assert "EP" not in about(made)
        assert " (median run of 5) with --pace asap --" in made.meta.source
        again = operations(made, in_common=True)
        for name in ("total_bytes", "network_bytes", "bottleneck_bytes"):
            np.testing.assert_array_equal(
                np.sort(getattr(plan, name)), np.sort(getattr(again, name))
            )
        np.testing.assert_array_equal(again.rank_bytes, plan.rank_bytes)
        before = programs(trace, plan, range(plan.world))
        for rank, program in programs(made, again, range(plan.world)).items():
            # each rank goes through the same operations in the same order
            names = [plan.name(o) for o in before[rank].operation]
            assert [again.name(o) for o in program.operation] == names
        assert made.runs["calls"].sum() == 5 * (len(made.find()) + 4)
        first = np.array([made.find()[0]])
        assert (np.stack(made.times(first)) != UNKNOWN_TIME).all()


def test_background_traffic_is_no_part_of_it(toy, tmp_path):
    trace = toy(world=2, iterations=range(3))
    plan = operations(trace, background=BESIDE)
    clocks = np.zeros(2, CLOCK)
    clocks["rank"], clocks["offset_ns"] = [0, 1], [0, 77]
    replayed(trace, plan, nodes="ab", clocks=clocks).save(tmp_path / "out.h5")
    with Trace.open(tmp_path / "out.h5") as made:
        assert made.clocks["offset_ns"].tolist() == [0, 77]
        assert operations(made).digest != plan.digest
        before, again = operations(trace), operations(made)
        assert (again.bottleneck_bytes == before.bottleneck_bytes).all()
        assert (made.steps.end > made.steps.start).all()


def test_on_its_own_ranks_it_is_the_trace_with_new_times(captured):
    with Trace.open(captured) as trace:
        plan = operations(trace, iterations=range(2))
        made = replayed(trace, plan)
        dense = made.find(operation="all_reduce")
        assert len(dense)
        for times in made.times(dense):
            assert (times != UNKNOWN_TIME).all()
        np.testing.assert_array_equal(
            made.volume(dense),
            trace.volume(trace.find(operation="all_reduce", iterations=range(2))),
        )


def test_a_trace_that_cannot_be_written_is_kept_elsewhere(toy, tmp_path, monkeypatch):
    trace, tried = toy(), []

    def save(self, path, **more):
        tried.append(path)
        if path.parent == tmp_path:
            raise TraceError("no space left")

    monkeypatch.setattr(Trace, "save", save)
    with pytest.raises(ReplayError, match=r"no space left; .* is kept as .*out-kept-"):
        write(trace, tmp_path / "out.h5", force=False)
    assert len(tried) == 2

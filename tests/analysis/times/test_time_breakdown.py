"""What a rank's time went into: exact cases, sums, and captured runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moetraffic.analysis.times.time_breakdown import distribution, time_breakdown
from moetraffic.errors import AnalysisError
from moetraffic.report.results.rhythm import time_chart, time_table
from moetraffic.trace import Trace
from moetraffic.trace.model import Group, Meta, Occurrences, Site, Source, Steps
from moetraffic.trace.panel import ArrayPanel


def events(draw_from: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [a for a, _ in draw_from], [a + n for a, n in draw_from]


SOME = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=6)


@given(compute=SOME, communication=SOME, low=st.integers(0, 40), n=st.integers(0, 60))
def test_each_nanosecond_is_counted_where_it_belongs(compute, communication, low, n):
    k, c = events(compute), events(communication)
    got = [int(p[0]) for p in distribution(k, c, [low], [low + n])]

    def on(at, of):
        return any(a <= at < b for a, b in zip(*of, strict=True))

    want = [0, 0, 0, 0]
    for at in range(low, low + n):
        which = {(1, 0): 0, (0, 1): 1, (1, 1): 2, (0, 0): 3}
        want[which[on(at, k), on(at, c)]] += 1
    assert got == want


def made(calls, *, world=2, steps=((0, 100),)):
    """A trace of all-reduces, each ``(iteration, [(issue, start, end) a rank])``."""
    many = range(len(calls))
    times = np.array([c for _, c in calls], np.int64).reshape(len(calls), world, 3)
    bounds = np.array(steps, np.int64)
    panels = {
        f"call_{world}/{name}": ArrayPanel(times[:, :, at].copy())
        for at, name in enumerate(("issue", "start", "end"))
    }
    present = np.ones((len(calls), world), np.uint8)
    panels[f"call_{world}/present"] = ArrayPanel(present)
    return Trace(
        meta=Meta(world=world, dp=world),
        groups=[Group(kind="dp", ranks=tuple(range(world)))],
        sites=[Site(group=0, operation="all_reduce", slot=n) for n in many],
        occurrences=Occurrences(
            iteration=np.array([i for i, _ in calls], np.int64),
            site=np.array(many, np.int32),
            sequence=np.full(len(calls), -1, np.int64),
            matrix=np.full(len(calls), -1, np.int64),
            transposed=np.zeros(len(calls), bool),
        ),
        panels=panels if calls else {},
        steps=Steps(
            iteration=np.arange(len(steps)),
            kind=("train",) * len(steps),
            loss=np.full((len(steps), world), np.nan),
            tokens=np.full((len(steps), world), -1, np.int64),
            start=np.repeat(bounds[:, :1], world, axis=1),
            end=np.repeat(bounds[:, 1:], world, axis=1),
            source=np.zeros(len(steps), np.uint8),
        ),
    )


def parts(found, rank=0, step=0):
    return [
        int(part[step, rank])
        for part in (found.compute, found.transfer, found.overlapped, found.waiting)
    ]


def test_a_call_that_blocks_is_transfer_once_the_last_rank_has_called():
    trace = made([(0, [(10, 10, 40), (30, 30, 40)])])
    found = time_breakdown(trace)
    assert parts(found, 0) == [70, 10, 0, 20]  # called 20 ns before the other
    assert parts(found, 1) == [90, 10, 0, 0]
    # what a timer around the call shows
    assert found.collective_fraction == pytest.approx([0.3, 0.1])
    assert found.transfer_fraction == pytest.approx([0.1, 0.1])


def test_parameters_that_are_fetched_ahead_are_awaited_in_turn():
    # the first is awaited from 1 on, computed with from 10 to 15; then the second
    called = ((0, 10), (1, 20), (15, 30))
    trace = made([(0, [(at, at, end)] * 2) for at, end in called], steps=((0, 40),))
    found = time_breakdown(trace)
    assert parts(found) == [10, 24, 6, 0]
    assert found.hidden_fraction[0] == pytest.approx(1 / 5)


@settings(max_examples=10, deadline=None)
@given(calls=st.lists(st.tuples(st.integers(0, 90), st.integers(0, 40)), max_size=6))
def test_the_parts_of_a_step_add_up(calls):
    trace = made([(0, [(a, a, a + n)] * 2) for a, n in calls])
    assert (time_breakdown(trace).total == 100).all()


def test_what_lies_across_the_border_of_steps_is_shared_between_them():
    trace = made(
        [(0, [(90, 90, 130), (90, 90, 130)])], steps=((0, 100), (100, 200), (300, 310))
    )
    found = time_breakdown(trace)
    assert [parts(found, 0, step)[1] for step in range(3)] == [10, 30, 0]
    assert parts(found, 0, 2) == [10, 0, 0, 0]
    only = time_breakdown(trace, iterations=range(1, 2))
    assert only.iteration.tolist() == [1]


def test_a_step_without_times_is_refused_or_left_out():
    unknown = np.iinfo(np.int64).min
    with pytest.raises(AnalysisError, match="step with a start and an end"):
        time_breakdown(made([], steps=((unknown, unknown),)))
    found = time_breakdown(made([], steps=((unknown, unknown), (0, 5))))
    assert found.known.tolist() == [[False, False], [True, True]]
    assert found.total.tolist() == [[0, 0], [5, 5]]


def test_inferred_steps_last_until_the_next_training_step_or_are_unknown():
    """Each step has 30 ns of calls, and 10 ns of compute after its last call."""
    starts = [0, 100, 200, 300, 400, 500]
    calls = [(n, [(at, at, at + 30)] * 2) for n, at in enumerate(starts)]
    trace = made(calls, steps=[(at, at + 90) for at in starts])
    kind = ("train", "train", "evaluation", "train", "train", "train")
    source = np.full(6, Source.INFERRED, np.uint8)
    steps = replace(trace.steps, kind=kind, source=source)
    found = time_breakdown(trace.replaced(steps=steps))
    assert found.iteration.tolist() == [0, 1, 3, 4, 5]
    assert found.known[:, 0].tolist() == [True, False, True, True, False]
    assert parts(found, 0, 0) == [70, 30, 0, 0]
    assert found.collective_fraction == pytest.approx([0.3, 0.3])
    marked = replace(steps, source=np.full(6, Source.LINKED, np.uint8))
    assert time_breakdown(trace.replaced(steps=marked)).known.all()
    alone = replace(steps, kind=("train", "evaluation") * 3)
    with pytest.raises(AnalysisError, match=r"evaluation steps do.*recorder\.step"):
        time_breakdown(trace.replaced(steps=alone))
    # the program's own marks bound them
    marked = replace(alone, source=np.full(6, Source.ANNOTATED, np.uint8))
    found = time_breakdown(trace.replaced(steps=marked))
    assert found.known.all()
    assert parts(found, 0, 0) == [60, 30, 0, 0]


def test_a_captured_run_adds_up_and_is_drawn(captured, tmp_path):
    from moetraffic.report import figures

    with Trace.open(captured) as trace:
        found = time_breakdown(trace)
        step = trace.steps.end - trace.steps.start
        train = np.array([kind == "train" for kind in trace.steps.kind])
    assert found.known.all()
    assert (found.total == step[train]).all()
    assert found.shares.sum(axis=1) == pytest.approx(1)
    # its collectives block: nothing overlaps, and some of the time is spent in them
    assert (found.overlapped == 0).all()
    assert (found.transfer.sum(axis=0) > 0).all()
    fraction = found.collective_fraction
    assert ((fraction > 0) & (fraction < 1)).all()
    picture = figures.save(time_chart(found, "a captured run"), tmp_path / "o.png")
    assert picture.stat().st_size > 5000
    assert len(time_table(found).rows) == len(fraction)

"""Completion and breakdown of times: exact cases, sums, captured runs, tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moetraffic.analysis.times.breakdown import PARTS, breakdown, split
from moetraffic.analysis.times.completion import completion, parts, wall_times
from moetraffic.analysis.times.tables import time_tables
from moetraffic.columns import COLUMNS
from moetraffic.errors import AnalysisError
from moetraffic.trace import UNKNOWN_TIME, Trace
from moetraffic.trace.model import Group, Meta, Occurrences, Site, Source, Steps
from moetraffic.trace.panel import ArrayPanel


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


# ---- completion ----------------------------------------------------------------------


def test_a_call_takes_its_slowest_member_and_a_transfer_begins_with_the_last(
    captured: Path,
) -> None:
    with Trace.open(captured) as trace:
        calls = completion(trace)
        assert len(calls) > 100
        for call in calls[[0, len(calls) // 2, -1]]:
            row = call["occurrence"][None]
            issue, start, end = (t[0] for t in trace.times(row))
            began = np.where(start == UNKNOWN_TIME, issue, start).max()
            assert call["call_s"] == pytest.approx((end - issue).max() / 1e9)
            assert call["transfer_s"] == pytest.approx(max(end.max() - began, 0) / 1e9)
            assert call["last"] == trace.members(row)[0][issue.argmax()]
        assert (calls["transfer_s"] <= calls["call_s"] + 1e-12).all()


def test_an_iteration_is_its_slowest_ranks_first_call_to_last_end(
    captured: Path,
) -> None:
    with Trace.open(captured) as trace:
        calls = completion(trace)
        when, took = wall_times(trace, calls)
        np.testing.assert_array_equal(when, np.unique(calls["iteration"]))
        n = len(when) // 2
        spans = []
        for rank in range(trace.meta.world):
            times = [
                (issue[0, m], end[0, m])
                for o in calls["occurrence"][calls["iteration"] == when[n]]
                for issue, _, end in [trace.times(np.array([o]))]
                for m in np.flatnonzero(trace.members(np.array([o]))[0] == rank)
            ]
            first, last = zip(*times, strict=True)
            spans.append((max(last) - min(first)) / 1e9)
        assert took[n] == pytest.approx(max(spans))
        assert len(wall_times(trace, calls[:0])[0]) == 0


def test_parts_cover_every_call(captured: Path) -> None:
    with Trace.open(captured) as trace:
        calls = completion(trace)
        rows = {(by, label): own for by, label, own in parts(trace, calls)}
        assert len(rows["all", ""]) == len(calls)
        operations = [own for (by, _), own in rows.items() if by == "operation"]
        assert sorted(np.concatenate(operations)) == list(range(len(calls)))


def test_start_up_is_that_of_the_run_and_not_of_the_iterations_asked_for(
    captured: Path,
) -> None:
    """A site of iteration 0 alone, and one of iteration 5 alone, which is not."""
    with Trace.open(captured) as trace:
        rows = trace.occurrences
        dense = [n for n, s in enumerate(trace.sites) if s.operation == "all_reduce"]
        first, later = dense[:2]
        keep = ~np.isin(rows.site, dense[:2])
        keep |= (rows.site == first) & (rows.iteration == 0)
        keep |= (rows.site == later) & (rows.iteration == 5)
        run = trace.select(np.flatnonzero(keep))

        def early(iterations: range | None) -> set[tuple[int, int]]:
            calls = completion(run, iterations)
            found = {by: own for by, _, own in parts(run, calls)}.get("start-up", [])
            return {(int(calls["iteration"][n]), int(calls["site"][n])) for n in found}

        sites = {int(s) for s in run.occurrences.site[run.occurrences.iteration == 0]}
        (alone,) = early(None)
        assert alone[0] == 0
        assert alone[1] in sites
        assert early(range(10)) == {alone}
        assert early(range(5, 10)) == set()
        calls = completion(run, range(5, 10))
        whole = {by: own for by, _, own in parts(run, calls)}["all"]
        assert len(whole) == len(calls)


# ---- breakdown -----------------------------------------------------------------------

SOME = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=6)


@given(awaited=SOME, transfers=SOME, low=st.integers(0, 40), n=st.integers(0, 60))
def test_each_nanosecond_is_counted_where_it_belongs(awaited, transfers, low, n):
    events = [
        np.array([(a, a + length) for a, length in some], np.int64).reshape(-1, 2).T
        for some in (awaited, transfers)
    ]
    got = split(*events, np.array([low]), np.array([low + n]))
    want = [0, 0, 0, 0]
    for ns in range(low, low + n):
        wait, sent = (((first <= ns) & (ns < last)).any() for first, last in events)
        part = {(0, 0): 0, (0, 1): 1, (1, 1): 2, (1, 0): 3}[int(wait), int(sent)]
        want[part] += 1
    assert got.tolist() == [want]


def ns(found, rank=0, step=0):
    """Compute, transfer, overlapped and waiting."""
    compute, overlapped, transfer, waiting = found.ns[step, rank].tolist()
    return [compute, transfer, overlapped, waiting]


def test_a_call_that_blocks_is_transfer_once_the_last_rank_has_called():
    found = breakdown(made([(0, [(10, 10, 40), (30, 30, 40)])]))
    assert ns(found, 0) == [70, 10, 0, 20]  # called 20 ns before the other
    assert ns(found, 1) == [90, 10, 0, 0]
    assert found.shares[0].tolist() == [0.7, 0, 0.1, 0.2]


def test_parameters_that_are_fetched_ahead_are_awaited_in_turn():
    # the first is awaited from 1 on, computed with from 10 to 15; then the second
    called = ((0, 10), (1, 20), (15, 30))
    trace = made([(0, [(at, at, end)] * 2) for at, end in called], steps=((0, 40),))
    assert ns(breakdown(trace)) == [10, 24, 6, 0]


@settings(max_examples=10, deadline=None)
@given(calls=st.lists(st.tuples(st.integers(0, 90), st.integers(0, 40)), max_size=6))
def test_the_parts_of_a_step_add_up(calls):
    trace = made([(0, [(a, a, a + n)] * 2) for a, n in calls])
    assert (breakdown(trace).ns.sum(axis=2) == 100).all()


def test_what_lies_across_the_border_of_steps_is_shared_between_them():
    trace = made(
        [(0, [(90, 90, 130), (90, 90, 130)])], steps=((0, 100), (100, 200), (300, 310))
    )
    found = breakdown(trace)
    assert [ns(found, 0, step)[1] for step in range(3)] == [10, 30, 0]
    assert ns(found, 0, 2) == [10, 0, 0, 0]
    assert breakdown(trace, range(1, 2)).iteration.tolist() == [1]


def test_a_step_without_times_is_refused_or_left_out():
    with pytest.raises(AnalysisError, match="step with a start and an end"):
        breakdown(made([], steps=((UNKNOWN_TIME, UNKNOWN_TIME),)))
    found = breakdown(made([], steps=((UNKNOWN_TIME, UNKNOWN_TIME), (0, 5))))
    assert found.known.tolist() == [[False, False], [True, True]]
    assert found.ns.sum(axis=2).tolist() == [[0, 0], [5, 5]]


def test_inferred_steps_last_until_the_next_training_step_or_are_unknown():
    """Each step has 30 ns of calls, and 10 ns of compute after its last call."""
    starts = [0, 100, 200, 300, 400, 500]
    calls = [(n, [(at, at, at + 30)] * 2) for n, at in enumerate(starts)]
    trace = made(calls, steps=[(at, at + 90) for at in starts])
    kind = ("train", "train", "evaluation", "train", "train", "train")
    source = np.full(6, Source.INFERRED, np.uint8)
    steps = replace(trace.steps, kind=kind, source=source)
    found = breakdown(trace.replaced(steps=steps))
    assert found.iteration.tolist() == [0, 1, 3, 4, 5]
    assert found.known[:, 0].tolist() == [True, False, True, True, False]
    assert ns(found, 0, 0) == [70, 30, 0, 0]
    assert found.shares[:, 2].tolist() == [0.3, 0.3]
    marked = replace(steps, source=np.full(6, Source.LINKED, np.uint8))
    assert breakdown(trace.replaced(steps=marked)).known.all()
    alone = replace(steps, kind=("train", "evaluation") * 3)
    with pytest.raises(AnalysisError, match=r"evaluation steps do.*recorder\.step"):
        breakdown(trace.replaced(steps=alone))
    # the program's own marks bound them
    marked = replace(alone, source=np.full(6, Source.ANNOTATED, np.uint8))
    found = breakdown(trace.replaced(steps=marked))
    assert found.known.all()
    assert ns(found, 0, 0) == [60, 30, 0, 0]


# ---- tables --------------------------------------------------------------------------


def test_a_captured_run_adds_up_and_is_tabulated(captured: Path) -> None:
    notes: list[str] = []
    with Trace.open(captured) as trace:
        found = breakdown(trace)
        train = np.array([kind == "train" for kind in trace.steps.kind])
        step = (trace.steps.end - trace.steps.start)[train]
        tables = time_tables(trace, iterations=None, notes=notes)
        calls = trace.find(operation="all_to_all")
        sent = sum(int(trace.wire(np.array([call])).sum()) for call in calls)
        empty = time_tables(
            trace.replaced(meta=replace(trace.meta, virtual=True)), notes=notes
        )
    assert found.known.all()
    assert (found.ns.sum(axis=2) == step).all()
    # its collectives block: nothing overlaps, and some of the time is spent in them
    rank = tables["times"][1]
    assert [rank[name] for name in PARTS] == found.shares[1].tolist()
    assert (rank["rank"], rank["overlapped"]) == (1, 0)
    assert sum(rank[name] for name in PARTS) == pytest.approx(1)
    assert rank["transfer"] > 0
    (exchanges,) = (r for r in tables["calls"] if r["operation"] == "all_to_all")
    assert (exchanges["calls"], exchanges["bytes"]) == (len(calls), sent)
    assert 0 < exchanges["transfer_p50"] < exchanges["transfer_p99"]
    assert 0 < exchanges["waiting_in_calls"] < 1
    stages = {row["measure"]: row for row in tables["stages"]}
    # the third of the last steps, and the warm-up in no stage
    length = step.mean(axis=1) / 1e9
    third = len(length) // 3
    assert stages["step_time"]["late"] == pytest.approx(length[-third:].mean())
    assert stages["step_time"]["early"] == pytest.approx(length[3:third].mean())
    assert 0 < stages["transfer"]["middle"] < 1
    names = {name for rows in tables.values() for row in rows for name in row}
    assert names | set(stages) <= set(COLUMNS)
    assert (empty, notes) == (
        {},
        ["no times: the trace is virtual: no time was measured"],
    )

"""Times of calls: exact cases by hand, two runs side by side, captured runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.analysis.comparison import compare
from moetraffic.analysis.resampling import ratio
from moetraffic.analysis.times.completion import (
    completion,
    parts,
    wall_times,
)
from moetraffic.analysis.times.time_ratios import (
    compare_times,
    link_bytes,
    matched,
    site_keys,
)
from moetraffic.report.results.comparison import sentences
from moetraffic.trace import UNKNOWN_TIME, Trace
from moetraffic.trace.panel import ArrayPanel


def retimed(trace: Trace, name: str, change) -> Trace:
    """The trace with one kind of times changed: ``change(array, width)``."""
    panels = dict(trace.panels)
    for key, panel in trace.panels.items():
        if key.endswith(f"/{name}"):
            panels[key] = ArrayPanel(change(panel.read(0, panel.shape[0]).copy()))
    return trace.replaced(panels=panels, runs=None)


def test_a_call_takes_its_slowest_member_and_a_transfer_begins_with_the_last(
    captured: Path,
) -> None:
    with Trace.open(captured) as trace:
        calls = completion(trace)
        assert len(calls) > 100
        for n in (0, len(calls) // 2, len(calls) - 1):
            one = calls.occurrence[n : n + 1]
            issue, start, end = (t[0] for t in trace.times(one))
            began = np.where(start == UNKNOWN_TIME, issue, start).max()
            assert calls.call_s[n] == pytest.approx((end - issue).max() / 1e9)
            assert calls.transfer_s[n] == pytest.approx(max(end.max() - began, 0) / 1e9)
            members = trace.members(one)[0]
            assert calls.last[n] == members[issue.argmax()]
        assert (calls.transfer_s <= calls.call_s + 1e-12).all()


def test_what_lacks_a_members_time_is_left_out(captured: Path) -> None:
    with Trace.open(captured) as trace:
        every = completion(trace)

        def forget(times: np.ndarray) -> np.ndarray:
            times[::2, 0] = UNKNOWN_TIME
            return times

        fewer = completion(retimed(trace, "end", forget))
        assert 0 < len(fewer) < len(every)
        _, rows = matched(trace, trace, fewer, every)
        np.testing.assert_array_equal(fewer.call_s, every.call_s[rows])
        nothing = completion(
            retimed(trace, "issue", lambda t: np.full_like(t, UNKNOWN_TIME))
        )
        assert len(nothing) == 0
        assert len(wall_times(trace, nothing)[0]) == 0
        silent = retimed(trace, "issue", lambda t: np.full_like(t, UNKNOWN_TIME))
        assert compare_times(trace, silent) == ()


def test_twice_as_slow_is_a_ratio_of_two_in_every_row(captured: Path) -> None:
    with Trace.open(captured) as trace:
        # all ranks share a clock there, so all times may be stretched together
        slow = trace
        for name in ("issue", "start", "end"):
            slow = retimed(slow, name, lambda t: np.where(t == UNKNOWN_TIME, t, 2 * t))
        found = compare_times(trace, slow)
        assert {(r.by, r.measure) for r in found} >= {
            ("all", "transfer"),
            ("all", "call"),
            ("operation", "call"),
            ("phase", "transfer"),
            ("layer", "call"),
            ("iteration", "wall"),
        }
        for row in found:
            assert row.ratio.value == pytest.approx(2)
            assert row.ratio.low == pytest.approx(2)
            assert row.ratio.high == pytest.approx(2)
            assert row.b.p99 == pytest.approx(2 * row.a.p99)
        told = compare(trace, slow)
        assert told.times == found
        by_phase = {r.label: r.number for r in found if r.by == "phase"}
        assert len(set(by_phase.values())) == 1


def test_calls_are_matched_by_what_they_are_whatever_the_ranks(captured: Path) -> None:
    with Trace.open(captured) as trace:
        keys = site_keys(trace)
        assert len(set(keys)) == len(keys)
        every = np.arange(len(trace.occurrences))
        later = trace.select(every[trace.occurrences.iteration >= 5])
        x, y = completion(trace), completion(later)
        mine, theirs = matched(trace, later, x, y)
        assert len(mine) == len(y)
        np.testing.assert_array_equal(x.iteration[mine], y.iteration[theirs])
        np.testing.assert_array_equal(x.call_s[mine], y.call_s[theirs])


def test_an_iteration_is_its_slowest_ranks_first_call_to_last_end(
    captured: Path,
) -> None:
    with Trace.open(captured) as trace:
        calls = completion(trace)
        when, took, slowest = wall_times(trace, calls)
        np.testing.assert_array_equal(when, np.unique(calls.iteration))
        n = len(when) // 2
        spans = np.zeros(trace.meta.world)
        for rank in range(trace.meta.world):
            mine = [
                (issue[0, m], end[0, m])
                for o in calls.occurrence[calls.iteration == when[n]]
                for issue, _, end in [trace.times(np.array([o]))]
                for m in np.flatnonzero(trace.members(np.array([o]))[0] == rank)
            ]
            first, last = zip(*mine, strict=True)
            spans[rank] = (max(last) - min(first)) / 1e9
        assert took[n] == pytest.approx(spans.max())
        assert slowest[n] == spans.argmax()


def test_parts_cover_every_call(captured: Path) -> None:
    with Trace.open(captured) as trace:
        calls = completion(trace)
        rows = {(by, label): at for by, label, at in parts(trace, calls)}
        assert len(rows["all", ""]) == len(calls)
        each = [at for (by, _), at in rows.items() if by == "operation"]
        assert sorted(np.concatenate(each)) == list(range(len(calls)))


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
            found = {by: at for by, _, at in parts(run, calls)}.get("start-up", [])
            return {(int(calls.iteration[n]), int(calls.site[n])) for n in found}

        sites = {int(s) for s in run.occurrences.site[run.occurrences.iteration == 0]}
        (alone,) = early(None)
        assert alone[0] == 0
        assert alone[1] in sites
        assert early(range(10)) == {alone}
        assert early(range(5, 10)) == set()
        later_rows = completion(run, range(5, 10))
        whole = {by: at for by, label, at in parts(run, later_rows) if by == "all"}
        assert len(whole["all"]) == len(later_rows)


@given(
    st.lists(st.floats(0.1, 10), min_size=3, max_size=60),
    st.floats(0.2, 5),
    st.integers(0, 5),
)
def test_a_constant_ratio_has_no_scatter(
    base: list[float], times: float, seed: int
) -> None:
    found = ratio(base, [times * b for b in base], seed=seed)
    for value in (found.value, found.low, found.high):
        assert value == pytest.approx(times)


def test_the_interval_holds_the_true_ratio_about_as_often_as_it_says() -> None:
    held = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        shared = rng.gamma(4, 1, 60)  # an iteration's size, in both
        below, above = (shared * rng.gamma(50, 1 / 50, 60) for _ in range(2))
        found = ratio(below, 1.5 * above, seed=seed)
        assert found.low <= found.value <= found.high
        held += found.low <= 1.5 <= found.high
    assert held >= 50


def test_two_iterations_have_a_ratio_and_no_interval() -> None:
    found = ratio([1.0, 1.0], [2.0, 4.0])
    assert found.value == 3
    assert np.isnan([found.low, found.high]).all()
    assert np.isnan(ratio([0.0], [1.0]).value)
    assert replace(found, value=0.0) != found


def test_waiting_and_bandwidth_of_two_runs_stand_side_by_side(captured: Path) -> None:
    """The second run moves the same bytes twice as fast, and waits for nobody."""
    with Trace.open(captured) as trace:
        found = trace.find(operation="all_to_all")
        some = trace.select(found)
        calls = completion(some)
        want = []
        for n in range(len(calls)):
            one = calls.occurrence[n : n + 1]
            wire = some.wire(one)[0].copy()
            np.fill_diagonal(wire, 0)
            want.append(max(wire.sum(axis=0).max(), wire.sum(axis=1).max()))
        np.testing.assert_array_equal(link_bytes(some, calls.occurrence), want)

        ends = np.arange(1, 10**6) * 4_000_000

        def late(ns):
            return lambda t: np.repeat(ends[: len(t), None] + ns, t.shape[1], 1)

        slow = retimed(some, "issue", late(0))
        slow = retimed(slow, "start", lambda t: np.full_like(t, UNKNOWN_TIME))
        slow = retimed(slow, "end", late(2000))
        fast = retimed(slow, "end", late(1000))
        # rank 0 calls 1 us before the others
        early = retimed(slow, "issue", lambda t: t - np.array([1000, 0, 0, 0]))
        rows = {(r.by, r.label, r.measure): r for r in compare_times(early, fast)}
        row = rows["operation", "all_to_all", "transfer"]
        assert row.ratio.value == pytest.approx(0.5)
        assert row.waiting == pytest.approx((1 / 9, 0.0))
        rate = np.sum(want) / (2e-6 * len(want)) / 1e9
        assert row.busbw_gbs == pytest.approx((rate, 2 * rate))
        assert rows["all", "", "call"].waiting is None
        text = " ".join(sentences(compare(early, fast)))
        assert "waiting for late ranks 11% and 0% of the time in calls" in text

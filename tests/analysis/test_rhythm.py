"""Bursts and steps: exact cases, known processes, and what was not observed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.analysis.claims import Outcome, regular
from moetraffic.analysis.rhythm import (
    FEWEST_BURSTS,
    burst_row,
    correlation_at,
    profiles,
    rhythm_tables,
    step_row,
    step_spans,
)
from moetraffic.analysis.sources import KINDS
from moetraffic.columns import COLUMNS
from moetraffic.data import path
from moetraffic.errors import AnalysisError
from moetraffic.result import Tables
from moetraffic.trace import Trace
from tests.analysis.clocked import MS, clocked, silent

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("duty", [0.5, 0.25])
@pytest.mark.parametrize("marked", [True, False])
def test_a_square_wave(duty: float, marked: bool) -> None:
    start = np.arange(60) * 8 * MS
    row = burst_row(start, start + int(duty * 8 * MS), marks=start if marked else ())
    assert row["duty"] == duty
    assert (row["bursts"], row["cycles"]) == (60, 59)
    assert row["period_ns"] == row["cycle_ns"] == 8 * MS
    assert row["burst_ns"] == row["burst_p99_ns"] == duty * 8 * MS
    assert row["gap_ns"] == (1 - duty) * 8 * MS
    assert (row["burst_cv"], row["gap_cv"], row["jitter"]) == (0, 0, 0)
    assert row["acf"] == pytest.approx(1)
    assert row["peak_to_mean"] == pytest.approx(1 / duty)
    assert row["observed_ns"] == 59 * 8 * MS


def test_neither_order_nor_overlap_matters() -> None:
    start = np.arange(200) * 10 * MS
    end = start + np.tile([5, 6, 4, 9], 50) * MS
    mixed = np.random.default_rng(0).permutation(start.size)
    halves = np.concatenate((start[mixed], (start + end)[mixed] // 2))
    ends = np.concatenate((end[mixed], end[mixed]))
    assert burst_row(halves, ends) == burst_row(start, end)


@pytest.mark.parametrize("events", [([], []), ([1], [4]), ([1, 8], [4, 9])])
def test_few_bursts_have_no_period(events) -> None:
    row = burst_row(*events)
    assert np.isnan([row["period_ns"], row["acf"], row["jitter"]]).all()
    assert row["bursts"] == len(events[0])
    assert np.isnan(row["duty"]) == (len(events[0]) < 2)


def test_jittered_bursts_have_a_period_and_exponential_ones_have_none() -> None:
    periods = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        length = rng.normal(10 * MS, 0.05 * 10 * MS, 300)
        start = np.cumsum(length).astype(np.int64)
        row = burst_row(start, start + 3 * MS)
        assert row["jitter"] == pytest.approx(0.05, rel=0.2)
        assert row["period_ns"] == pytest.approx(10 * MS, rel=0.02)
        border = np.cumsum(rng.exponential(5 * MS, 600)).astype(np.int64)
        row = burst_row(border[::2], border[1::2])
        assert row["burst_cv"] == pytest.approx(1, rel=0.25)
        assert row["gap_cv"] == pytest.approx(1, rel=0.25)
        periods.append(row["period_ns"])
    assert np.isnan(periods).all()
    start = np.arange(FEWEST_BURSTS - 1) * MS
    assert np.isnan(burst_row(start, start + 10)["period_ns"])


def test_bursts_at_random_places_of_steps_are_not_regular() -> None:
    outcomes = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        marks = np.arange(201) * 8 * MS
        start = marks[:-1] + rng.integers(0, 7 * MS, 200)
        bursts = start, start + MS
        row = burst_row(*bursts, marks=marks)
        assert abs(row["acf"]) < 0.3
        assert (row["cycle_ns"], row["jitter"]) == (8 * MS, 0)
        spans = step_spans(marks, bursts, None)
        outcomes.append(regular(profiles(bursts, *spans)).outcome)
    assert outcomes.count(Outcome.STATED) <= 1


def test_stretched_steps_are_regular_though_their_lengths_differ() -> None:
    rng = np.random.default_rng(4)
    length = rng.uniform(70, 130, 300) * MS
    marks = np.concatenate(([0], np.cumsum(length))).astype(np.int64)
    start = (marks[:-1, None] + length[:, None] * [0.2, 0.6]).ravel().astype(np.int64)
    bursts = start, start + (np.repeat(length, 2) * 0.1).astype(np.int64)
    row = burst_row(*bursts, marks=marks)
    assert row["acf"] < 0.5
    assert row["jitter"] == pytest.approx(0.6 / 12**0.5, rel=0.1)
    claim = regular(profiles(bursts, *step_spans(marks, bursts, None)))
    assert claim.outcome is Outcome.STATED
    assert claim.figure > 0.98


def test_slow_steps_are_part_of_the_jitter_and_an_evaluation_is_not() -> None:
    length = np.full(400, 10 * MS)
    length[10::20] = 40 * MS
    marks = np.concatenate(([0], np.cumsum(length)))
    bursts = marks[:-1], marks[:-1] + 2 * MS
    assert burst_row(*bursts, marks=marks)["jitter"] == pytest.approx(
        length.std() / length.mean()
    )
    marks[200:] += 500 * MS
    observed = np.array([0, marks[200]]), np.array([marks[200] - 500 * MS, marks[-1]])
    bursts = marks[:-1], marks[:-1] + 2 * MS
    begin, end = step_spans(marks, bursts, observed)
    steps = step_row(3, end - begin)
    assert (steps["rank"], steps["steps"]) == (3, 399)
    names = ("step_p50_ns", "step_p90_ns", "step_p99_ns", "step_max_ns")
    assert [steps[n] for n in names] == [10 * MS, 10 * MS, 40 * MS, 40 * MS]
    assert burst_row(*bursts, marks=marks, observed=observed)["gap_ns"] < 11 * MS


def test_what_was_not_observed_is_neither_on_nor_off() -> None:
    start = np.arange(100) * 10 * MS
    start[50:] += 5003 * MS
    events = start, start + 3 * MS
    assert burst_row(*events)["gap_cv"] > 1
    observed = start[[0, 50]], start[[49, 99]] + 10 * MS
    row = burst_row(*events, observed=observed)
    assert row["duty"] == pytest.approx(0.3, rel=1e-2)
    assert row["gap_cv"] == 0
    assert row["observed_ns"] == 990 * MS
    assert row["period_ns"] == 10 * MS


def test_the_autocorrelation_between_two_lags_is_linear_in_the_lag() -> None:
    series = np.tile([0.0, 1.0], 20)
    assert correlation_at(series, 2) == pytest.approx(1)
    assert correlation_at(series, 2.5) == pytest.approx(0)
    series[::7] = np.nan
    assert correlation_at(series, 3) == pytest.approx(-1)
    unknown = [correlation_at(series, lag) for lag in (float("nan"), 39.0)]
    assert np.isnan([*unknown, correlation_at(np.full(9, 0.3), 2)]).all()


events = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 30)), max_size=40)
times = st.lists(st.integers(0, 450), max_size=12)


@given(events, times, times)
def test_values_are_in_their_range_or_unknown(rows, marks, seen) -> None:
    start = np.array([r[0] for r in rows], np.int64)
    end = start + np.array([r[1] for r in rows], np.int64)
    seen = np.array(sorted(seen)[: len(seen) // 2 * 2], np.int64).reshape(-1, 2)
    observed = (seen[:, 0], seen[:, 1]) if seen.size else None
    row = burst_row(start, end, marks=sorted(marks), observed=observed)
    for name, low, high in (("duty", 0, 1), ("acf", -1, 1), ("jitter", 0, np.inf)):
        assert np.isnan(row[name]) or low - 1e-9 <= row[name] <= high + 1e-9


def test_tables_of_a_run_with_known_times() -> None:
    notes: list[str] = []
    made, (claim,) = rhythm_tables(clocked(), by=KINDS, notes=notes)
    assert notes == []
    tables = Tables(made)
    rows = {row["source"]: row for row in tables.rows("bursts")}
    assert list(rows) == [
        *("dispatch", "combine", "layer 1", "layer 1, dispatch", "layer 1, combine"),
        *("rank 0", "rank 1", "0 -> 1", "1 -> 0"),
    ]
    for name, duty in (("dispatch", 0.2), ("layer 1", 0.4), ("rank 1", 0.4)):
        assert rows[name]["duty"] == pytest.approx(duty, rel=0.05)
        assert (rows[name]["cycle_ns"], rows[name]["jitter"]) == (10 * MS, 0)
        assert rows[name]["clock_error_ns"] == 0
    assert (
        rows["rank 0"]["bytes_between_ranks"] == rows["0 -> 1"]["bytes_between_ranks"]
    )
    assert [row["rank"] for row in tables.rows("steps")] == [0, 1]
    assert {row["step_p99_ns"] for row in tables.rows("steps")} == {10 * MS}
    assert (claim.outcome, claim.subject) == (Outcome.TOO_SHORT, "rank 0")
    spectrum = tables["spectrum"]
    assert set(spectrum.source) == {"dispatch", "combine", "rank 0", "rank 1"}
    for _, one in spectrum.groupby("source"):
        assert one.power_share.sum() == pytest.approx(1)
        # what comes again in each step has its power at whole multiples of 100 Hz
        multiple = one.frequency_hz / 100
        near = np.abs(multiple - np.rint(multiple)) < 0.25
        assert one.power_share[near].sum() > 0.95
    for name in tables:
        assert set(tables[name].columns) <= set(COLUMNS)


def test_an_evaluation_between_steps_is_no_gap() -> None:
    trace = clocked(pause_after=5, pause_ns=70 * MS)
    made, _ = rhythm_tables(trace, by=["layer"], notes=[])
    (row,) = Tables(made).rows("bursts")
    assert row["duty"] == pytest.approx(0.4, rel=0.06)
    assert row["gap_ns"] < 5 * MS
    # the claim is of a rank, and so are steps
    (steps,) = Tables(made).rows("steps")
    assert (steps["rank"], steps["step_max_ns"]) == (0, 10 * MS)


def test_a_captured_run_is_described_whole() -> None:
    with Trace.open(path("golden.h5")) as trace:
        made, _ = rhythm_tables(trace, by=KINDS, notes=[])
    for row in Tables(made).rows("bursts"):
        assert 0 < row["duty"] < 1
        assert row["cycles"] > 5
        assert np.isfinite([row["jitter"], row["acf"]]).all()
        assert row["bytes_between_ranks"] > 0


def test_without_times_a_note_gives_the_reason() -> None:
    notes: list[str] = []
    with silent() as trace:
        assert rhythm_tables(trace, by=KINDS, notes=notes) == ({}, [])
        virtual = trace.replaced(meta=replace(trace.meta, virtual=True))
        assert rhythm_tables(virtual, notes=notes) == ({}, [])
        with pytest.raises(AnalysisError, match="not 'host'"):
            rhythm_tables(trace, by=["host"], notes=notes)
    assert notes == [
        "no rhythm: the trace has no all-to-all whose times are known",
        "no rhythm: the trace is virtual: no time was measured",
    ]


def test_bursts_shorter_than_the_clock_error_are_noted() -> None:
    trace, notes = clocked(), list[str]()
    with Trace.open(path("golden.h5")) as timed:
        clocks = timed.clocks.copy()
    clocks["error_ns"], clocks["offset_ns"] = 3 * MS, 0
    rhythm_tables(trace.replaced(clocks=clocks), by=["phase"], notes=notes)
    assert "dispatch: half of the bursts are shorter than twice" in notes[0]

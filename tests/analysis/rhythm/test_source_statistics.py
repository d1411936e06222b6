"""On-off statistics of real runs by phase, layer, rank and link."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moetraffic import Trace
from moetraffic.analysis.rhythm.source_statistics import (
    LINKS,
    SOURCES,
    OnOffStatistics,
    beats,
)
from moetraffic.analysis.times.call_times import (
    observed_steps,
    step_starts,
)
from moetraffic.data import path
from moetraffic.errors import AnalysisError
from moetraffic.trace import ALL_TO_ALL, PHASES, UNKNOWN_TIME
from tests.timed import with_times

pytestmark = pytest.mark.filterwarnings("error")

MS = 1_000_000


def by_name(found: OnOffStatistics) -> dict[str, object]:
    return {beat.name: beat for beat in found.found}


def timed(trace: Trace, at: np.ndarray) -> dict[int, np.ndarray]:
    """The same times of all calls for all four ranks."""
    return {4: np.repeat(at[:, None], 4, axis=1)}


def clocked(captured: Path) -> Trace:
    """Dispatch of layer 1 at 3 ms of every 10, combine at 6 ms, each 2 ms long."""
    trace = Trace.open(captured)
    keep = [
        trace.find(operation=ALL_TO_ALL, phase=phase, layer=1, slot=0)
        for phase in ("dispatch", "combine")
    ]
    trace = trace.select(np.sort(np.concatenate(keep)))
    phase = np.array([s.phase == "combine" for s in trace.sites])[
        trace.occurrences.site
    ]
    at = (trace.occurrences.iteration * 10 + np.where(phase, 6, 3)) * MS
    start = timed(trace, at)
    marks = np.repeat(trace.steps.iteration[:, None] * 10 * MS, 4, axis=1)
    return with_times(
        trace,
        {"issue": start, "start": start, "end": {4: start[4] + 2 * MS}},
        steps=replace(trace.steps, start=marks, end=marks + 10 * MS),
        clocks=trace.clocks[:0],
    )


def test_phases_layers_and_ranks_of_a_clocked_run(captured: Path) -> None:
    trace = clocked(captured)
    found = beats(trace, by=SOURCES, links=3)
    assert found.notes == ()
    told = by_name(found)
    wire = trace.wire(trace.find(operation=ALL_TO_ALL))
    between = np.where(np.eye(4, dtype=bool), 0, wire).sum(axis=0)
    for name, duty, bursts, begins in (
        ("dispatch", 0.2, 1, [0.3]),
        ("combine", 0.2, 1, [0.6]),
        ("layer 1", 0.4, 2, [0.3, 0.6]),
        ("rank 2", 0.4, 2, [0.3, 0.6]),
    ):
        rhythm = told[name].rhythm
        assert rhythm.duty == pytest.approx(duty, rel=0.05)
        assert rhythm.period_ns == pytest.approx(10 * MS, rel=1e-3)
        assert rhythm.cycle_ns == pytest.approx(10 * MS)
        assert rhythm.cycle_bursts == bursts
        assert rhythm.position == pytest.approx(begins)
        assert rhythm.likeness == pytest.approx(1)
        assert rhythm.jitter == pytest.approx(0)
        assert told[name].clock_error_ns == 0
    assert told["layer 1"].amount == between.sum()
    assert told["dispatch"].amount + told["combine"].amount == between.sum()
    assert told["rank 2"].amount == between[2].sum()
    links = [beat for beat in found.found if beat.by == "link"]
    assert [beat.amount for beat in links] == sorted(between.ravel())[::-1][:3]
    for beat in links:
        assert beat.amount == between[beat.ranks]


def test_real_runs_are_told_whole(captured: Path) -> None:
    with Trace.open(captured) as trace:
        found = beats(trace, by=SOURCES)
        told = by_name(found)
        assert set(PHASES) <= set(told)
        assert {"layer 1", "layer 3", "layer 3, combine", "rank 0"} <= set(told)
        assert sum(beat.by == "link" for beat in found.found) == LINKS
        for beat in found.found:
            rhythm = beat.rhythm
            assert 0 < rhythm.duty < 1
            assert rhythm.cycles > 10
            assert rhythm.burst_lengths is not None
            assert rhythm.burst_lengths.number == rhythm.bursts
            assert np.isfinite([rhythm.jitter, rhythm.likeness, rhythm.acf]).all()
            assert beat.amount > 0
        # four phases, two layers, two micro-batches
        assert told["rank 0"].rhythm.cycle_bursts in range(12, 17)
        assert told["dispatch"].amount == told["combine_grad"].amount


def test_an_evaluation_between_steps_is_no_gap(captured: Path) -> None:
    trace = clocked(captured)
    steps = trace.steps
    assert observed_steps(trace, 0) is None
    later = np.where(np.arange(len(steps.kind)) > 11, 70 * MS, 0)[:, None]
    kinds = tuple("evaluation" if n == 11 else k for n, k in enumerate(steps.kind))
    moved = np.where(trace.occurrences.iteration > 11, 70 * MS, 0)
    issue, _, end = trace.times(np.arange(len(trace.occurrences)))
    begin = timed(trace, issue[:, 0] + moved)
    trace = with_times(
        trace,
        {"issue": begin, "start": begin, "end": timed(trace, end[:, 0] + moved)},
        steps=replace(
            steps, kind=kinds, start=steps.start + later, end=steps.end + later
        ),
    )
    seen = observed_steps(trace, 0)
    assert seen is not None
    assert (seen[1] - seen[0]).tolist() == [110 * MS, 120 * MS]
    (beat,) = beats(trace, by=["layer"]).found
    assert beat.rhythm.duty == pytest.approx(0.4, rel=0.05)
    gaps = beat.rhythm.gap_lengths
    assert gaps is not None
    assert gaps.quantiles_ns[-1] < 10 * MS


def test_without_times_there_is_no_rhythm(captured: Path) -> None:
    with Trace.open(captured) as trace:
        silent = trace.select(trace.find(operation=ALL_TO_ALL))
        never = timed(silent, np.full(len(silent.occurrences), UNKNOWN_TIME))
        silent = with_times(silent, dict.fromkeys(("issue", "start", "end"), never))
        found = beats(silent, by=SOURCES)
        assert found.found == ()
        assert found.notes == (
            "no rhythm: the trace has no all-to-all whose times are known",
        )
        virtual = trace.replaced(meta=replace(trace.meta, virtual=True))
        found = beats(virtual)
        assert found.found == ()
        assert "virtual" in found.notes[0]


def test_a_golden_file_is_told() -> None:
    with Trace.open(path("golden.h5")) as trace:
        found = beats(trace, by=SOURCES)
        assert found.found or found.notes
        for beat in found.found:
            assert beat.events > 0
        assert step_starts(trace, 0).ndim == 1


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"by": ["host"]}, "not of 'host'"),
        ({"layers": [2]}, r"not of \[2\]"),
    ],
)
def test_what_there_is_not_is_refused(captured: Path, asked, says) -> None:
    with Trace.open(captured) as trace, pytest.raises(AnalysisError, match=says):
        beats(trace, **asked)

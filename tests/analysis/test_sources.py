"""Events of phases, layers, exchanges, ranks and links, and the time that they take."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.analysis import sources
from moetraffic.analysis.sources import (
    KINDS,
    OTHERS,
    Source,
    link_bytes,
    list_keys,
    middle_calls,
    on_off_series,
    read_sources,
    time_on,
    timeline,
)
from moetraffic.analysis.times.calls import merge_intervals
from moetraffic.data import path
from moetraffic.trace import ALL_TO_ALL, PHASES, Trace
from tests.analysis.clocked import MS, clocked

pytestmark = pytest.mark.filterwarnings("error")


def by_name(trace: Trace) -> dict[str, Source]:
    calls = trace.find(operation=ALL_TO_ALL)
    keys = list_keys(trace, calls, KINDS, [])
    return {source.name: source for source in read_sources(trace, calls, keys)}


def test_sources_of_a_run_with_known_times() -> None:
    trace = clocked()
    found = by_name(trace)
    wire = trace.wire(trace.find(operation=ALL_TO_ALL))
    between = np.where(np.eye(2, dtype=bool), 0, wire).sum(axis=0)
    assert link_bytes(trace, trace.find(operation=ALL_TO_ALL)).tolist() == (
        between.tolist()
    )
    assert list(found)[:4] == ["dispatch", "combine", "layer 1", "layer 1, dispatch"]
    # the link with the most bytes is first
    first, second = (s for s in found.values() if s.by == "link")
    assert first.sent.sum() >= second.sent.sum()
    for name, at, sent in (
        ("dispatch", [3], None),
        ("layer 1, combine", [6], None),
        ("layer 1", [3, 6], between.sum()),
        ("rank 1", [3, 6], between[1].sum()),
        ("0 -> 1", [3, 6], between[0, 1]),
    ):
        source = found[name]
        begin = (np.arange(12)[:, None] * 10 + at).ravel() * MS
        assert np.sort(source.begin).tolist() == begin.tolist()
        assert (source.end - source.begin == 2 * MS).all()
        assert sent is None or source.sent.sum() == sent
        assert source.one_clock == (source.by == "rank")


def test_of_many_sources_the_busiest_are_kept(monkeypatch) -> None:
    trace, notes = clocked(), list[str]()
    calls = trace.find(operation=ALL_TO_ALL)
    busiest = int(link_bytes(trace, calls).sum(axis=1).argmax())
    monkeypatch.setattr(sources, "RANKS", 1)
    keys = list_keys(trace, calls, ["rank"], notes)
    assert keys == [("rank", f"rank {busiest}", (busiest,))]
    assert notes == ["bursts are of the 1 busiest of 2 ranks"]
    monkeypatch.setattr(sources, "EVENTS", 8)  # four of twelve iterations
    kept = trace.occurrences.iteration[middle_calls(trace, calls, notes)]
    assert np.unique(kept).tolist() == [4, 5, 6, 7]
    assert "bursts are of iterations 4 to 7" in notes[-1]


def test_a_captured_run_has_all_sources() -> None:
    with Trace.open(path("golden.h5")) as trace:
        found = by_name(trace)
        calls = timeline(trace, range(3, 6))
        chosen = timeline(trace, range(3, 6), layers=[3], phase="combine")
    assert set(PHASES) <= set(found)
    assert {"layer 3, combine_grad", "rank 0", "rank 1", "1 -> 0"} <= set(found)
    assert found["dispatch"].sent.sum() == found["combine_grad"].sent.sum()
    assert set(calls["phase"]) == {*PHASES, OTHERS}
    assert (calls["end_ns"] >= calls["begin_ns"]).all()
    assert set(chosen["phase"]) == {"combine"}
    assert len(chosen["rank"]) == 2 * 2 * 3  # ranks, micro-batches, iterations


events = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=20)


@given(events, st.integers(1, 20))
def test_time_on_is_that_of_painted_bins(rows, width) -> None:
    since = 1_763_740_800_123_456_789  # float64 would round it to 256 ns
    begin = since + np.array([r[0] for r in rows], np.int64)
    end = begin + np.array([r[1] for r in rows], np.int64)
    painted = np.zeros(100)
    for b, e in zip(begin - since, end - since, strict=True):
        painted[b:e] = 1
    bursts = merge_intervals(begin, end)
    on = time_on(np.arange(101), *bursts, origin=since)
    assert on.tolist() == [0, *np.cumsum(painted)]
    series = on_off_series(*bursts, bin_ns=width, span=(since, since + 100))
    whole = painted[: 100 // width * width].reshape(-1, width)
    assert series == pytest.approx(whole.mean(axis=1))

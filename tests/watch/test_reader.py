"""Steps from segments that appear, are lost, stop and vanish while they are read."""

from __future__ import annotations

import os
import random
import shutil
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moetraffic.report.results.watch import tables
from moetraffic.trace.merge.merging import merge, merge_into, merge_segments
from moetraffic.trace.segments.segment import STEP
from moetraffic.watch import Snapshot, segment_reader, watch_run
from moetraffic.watch.live import LAST
from moetraffic.watch.segment_reader import SegmentReader
from moetraffic.watch.step_rows import joined, step_rows
from tests.trace.conftest import Play, Theatre

from . import windows

STEPS = 12
Cuts = st.sets(st.integers(1, windows.LAYERS * STEPS - 1), max_size=5)


def load(rank_set: range, steps: range, layer: int) -> list[int]:
    return sum(
        windows.routed(rank, step, layer) for rank in rank_set for step in steps
    ).tolist()  # type: ignore[union-attr]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.h5"


def folder_of(path: Path) -> Path:
    return path.with_name(path.name + ".segments")


def watching(path: Path, **more: object):  # type: ignore[no-untyped-def]
    return watch_run(path, interval_s=1e-3, **more)  # type: ignore[arg-type]


def test_windows_that_end_within_steps_give_the_rows_of_the_merge(path: Path) -> None:
    check_against_the_merge(path, ({1, 2, 3, 9, 17}, {5, 20}), random.Random(1))


@pytest.mark.slow
@given(cuts=st.tuples(Cuts, Cuts), order=st.randoms(use_true_random=False))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_windows_in_any_order_give_the_rows_of_the_merge(  # type: ignore[no-untyped-def]
    tmp_path_factory, cuts, order
) -> None:
    check_against_the_merge(tmp_path_factory.mktemp("run") / "run.h5", cuts, order)


def check_against_the_merge(
    path: Path, cuts: tuple[set[int], set[int]], order: random.Random
) -> None:
    calls = windows.calls_of(range(STEPS))
    waiting = []
    for rank, cut in enumerate(cuts):
        edges = [0, *sorted(cut), len(calls)]
        waiting.append(
            [
                windows.window(rank, n, calls[a:b], final=b == len(calls))
                for n, (a, b) in enumerate(pairwise(edges))
            ]
        )
    for rank in range(2):
        (folder_of(path) / f"rank-{rank:05d}").mkdir(parents=True)
    reader = SegmentReader(folder_of(path), STEPS)
    parts = []
    while any(waiting):
        mine = order.choice([w for w in waiting if w])
        windows.write(folder_of(path), mine.pop(0))
        for taken in reader.poll():
            trace = merge_segments(taken, "run").trace
            parts.append(step_rows(trace, trace.iterations))
    assert reader.read == sum(len(cut) + 1 for cut in cuts)
    got = joined(parts)
    whole = merge(folder_of(path)).trace
    want = step_rows(whole, whole.iterations)
    assert got.iteration.tolist() == list(range(STEPS))
    for name in ("iteration", "duration_s", "loss", "busy"):
        np.testing.assert_array_equal(getattr(got, name), getattr(want, name))
    for layer, rows in want.layers.items():
        assert rows.of == got.layers[layer].of == "expert"
        for name in ("load", "dropped", "bytes", "local_bytes", "busy"):
            mine = getattr(got.layers[layer], name)
            np.testing.assert_array_equal(mine, getattr(rows, name))


def test_a_step_counts_when_all_ranks_have_it(path: Path) -> None:
    every = watching(path, last=5)
    first = next(every)
    assert (first.state, first.world, len(first.iteration)) == ("waiting", 0, 0)
    windows.put(folder_of(path), 0, 0, range(8))
    (folder_of(path) / "rank-00001").mkdir()
    assert next(every).iteration.tolist() == []  # rank 1 has begun
    windows.put(folder_of(path), 1, 0, range(5))
    seen = next(every)
    assert (seen.state, seen.iteration.tolist()) == ("recording", [0, 1, 2, 3, 4])
    assert (seen.ahead, seen.ranks, seen.world, seen.notes) == (3, (0, 1), 2, ())
    for layer in seen.layers:
        number = layer.layer
        assert layer.total.tolist() == load(range(2), range(5), number)
        assert layer.load[-1].tolist() == load(range(2), range(4, 5), number)
    # a mid-step end: the rest of step 5 is in the next window
    calls = windows.calls_of(range(5, 7))
    windows.write(folder_of(path), windows.window(1, 1, calls[:1]))
    assert next(every).iteration.tolist() == [0, 1, 2, 3, 4]
    windows.write(folder_of(path), windows.window(1, 2, calls[1:]))
    seen = next(every)
    assert seen.iteration.tolist() == [2, 3, 4, 5, 6]
    assert seen.layers[0].total.tolist() == load(range(2), range(2, 7), 0)
    windows.put(folder_of(path), 1, 3, range(7, 8), final=True)
    windows.close(folder_of(path), 0, 1)
    last = next(every)
    assert (last.state, last.iteration[-1], last.closed) == ("closed", 7, (0, 1))
    assert next(every, None) is None


def test_a_merge_that_takes_the_segments_ends_the_watch(path: Path) -> None:
    for rank in range(2):
        windows.put(folder_of(path), rank, 0, range(8))
    every = watching(path)
    assert next(every).state == "recording"
    for rank in range(2):
        windows.put(folder_of(path), rank, 1, range(8, 11), final=True)
    merge_into(folder_of(path), path, force=False)
    shutil.rmtree(folder_of(path), ignore_errors=True)
    last = next(every)
    assert (last.state, last.iteration.tolist()) == ("merged", list(range(11)))
    assert last.layers[1].total.tolist() == load(range(2), range(11), 1)
    assert next(every, None) is None


@pytest.mark.slow  # many segments
def test_a_long_run_is_read_from_its_last_steps(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(2):
        for index in range(12):
            windows.put(folder_of(path), rank, index, range(4 * index, 4 * index + 4))
    read: list[str] = []
    real = segment_reader.read_segment

    def counted(path: Path):  # type: ignore[no-untyped-def]
        read.append(f"{path.parent.name}/{path.name}")
        return real(path)

    monkeypatch.setattr(segment_reader, "read_segment", counted)
    every = watching(path, last=6)
    seen, steps = next(every), set()
    while seen.iteration[-1] < 47:
        steps |= set(seen.iteration.tolist())
        seen = next(every)
    # no step is skipped, though more are new than a snapshot has
    assert steps >= set(range(min(steps), 42))
    assert seen.iteration.tolist() == list(range(42, 48))
    assert len(read) <= 2 * 5
    before = len(read)
    next(every)
    assert len(read) == before
    windows.put(folder_of(path), 0, 12, range(48, 52))
    windows.put(folder_of(path), 1, 12, range(48, 52))
    assert next(every).iteration[-1] == 51
    # besides the newest one, from whose steps the beginning follows, each once
    assert len(read) == before + 2
    assert max(map(read.count, read)) <= 2


def test_lost_windows_and_ranks_are_named_and_left_out(path: Path) -> None:
    folder = folder_of(path)
    windows.put(folder, 0, 0, range(12))
    windows.put(folder, 1, 0, range(3))
    calls = windows.calls_of(range(5, 12))
    # window 1 is lost, with steps 3, 4 and the first layer of 5
    last = windows.write(folder, windows.window(1, 2, calls[1:]))
    os.utime(last, (ago := time.time() - 100, ago))
    every = watching(path, last=20)
    seen = next(every)
    assert seen.iteration.tolist() == [0, 1, 2, *range(6, 12)]
    assert any("3 steps are left out" in note for note in seen.notes)
    # rank 1 ends, rank 0 goes on
    for index in range(1, 7):
        steps = range(8 + 4 * index, 12 + 4 * index)
        windows.put(folder, 0, index, steps)
    while seen.iteration[-1] < 35:
        seen = next(every)
    assert any("rank 1 has no record after step 11" in n for n in seen.notes)
    assert seen.layers[0].load[-1].tolist() == load(range(1), range(35, 36), 0)


def test_ranks_without_segments_here_are_said(path: Path) -> None:
    for rank in (0, 3):
        windows.put(folder_of(path), rank, 0, range(6), world=4)
    seen = next(watching(path, follow=False))
    assert (seen.ranks, seen.world) == ((0, 3), 4)
    assert any("2 of 4 ranks are seen" in note for note in seen.notes)
    layer = seen.layers[0]
    want = windows.routed(0, 5, 0) + windows.routed(3, 5, 0)
    assert layer.load[-1].tolist() == want.tolist()
    assert layer.bytes[-1] == windows.ROW * want.sum()


@pytest.mark.slow  # many segments
def test_unmarked_steps_are_unknown_and_the_first_marked_one_is_left_out(
    path: Path,
) -> None:
    folder = folder_of(path)
    for rank in range(2):
        calls = windows.calls_of(range(1))
        for index in range(6):
            windows.write(folder, windows.window(rank, index, calls, unmarked=True))
    every = watching(path)
    seen = next(every)
    assert len(seen.iteration) == 0
    assert any("steps are unknown" in note for note in seen.notes)
    for rank in range(2):
        windows.put(folder, rank, 6, range(4))
    assert next(every).iteration.tolist() == [1, 2, 3]


@pytest.mark.slow  # many segments
def test_another_capture_in_its_place_begins_anew(path: Path) -> None:
    folder = folder_of(path)
    for rank in range(2):
        for index in range(3):
            windows.put(folder, rank, index, range(4 * index, 4 * index + 4))
    every = watching(path, last=LAST)
    assert next(every).iteration[-1] == 11
    shutil.rmtree(folder)
    for rank in range(2):
        windows.put(folder, rank, 0, range(5))
    assert next(every).iteration.tolist() == list(range(5))


@pytest.mark.slow  # many segments
def test_a_damaged_segment_ends_nothing(path: Path) -> None:
    folder = folder_of(path)
    for rank in range(2):
        windows.put(folder, rank, 0, range(4))
        windows.put(folder, rank, 1, range(4, 8))
        windows.put(folder, rank, 2, range(8, 12))
    damaged = folder / "rank-00001" / "segment-000001.h5"
    damaged.write_bytes(damaged.read_bytes()[:500])
    seen: Snapshot = next(watching(path))
    # of the step after it, it is unknown whether calls were lost
    assert seen.iteration.tolist() == [0, 1, 2, 3, 9, 10, 11]
    assert any("1 segments cannot be read" in note for note in seen.notes)


@pytest.mark.parametrize("last", [4, 5, 16])
def test_evaluations_inside_an_optimizers_steps_count_as_in_the_trace(
    path: Path, last: int
) -> None:
    theatre = Theatre(Play(layers=1, steps=16, evaluate_every=3))
    segments, truth = theatre.run()
    number = np.cumsum([0, *(kind == "train" for kind in theatre.kinds)])
    marked = []
    for segment in segments:
        events = segment.events.copy()
        events["iteration"] = [number[label[0]] for label in truth[segment.rank]]
        steps = np.zeros(16, STEP)
        steps["iteration"], steps["loss"], steps["tokens"] = range(16), np.nan, -1
        marked.append(
            replace(segment, events=events, steps=steps, kinds=("train",) * 16)
        )
        windows.write(folder_of(path), marked[-1])
    windows.close(folder_of(path), *range(4))
    *_, newest = watching(path, last=last, follow=False)
    shown = newest.iteration
    of_run = merge_segments(marked, "run").trace.iterations
    assert shown.tolist() == of_run[-last:].tolist()
    between = int(shown[-1] - shown[0]) + 1 - len(shown)
    assert f"{last} steps of training; {between} between are evaluations" in str(
        [table.rows for table in tables(newest)]
    )

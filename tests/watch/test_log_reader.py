"""Steps from logs that grow, stop, break and vanish while they are read."""

from __future__ import annotations

import random
import shutil
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moetraffic.trace.merge import log_format as log
from moetraffic.trace.merge.merging import merge, merge_into, merge_records
from moetraffic.watch import Snapshot, watch_run
from moetraffic.watch.log_reader import LogReader
from moetraffic.watch.step_rows import step_rows

from .logs import EXPERTS, LAYERS, ROW, STEP_NS, RankWriter, record, routed, write_run

STEPS = 12


def load(ranks: range, steps: range, layer: int) -> list[int]:
    rows = [routed(rank, step, layer) for rank in ranks for step in steps]
    return np.sum(rows, axis=0).tolist()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.h5"


def folder_of(path: Path) -> Path:
    return path.with_name(path.name + ".logs")


def watching(path: Path, last: int = 32, *, follow: bool = True) -> Iterator[Snapshot]:
    return watch_run(path, last=last, interval_s=1e-3, follow=follow)


@given(
    cuts=st.tuples(*[st.sets(st.integers(1, STEPS - 1), max_size=4)] * 2),
    order=st.randoms(use_true_random=False),
)
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_of_a_growing_log_are_those_of_the_merge(
    tmp_path_factory: pytest.TempPathFactory,
    cuts: tuple[set[int], set[int]],
    order: random.Random,
) -> None:
    folder = tmp_path_factory.mktemp("run") / "run.h5.logs"
    writers = [RankWriter(folder, rank) for rank in range(2)]
    waiting = [[*sorted(cut), STEPS] for cut in cuts]
    reader, rows = LogReader(folder, STEPS), []
    while any(waiting):
        rank = order.choice([rank for rank in range(2) if waiting[rank]])
        if writers[rank].step and order.random() < 0.3:
            writers[rank].rotate()
        writers[rank].write(waiting[rank].pop(0))
        for records in reader.poll():
            trace = merge_records(records, "run").trace
            rows += step_rows(trace, trace.iterations)
    whole = merge(folder).trace
    wanted = step_rows(whole, whole.iterations)
    assert [row.iteration for row in rows] == list(range(STEPS))
    for row, want in zip(rows, wanted, strict=True):
        for name in ("duration_s", "loss", "bytes", "local_bytes", "time_share"):
            assert getattr(row, name) == getattr(want, name)
        assert row.layers.keys() == want.layers.keys() == set(range(LAYERS))
        for layer, there in row.layers.items():
            assert there.of == "expert"
            assert there.load.tolist() == want.layers[layer].load.tolist()
            assert there.bytes == want.layers[layer].bytes
            assert there.dropped == want.layers[layer].dropped == 0


def test_a_step_counts_when_all_ranks_have_it(path: Path) -> None:
    snapshots = watching(path, last=5)
    first = next(snapshots)
    assert (first.state, first.world, len(first.iteration)) == ("waiting", 0, 0)
    writers = [RankWriter(folder_of(path), rank) for rank in range(2)]
    writers[0].write(8)
    seen = next(snapshots)
    assert (seen.state, seen.iteration.tolist()) == ("recording", [])
    writers[1].write(5)
    seen = next(snapshots)
    assert (seen.state, seen.iteration.tolist()) == ("recording", [0, 1, 2, 3, 4])
    assert (seen.ahead, seen.ranks, seen.world, seen.notes) == (3, (0, 1), 2, ())
    logs = sum(writer.path.stat().st_size / writer.step for writer in writers)
    assert seen.log_bytes == pytest.approx(logs)
    for layer in seen.layers:
        number = layer.layer
        assert layer.total.tolist() == load(range(2), range(5), number)
        assert layer.load[-1].tolist() == load(range(2), range(4, 5), number)
    # a frame ends within step 5, and another one is not whole
    writers[1].append(writers[1].layer(5, 0))
    assert next(snapshots).iteration.tolist() == [0, 1, 2, 3, 4]
    words = writers[1].layer(5, 1) + writers[1].end(5)
    frame = log.frame(log.WORDS, words.tobytes())
    with writers[1].path.open("ab") as file:
        file.write(frame[:50])
        file.flush()
        writers[1].age()
        assert next(snapshots).iteration.tolist() == [0, 1, 2, 3, 4]
        file.write(frame[50:])
    writers[1].age()
    seen = next(snapshots)
    assert seen.iteration.tolist() == [1, 2, 3, 4, 5]
    assert seen.layers[0].total.tolist() == load(range(2), range(1, 6), 0)
    writers[1].step = 6
    for writer in writers:
        writer.write(9)
        writer.close()
    last = next(snapshots)
    assert (last.state, last.iteration[-1], last.closed) == ("closed", 8, (0, 1))
    assert next(snapshots, None) is None


def test_no_step_of_a_watched_run_is_skipped(path: Path) -> None:
    snapshots = watching(path, last=4)
    assert next(snapshots).state == "waiting"
    write_run(folder_of(path), 11)
    assert next(snapshots).iteration.tolist() == [7, 8, 9, 10]
    shutil.rmtree(folder_of(path))
    snapshots = watching(path, last=4)
    writers = [RankWriter(folder_of(path), rank) for rank in range(2)]
    assert next(snapshots).iteration.tolist() == []
    for writer in writers:
        writer.write(11)
    shown = [next(snapshots).iteration.tolist() for _ in range(3)]
    assert shown == [[0, 1, 2, 3], [4, 5, 6, 7], [7, 8, 9, 10]]


def test_a_merge_that_takes_the_logs_ends_the_watch(path: Path) -> None:
    writers = write_run(folder_of(path), 8)
    snapshots = watching(path)
    assert next(snapshots).state == "recording"
    for writer in writers:
        writer.write(11)
        writer.close()
    merge_into(folder_of(path), path, force=False)
    shutil.rmtree(folder_of(path), ignore_errors=True)
    last = next(snapshots)
    assert (last.state, last.iteration.tolist()) == ("merged", list(range(11)))
    assert last.layers[1].total.tolist() == load(range(2), range(11), 1)
    assert next(snapshots, None) is None


def test_a_long_run_is_read_from_its_newest_files(path: Path) -> None:
    writers = [RankWriter(folder_of(path), rank) for rank in range(2)]
    for writer in writers:
        writer.write(20)
        writer.rotate()
    first = log.log_file(folder_of(path), 0, 0)
    first.write_bytes(b"")  # it is not read
    writers[0].append(writers[0].layer(20, 0))
    for writer in writers:
        writer.write(48)
    snapshots = watching(path, last=6)
    seen = next(snapshots)
    assert (seen.iteration.tolist(), seen.notes) == (list(range(42, 48)), ())
    # no step is skipped, though more are new than a snapshot has
    for writer in writers:
        writer.write(63)
    shown = [next(snapshots).iteration.tolist() for _ in range(3)]
    assert [steps[-1] for steps in shown] == [53, 59, 62]
    assert shown[-1] == list(range(57, 63))


def test_a_rank_that_has_stopped_is_named_and_left_out(path: Path) -> None:
    writers = write_run(folder_of(path), 3)
    snapshots = watching(path)
    assert next(snapshots).iteration.tolist() == [0, 1, 2]
    writers[0].write(9)
    seen = next(snapshots)
    assert (seen.iteration[-1], seen.ahead) == (2, 6)
    writers[1].age(100)
    reader = watching(path)
    seen = next(reader)
    while seen.iteration[-1] < 8:
        seen = next(reader)
    assert any("rank 1 has no record after step 2" in note for note in seen.notes)
    assert seen.layers[0].load[-1].tolist() == load(range(1), range(8, 9), 0)
    assert seen.layers[0].load[0].tolist() == load(range(2), range(1), 0)


def test_ranks_without_a_log_here_are_stated(path: Path) -> None:
    for rank in (0, 3):
        RankWriter(folder_of(path), rank, world=4).write(6)
    seen = next(watching(path, follow=False))
    assert (seen.ranks, seen.world) == ((0, 3), 4)
    assert any("2 of 4 ranks are seen" in note for note in seen.notes)
    layer = seen.layers[0]
    want = routed(0, 5, 0) + routed(3, 5, 0)
    assert layer.load[-1].tolist() == want.tolist()
    assert layer.bytes[-1] == ROW * want.sum()


def test_unmarked_steps_are_unknown(path: Path) -> None:
    writers = [RankWriter(folder_of(path), rank) for rank in range(2)]
    for writer in writers:
        writer.append(writer.layer(0, 0))
    seen = next(watching(path, follow=False))
    assert (len(seen.iteration), seen.ranks) == (0, (0, 1))
    assert any("steps are unknown" in note for note in seen.notes)


def test_another_capture_in_its_place_begins_anew(path: Path) -> None:
    write_run(folder_of(path), 11)
    snapshots = watching(path)
    assert next(snapshots).iteration[-1] == 10
    shutil.rmtree(folder_of(path))
    write_run(folder_of(path), 5)
    assert next(snapshots).iteration.tolist() == list(range(5))


def test_a_damaged_log_is_stated_and_ends_nothing(path: Path) -> None:
    writers = write_run(folder_of(path), 4)
    size = writers[1].path.stat().st_size
    for writer in writers:
        writer.write(8)
    with writers[1].path.open("r+b") as file:
        file.seek(size + 20)
        file.write(b"damage")
    seen = next(watching(path, follow=False))
    assert seen.iteration.tolist() == list(range(8))
    assert any("is damaged at byte" in note for note in seen.notes)
    assert any("rank 1 has no record after step 3" in note for note in seen.notes)
    assert seen.layers[0].load.sum(axis=1).tolist() == [384] * 4 + [192] * 4


def test_a_step_waits_for_values_that_follow(path: Path) -> None:
    writers = write_run(folder_of(path), 4)
    writers[0].age(0)
    seen = next(watching(path, follow=False))
    assert len(seen.iteration) == 0
    # a call that comes more than a second after the first two steps, and less after
    # the others
    begin = int(1e9) + 2 * STEP_NS
    fields = [99, begin, 8, 0, 0, 0, 0, 0, 1, -1, -1, -1, -1, *[0] * 6]
    writers[0].append(array("q", record(log.CALL, fields)))
    writers[0].age(0)
    seen = next(watching(path, follow=False))
    assert seen.iteration.tolist() == [0, 1]
    writers[0].age()
    seen = next(watching(path, follow=False))
    assert seen.iteration.tolist() == [0, 1, 2, 3]


def test_steps_with_lost_calls_are_left_out(path: Path) -> None:
    writers = write_run(folder_of(path), 4)
    words = writers[1].layer(4, 0)
    words.extend(record(log.LOST, [3]))
    writers[1].append(words + writers[1].layer(4, 1) + writers[1].end(4))
    writers[1].step = 5
    for writer in writers:
        writer.write(7)
    seen = next(watching(path, follow=False))
    assert seen.iteration.tolist() == [0, 1, 2, 3, 5, 6]
    assert any("1 steps are left out" in note for note in seen.notes)


def test_a_log_of_another_version_is_stated(path: Path) -> None:
    write_run(folder_of(path), 4)
    state = log.State(version=log.VERSION + 1, steps=4)
    log.state_file(folder_of(path), 1).write_bytes(log.STATE.pack(*state))
    seen = next(watching(path, follow=False))
    assert any("no log of this moetraffic" in note for note in seen.notes)
    assert len(seen.layers[0].total) == EXPERTS

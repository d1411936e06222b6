"""What a rank puts into its log comes out of it, and what does not is stated."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.capture import log as log_module
from moetraffic.capture.annotate import CallContext
from moetraffic.capture.log import Log, RecordQueue
from moetraffic.trace.merge import log_format as words
from moetraffic.trace.merge.rank_log import RankLog, read_rank
from moetraffic.trace.merge.rank_record import RankRecord
from moetraffic.trace.model import ALL_TO_ALL, Meta

GROUP = ("g", "ep", (0, 1))


class Rank:
    """The log of rank 0 of 2, and a program that fills it letter by letter.

    ``f`` and ``b`` are all-to-alls of a forward and a backward pass, ``c`` an
    all-reduce, ``o`` an optimizer step, ``s`` one that the program marks, ``p`` a pause
    and ``r`` its end.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self.said = folder, list[str]()
        folder.mkdir(exist_ok=True)
        state = os.open(words.state_file(folder, 0), os.O_RDWR | os.O_CREAT)
        fcntl.flock(state, fcntl.LOCK_EX)
        self.queue, self.calls = RecordQueue(), itertools.count()
        about = {"meta": Meta(world=2).as_dict(), "node": "here", "placement": {}}
        about |= {"begun": 0, "threads": [threading.get_ident()]}
        self.log = Log(
            *(folder, 0, state, about, self.queue, lambda: None, self.said.append),
            **options,
        )
        self.time, self.context = 0, CallContext()

    def play(self, program: str) -> None:
        for letter in program:
            now, self.time = self.time, self.time + 1
            if letter in "fbc":
                self.call(letter, now)
            elif letter == "o":
                self.log.end_step(words.OPTIMIZER, now, 0, 0)
            elif letter == "s":
                self.log.end_step(words.STEP, now, -1, -1, 0)
            else:
                self.log.put(words.PAUSE, 3, int(letter == "p"))

    def call(self, letter: str, now: int) -> None:
        name = "all_reduce" if letter == "c" else ALL_TO_ALL
        splits = [] if letter == "c" else [now, 1, 2, now]
        log = self.log
        number = next(self.calls)
        head = (
            *(number, now, words.OPERATIONS.index(name)),
            *(log.number("group", GROUP), log.number("context", self.context)),
            *(log.number("dtype", None), log.number("thread", threading.get_ident())),
            *(int(letter == "b"), 0, -1, -1, -1, -1, now if letter == "c" else 0, 4),
            *(now + 1, now + 2, len(splits) // 2, len(splits) // 2),
        )
        length = words.CALL_HEAD + len(splits)
        record = array("q", (words.CALL, length, *head, *splits))
        self.queue.put_call(record.tobytes())
        log.put(words.END, 5, number, now, now + 10)


@pytest.fixture
def rank(tmp_path: Path) -> Callable[..., Rank]:
    return lambda **options: Rank(tmp_path / "run.h5.logs", **options)


def calls_of(record: RankRecord) -> dict[int, list[tuple[int, ...]]]:
    """Time and bytes of the calls by iteration."""
    calls: dict[int, list[tuple[int, ...]]] = {}
    for row in record.calls:
        values: tuple[int, ...] = (int(row["payload"]),)
        if record.sites[row["site"]].operation == ALL_TO_ALL:
            sides = record.splits[2][row["payload"]]
            values = tuple(sides[:: -1 if row["transposed"] else 1].ravel().tolist())
        calls.setdefault(int(row["iteration"]), []).append((int(row["issue"]), *values))
    return calls


def recorded(program: str, folder: Path, **options: Any) -> RankRecord:
    rank = Rank(folder, **options)
    rank.play(program)
    rank.log.close()
    return read_rank(folder, 0)


def test_a_record_has_the_calls_and_steps(rank: Callable[..., Rank]) -> None:
    one = rank()
    one.play("fbcsfbs")
    one.log.close()
    record = read_rank(one.folder, 0)
    assert calls_of(record) == {
        0: [(0, 0, 4, 8, 0), (1, 4, 4, 8, 4), (2, 2)],
        1: [(4, 16, 4, 8, 16), (5, 20, 4, 8, 20)],
    }
    assert record.calls["end"].tolist() == [10, 11, 12, 14, 15]
    assert record.calls["sequence"].tolist() == [0, 1, 2, 3, 4]
    assert [record.sites[s].direction for s in record.calls["site"]] == [
        *("forward", "backward", "forward", "forward", "backward")
    ]
    assert record.steps["iteration"].tolist() == [0, 1]
    assert record.steps["end"].tolist() == [3, 6]
    assert (record.closed, record.lost_steps, record.lost_calls) == (True, 0, 0)
    assert not one.said


def test_a_call_that_raised_was_not_sent(rank: Callable[..., Rank]) -> None:
    one = rank()
    one.play("ff")
    one.log.put(words.RAISED, 3, 0)
    one.play("fs")
    one.log.close()
    record = read_rank(one.folder, 0)
    assert record.calls["issue"].tolist() == [1, 2]
    assert record.calls["sequence"].tolist() == [0, 1]


def test_a_killed_rank_loses_what_is_stated(rank: Callable[..., Rank]) -> None:
    one = rank()
    one.play("fbs" * 5)
    assert one.log.flush()
    one.play("fb")
    # as after SIGKILL: the state has been written, the records have not
    one.queue.take()
    one.log.end_step(words.STEP, 99, -1, -1, 0)
    one.queue.take()
    record = read_rank(one.folder, 0)
    assert record.steps["iteration"].tolist() == [0, 1, 2, 3, 4]
    assert (record.closed, record.lost_steps) == (False, 1)
    one.log.close()


def test_steps_wait_before_more_than_eight_are_not_written(
    rank: Callable[..., Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, write = [], os.write
    one = rank()

    def slow(file: int, data: Any) -> int:
        time.sleep(0.02)
        return write(file, data)

    monkeypatch.setattr(os, "write", slow)
    for _ in range(60):
        one.play("fs")
        reader = RankLog(one.folder, 0)
        reader.read()
        lost.append(reader.record(whole=False).lost_steps)
    one.log.close()
    assert 1 < max(lost) <= log_module.MOST_LOST
    assert len(read_rank(one.folder, 0).steps) == 60


def test_a_disk_that_stalls_delays_a_run_once(
    rank: Callable[..., Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "PATIENCE_S", 0.2)
    one, gate, write = rank(), threading.Event(), os.write

    def stalled(file: int, data: Any) -> int:
        gate.wait()
        return write(file, data)

    monkeypatch.setattr(os, "write", stalled)
    monkeypatch.setattr(log_module, "MOST_QUEUED", 100)
    one.play("fs" * 200)
    gate.set()
    one.log.close()
    slow, lost = one.said
    assert "so slow that steps have waited" in slow
    record = read_rank(one.folder, 0)
    assert len(record.calls) + record.lost_calls == 200
    assert record.lost_calls > 0
    assert f"{record.lost_calls} calls could not be written" in lost
    # no step is lost, and calls behind the gap are known to be
    assert len(record.steps) == 200
    assert record.gaps


def test_a_full_disk_stops_no_training(
    rank: Callable[..., Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, write = rank(), os.write
    one.play("fs" * 3)
    one.log.flush()

    def full(file: int, data: Any) -> int:
        if len(data) > 10:
            return write(file, data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(os, "write", full)
        one.play("fs" * 20)
        assert not one.log.flush()
    one.play("fs" * 3)
    one.log.close()
    (said,) = one.said
    assert "cannot be written (No space left on device): the training goes on" in said
    # room came back in time: nothing is lost
    record = read_rank(one.folder, 0)
    assert len(record.calls) == len(record.steps) == 26
    assert record.lost_calls == 0


def test_what_never_finds_room_is_counted(
    rank: Callable[..., Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = rank()
    one.play("fs" * 3)
    one.log.flush()

    def full(_file: int, _data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    one.play("fs" * 20)
    one.log.close()
    record = read_rank(one.folder, 0)
    assert len(record.steps) == 3
    assert (record.closed, record.lost_calls, record.lost_steps) == (True, 20, 20)
    assert "20 calls could not be written" in one.said[-1]


def test_a_reader_begins_with_any_file_and_reads_on(
    rank: Callable[..., Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "FILE_BYTES", 900)
    one = rank()
    for _ in range(10):
        one.play("fbcs")
        one.log.flush()
    reader = RankLog(one.folder, 0, newest=True)
    assert reader.read()
    first = int(reader.record(whole=False).steps["iteration"][0])
    assert 5 < first < 10
    one.play("fbcs" * 2)
    one.log.close()
    assert reader.read()
    assert not reader.read()
    whole = read_rank(one.folder, 0)
    assert len(words.log_files(one.folder, 0)) > 2
    assert whole.steps["iteration"].tolist() == list(range(12))
    record = reader.record()
    assert record.steps.tolist() == whole.steps[first:].tolist()
    calls = calls_of(whole)
    assert calls_of(record) == {n: calls[n] for n in range(first, 12)}
    reader.forget(10)
    assert calls_of(reader.record()) == {n: calls[n] for n in (10, 11)}
    assert reader.record().steps.tolist() == whole.steps[10:].tolist()


def test_names_that_are_new_in_a_new_file_keep_their_numbers(
    rank: Callable[..., Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "FILE_BYTES", 1500)
    one = rank()
    for layer in range(24):
        one.context = CallContext(layer, "dispatch")
        one.play("fs")
        one.log.flush()
    one.log.close()
    assert len(words.log_files(one.folder, 0)) > 2
    record = read_rank(one.folder, 0)
    assert [record.sites[s].layer for s in record.calls["site"]] == list(range(24))


def test_a_damaged_frame_ends_a_log(rank: Callable[..., Rank]) -> None:
    one = rank()
    one.play("fs")
    one.log.flush()
    size = words.log_file(one.folder, 0, 0).stat().st_size
    one.play("fs")
    one.log.close()
    path = words.log_file(one.folder, 0, 0)
    content = bytearray(path.read_bytes())
    content[size + words.HEADER.size + 3] ^= 1
    path.write_bytes(content)
    record = read_rank(one.folder, 0)
    assert len(record.steps) == 1
    assert f"is damaged at byte {size}" in record.damage
    # a frame that is not whole is none
    path.write_bytes(content[: size + 5])
    record = read_rank(one.folder, 0)
    assert (len(record.steps), record.damage) == (1, "")


# ---- iterations are recorded whole or not at all, and keep their numbers -------------


@given(
    blocks=st.lists(
        st.sampled_from(["fb", "fbc", "cfbc", "ffbb"]), min_size=3, max_size=12
    ),
    end=st.sampled_from(["s", "o", "oc", "oco", "ooc"]),
    every=st.integers(1, 4),
    pieces=st.integers(1, 4),
)
def test_every_nth_iteration_is_as_without_sampling(
    tmp_path_factory: pytest.TempPathFactory,
    blocks: list[str],
    end: str,
    every: int,
    pieces: int,
) -> None:
    program = "".join(block + end for block in blocks)
    folder = tmp_path_factory.mktemp("logs")
    whole = recorded(program, folder / "whole")
    rank = Rank(folder / "sampled", every=every)
    for piece in np.array_split(list(program), pieces):
        rank.play("".join(piece))
        rank.log.flush()
    rank.log.close()
    record = read_rank(rank.folder, 0)
    kept = [str(row) for row in whole.steps.tolist() if row[0] % every == 0]
    assert list(map(str, record.steps.tolist())) == kept
    calls = calls_of(whole)
    assert calls_of(record) == {n: c for n, c in calls.items() if n % every == 0}
    sequence = dict(
        zip(
            whole.calls["issue"].tolist(), whole.calls["sequence"].tolist(), strict=True
        )
    )
    assert record.calls["sequence"].tolist() == [
        sequence[issue] for issue in record.calls["issue"].tolist()
    ]
    assert record.lost_steps == 0


@pytest.mark.parametrize("end", "so")
@pytest.mark.parametrize("pieces", [1, 20])
def test_a_pause_is_of_whole_iterations(end: str, pieces: int, tmp_path: Path) -> None:
    one = "fbc" + end
    for number, (program, want) in enumerate(
        (
            (one + "p" + one + one + "r" + one, [0, 3]),
            # within an iteration, whose rest belongs to it, and in one of the pause
            (one[:2] + "p" + one[2:] + one[:1] + "r" + one[1:] + one, [0, 2]),
        )
    ):
        rank = Rank(tmp_path / str(number))
        for piece in np.array_split(list(program), pieces):
            rank.play("".join(piece))
            rank.log.flush()
        rank.log.close()
        record = read_rank(rank.folder, 0)
        calls = calls_of(record)
        assert record.steps["iteration"].tolist() == sorted(calls) == want
        assert {len(rows) for rows in calls.values()} == {3}


def test_the_maximum_size_ends_the_record_and_is_stated(tmp_path: Path) -> None:
    rank = Rank(tmp_path / "logs", most_bytes=1500)
    for _ in range(40):
        rank.play("fbs")
        rank.log.flush()
    rank.log.close()
    record = read_rank(rank.folder, 0)
    end = len(record.steps)
    assert 2 < end < 40
    assert record.steps["iteration"].tolist() == list(range(end))
    assert sorted(calls_of(record)) == list(range(end))
    assert record.stopped_at == end
    # nothing is left out of a run that ends before
    assert recorded("fbs" * 2, tmp_path / "short", most_bytes=1500).stopped_at == -1


def test_what_an_optimizer_ended_before_the_first_step_is_withdrawn(
    tmp_path: Path,
) -> None:
    whole = recorded("fboc" * 3 + "fbsfbs", tmp_path / "whole")
    assert {n: len(c) for n, c in calls_of(whole).items()} == {0: 11, 1: 2}
    # recorded in part, the first step is left out
    rank = Rank(tmp_path / "sampled", every=2)
    for piece in ("fboc" * 3, "fbs", "fbs" * 3):
        rank.play(piece)
        rank.log.flush()
    rank.log.close()
    record = read_rank(rank.folder, 0)
    assert record.steps["iteration"].tolist() == [2]
    assert {n: len(c) for n, c in calls_of(record).items()} == {2: 2}

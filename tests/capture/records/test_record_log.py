"""A record log loses nothing, whenever its committer is killed or the disk is full."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.capture.record_format import (
    CALL,
    CALL_HEAD,
    END,
    GAP,
    OPERATIONS,
    OPTIMIZER,
    STEP,
    VERSION,
    WORDS,
    frame,
    loss_word,
    message,
)
from moetraffic.capture.records import record_log
from moetraffic.capture.records.checkpoint import plain, restore
from moetraffic.capture.records.log_appender import LogAppender
from moetraffic.capture.records.log_follower import LogFollower
from moetraffic.capture.records.record_log import (
    Chunk,
    DamagedLog,
    LogReader,
    LogWriter,
    log_numbers,
    log_path,
)
from moetraffic.capture.records.recovery import recover
from moetraffic.errors import CaptureError
from moetraffic.trace import Meta
from moetraffic.trace.merge.merging import merge
from moetraffic.trace.segments.segment import Segment, rank_folder, segment_path
from moetraffic.trace.segments.store import SegmentWriter

NAMES: tuple[dict[str, Any], ...] = (
    {"group": {"name": "0", "kind": "world", "ranks": [0, 1]}},
    {"define": "group", "name": "0"},
    {"define": "place", "name": [-1, "", "", False, 0]},
    {"define": "dtype", "name": "float32"},
)


def about(folder: Path, window: int = 4) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "rank": 0,
        "node": "node",
        "meta": Meta(world=2).as_dict(),
        "placement": {},
        "window": window,
        "begun": 0,
        "version": VERSION,
    }


def call(number: int, operation: str = "all_reduce", in_backward: int = 0) -> list[int]:
    code = OPERATIONS.index(operation)
    head = [CALL, CALL_HEAD, number, 10 * number, code, 0, 0, 0, 0, in_backward, 1]
    return [*head, number, -1, -1, -1, 64, 4, 16, 16, 0, 0]


def step(number: int) -> list[int]:
    return [STEP, 6, 10 * number + 5, 1000 + number, 0, loss_word(number / 7)]


def records(kinds: list[str]) -> list[list[int]]:
    """Records of a program that calls step(), or only optimizers."""
    found = []
    for number, kind in enumerate(kinds):
        if kind == "step":
            found.append(step(number))
        elif kind == "optimizer":
            found.append([OPTIMIZER, 5, 10 * number + 5, 0, 0])
        elif kind == "gap":
            found.append([GAP, 3, 7])
        else:
            found.append(call(number, kind, in_backward=number % 3 == 0))
            found.append([END, 5, number, 10 * number + 1, 10 * number + 2])
    return found


def chunks(words: list[list[int]], sizes: list[int]) -> list[Chunk]:
    """The records in frames of a number of records each."""
    found = [Chunk(data=b"".join(message(**n) for n in NAMES), messages=NAMES)]
    while words:
        size = sizes[len(found) % len(sizes)]
        here, words = words[:size], words[size:]
        data = np.array([w for record in here for w in record], "<i8").tobytes()
        found.append(Chunk(data=frame(WORDS, data)))
    return found


class Killed(Exception):
    """The committer process is killed."""


class Segments(SegmentWriter):
    """Segments in memory, with empty files; killed before or after a number of them."""

    def __init__(self, own: Path, there: dict[int, Segment], kill: int | None) -> None:
        super().__init__(own.parent, 0)
        self._there, self._kill = there, kill

    def write(self, segment: Segment) -> None:
        self._kill = None if self._kill is None else self._kill - 1
        if self._kill == 0:
            raise Killed  # after the note on it, before the segment
        self._there[segment.index] = replace(segment, unrecorded=self.unrecorded)
        segment_path(self._folder, 0, segment.index).touch()
        if self._kill == 1:
            raise Killed  # before a checkpoint


def committed(own: Path, log: list[Chunk], kills: list[int]) -> dict[int, Segment]:
    """Commit a log, with a new committer after each kill."""
    there: dict[int, Segment] = {}
    writer = LogWriter(own, about(own.parent))
    rest, final = list(log), False
    for kill in [*kills, None]:
        follower = LogFollower(own, Segments(own, there, kill))
        try:
            while True:
                follower.read()
                if not rest:
                    break
                writer.append(rest.pop(0))
            assert follower.committer is not None
            follower.committer.close(final=True)
            final = True
        except Killed:
            continue
        finally:
            follower.close()
        break
    assert final
    writer.close()
    return there


EVENT_FIELDS = ["iteration", "sequence", "issue", "start", "end", "grad", "link"]
KINDS = st.sampled_from(["all_reduce", "all_reduce", "all_to_all", "step", "gap"])
UNMARKED = st.sampled_from(["all_reduce", "all_to_all", "optimizer", "optimizer"])


@given(
    kinds=st.lists(KINDS, max_size=60) | st.lists(UNMARKED, max_size=60),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    kills=st.lists(st.integers(1, 4), max_size=6),
    file_bytes=st.sampled_from([1, 900, 4 << 20]),
)
def test_a_committer_that_is_killed_anywhere_loses_and_repeats_nothing(
    kinds: list[str],
    sizes: list[int],
    kills: list[int],
    file_bytes: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    log = chunks(records(kinds), sizes)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_log, "FILE_BYTES", file_bytes)
        for deaths in ([], kills):
            own = rank_folder(tmp_path_factory.mktemp("run"), 0)
            own.mkdir()
            there = committed(own, log, deaths)
            ordered = [there[index] for index in sorted(there)]
            found.append(
                (
                    # sites and rows of splits are numbered anew
                    [e for s in ordered for e in s.events[EVENT_FIELDS].tolist()],
                    [str(step) for s in ordered for step in s.steps.tolist()],
                    [group for s in ordered[-1:] for group in s.groups],
                    max([s.unrecorded for s in ordered], default=0),
                )
            )
    assert found[0] == found[1]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    folder = rank_folder(tmp_path / "run.h5.segments", 0)
    folder.mkdir(parents=True)
    return folder


def left(own: Path, steps: int = 10) -> None:
    """Leave the log of a rank that was killed with its committer."""
    writer = LogWriter(own, about(own.parent, window=16))
    kinds = [k for _ in range(steps) for k in ("all_reduce", "step")]
    for chunk in chunks(records(kinds), [3]):
        writer.append(chunk)
    writer.close()


def test_records_that_were_left_behind_are_merged(own: Path) -> None:
    left(own)
    assert recover(own.parent) == []
    merged = merge(own.parent)
    assert merged.trace.steps.iteration.tolist() == list(range(10))
    assert merged.missing == (
        "rank 1 recorded nothing",
        "rank 0 was not closed: its record ends after iteration 9, and up to 9 later "
        "steps are lost",
    )
    assert log_numbers(own) == []
    assert recover(own.parent) == []
    assert merge(own.parent).missing == merged.missing


def test_a_log_that_is_cut_off_keeps_its_whole_frames(own: Path) -> None:
    left(own)
    path = log_path(own, 0)
    path.write_bytes(path.read_bytes()[:-1])
    assert recover(own.parent) == []
    assert merge(own.parent).trace.steps.iteration.tolist() == list(range(9))


@pytest.mark.parametrize("damage", [b"\0" * 40, b"\xff" * 40])
def test_a_damaged_log_is_kept_up_to_the_damage(own: Path, damage: bytes) -> None:
    left(own)
    path = log_path(own, 0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40] + damage)
    (failure,) = recover(own.parent)
    assert "is damaged at byte" in failure
    merged = merge(own.parent)
    kept = len(merged.trace.iterations)
    assert 7 <= kept < 10
    assert merged.missing[-1] == (
        f"rank 0 was not closed: its record ends after iteration {kept - 1}, and an "
        "unknown number of later steps is lost"
    )
    assert recover(own.parent) == []


def test_a_log_of_another_version_is_not_touched(own: Path) -> None:
    LogWriter(own, about(own.parent) | {"version": VERSION + 1}).close()
    (failure,) = recover(own.parent)
    assert f"reads version {VERSION}" in failure
    assert log_numbers(own) == [0]


def test_any_bytes_in_a_log_are_one_sentence(own: Path) -> None:
    for content in (b"", b"x" * 100, message(about={}), message(x=[])):
        own.mkdir(parents=True, exist_ok=True)
        log_path(own, 0).write_bytes(content)
        for failure in recover(own.parent):
            assert "\n" not in failure


def test_a_segment_without_its_end_in_the_log_is_not_repeated(own: Path) -> None:
    left(own)
    segment_path(own.parent, 0, 3).touch()
    (failure,) = recover(own.parent)
    assert "cannot be continued" in failure


def test_a_limit_on_file_sizes_begins_another_file(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[[int, Any], int] = os.write

    def write(file: int, data: Any) -> int:
        room = 2000 - os.fstat(file).st_size
        if room <= 0:
            raise OSError(errno.EFBIG, "File too large")
        return real(file, data[:room])

    with monkeypatch.context() as patch:
        patch.setattr(record_log.os, "write", write)
        left(own, steps=20)
    assert len(log_numbers(own)) > 1
    assert max(path.stat().st_size for path in own.iterdir()) <= 2000
    assert recover(own.parent) == []
    assert len(merge(own.parent).trace.iterations) == 20


class Disk:
    """A log whose disk is full, or stalls, until an event is set."""

    def __init__(self, *, stalls: bool) -> None:
        self.stalls, self.healed = stalls, threading.Event()
        self.appended: list[Chunk] = []

    def append(self, chunk: Chunk) -> None:
        if self.stalls:
            self.healed.wait()
        elif not self.healed.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        self.appended.append(chunk)

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("stalls", [False, True])
def test_a_failing_disk_is_reported_at_once_and_does_not_stop_the_training(
    stalls: bool,
) -> None:
    disk, said = Disk(stalls=stalls), list[str]()
    log: Any = disk
    appender = LogAppender(log, lambda _: None, said.append)
    given = [Chunk(data=b"x", steps=n) for n in (1, 2)]
    for chunk in given:
        appender.append(chunk)
    assert not appender.wait(lambda: appender.steps >= 2, 0.2)
    assert not appender.wait(lambda: appender.steps >= 2, 1000.0)  # ends at once
    (sentence,) = said
    expected = "no record was written" if stalls else "No space left on device"
    assert expected in sentence
    assert "the training goes on" in sentence
    disk.healed.set()
    appender.append(Chunk(data=b"", request=1))
    while appender.request < 1:
        appender.wait(lambda: appender.request >= 1, 1.0)
    assert appender.close() == ""
    assert disk.appended == given
    assert appender.steps == 2


def test_records_that_are_never_written_are_counted() -> None:
    disk, said = Disk(stalls=False), list[str]()
    log: Any = disk
    appender = LogAppender(log, lambda _: None, said.append)
    for _ in range(3):
        appender.append(Chunk(data=b"xy"))
    assert appender.close() == "6 bytes of records are lost at the end"
    assert disk.appended == []


def test_a_reader_follows_a_log_over_its_files(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_log, "FILE_BYTES", 1)
    writer = LogWriter(own, about(own.parent))
    reader, bodies = LogReader(own, 0), []
    for number in range(4):
        writer.append(Chunk(data=frame(WORDS, bytes([number]))))
        bodies += [body for _, kind, body in reader.frames() if kind == WORDS]
    assert bodies == [bytes([number]) for number in range(4)]
    with log_path(own, reader.number).open("ab") as file:
        file.write(frame(WORDS, b"a")[:-1] + b"b")
    with pytest.raises(DamagedLog, match="damaged at byte"):
        list(reader.frames())
    reader.close()
    writer.close()


def test_a_checkpoint_holds_plain_values_only() -> None:
    class Thing:
        def __init__(self) -> None:
            self.known = {3: None, 1: (2, "x")}
            self.marks = {True}

    thing, other = Thing(), Thing()
    other.known, other.marks = {}, set()
    restore(other, plain(thing))
    assert (list(other.known.items()), other.marks) == (
        [(3, None), (1, (2, "x"))],
        {True},
    )
    thing.known = {1: (object(),)}  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="cannot be part of a checkpoint"):
        plain(thing)


def test_a_committer_is_not_continued_beyond_its_log(own: Path) -> None:
    left(own)
    follower = LogFollower(own, Segments(own, {}, None))
    follower.read()
    assert follower.committer is not None
    follower.committer.resume(None, [(0, (0, 10**6))])
    with pytest.raises(CaptureError, match="ends before its last segment"):
        follower.committer.close(final=False)
    follower.close()

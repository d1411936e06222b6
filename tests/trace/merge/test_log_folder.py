"""Outputs are checked before the work, and one capture never takes another's."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from moetraffic.errors import CaptureError
from moetraffic.trace.merge.log_folder import (
    LIST,
    alone,
    clear,
    discard,
    join,
    lock_state,
    log_folder,
    make_room,
    members,
    prepare,
    recording,
    remove_if_empty,
)
from moetraffic.trace.merge.log_format import log_file, state_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.h5"


def leave_log(path: Path, rank: int) -> Path:
    log_folder(path).mkdir(exist_ok=True)
    log = log_file(log_folder(path), rank, 0)
    log.write_text("old")
    return log


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


# ---- one capture ---------------------------------------------------------------------


def test_logs_of_an_earlier_capture_are_not_touched(path: Path) -> None:
    # of whichever rank: the next capture may have fewer
    log = leave_log(path, 3)
    with pytest.raises(CaptureError, match=r"logs of 1 ranks of an earlier capture"):
        prepare(path, force=False)
    with pytest.raises(CaptureError, match="of an earlier capture"):
        lock_state(log_folder(path), 3, force=False)
    assert log.read_text() == "old"
    prepare(path, force=True)
    assert not log_folder(path).exists()


def test_force_on_a_rank_removes_its_own_log_only(path: Path) -> None:
    other, own = leave_log(path, 0), leave_log(path, 1)
    os.close(lock_state(log_folder(path), 1, force=True))
    assert (other.exists(), own.exists()) == (True, False)


def test_a_folder_in_use_is_not_cleared(path: Path) -> None:
    folder = log_folder(path)
    state = lock_state(folder, 1, force=False)
    assert recording(folder) == [1]
    for force in (False, True):
        with pytest.raises(CaptureError, match="in use by a running one"):
            prepare(path, force=force)
        with pytest.raises(CaptureError, match="in use by a running one"):
            lock_state(folder, 1, force=force)
    remove_if_empty(folder)
    assert state_file(folder, 1).exists()
    os.close(state)
    assert recording(folder) == []
    prepare(path, force=False)  # nothing was written
    assert not folder.exists()


def test_ranks_are_locked_while_others_ask_who_records(path: Path) -> None:
    folder, ended = log_folder(path), threading.Event()

    def ask() -> None:
        while not ended.is_set():
            recording(folder)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(300):
            os.close(lock_state(folder, 0, force=False))
    finally:
        ended.set()
        asking.join()


def test_a_state_that_is_removed_meanwhile_is_made_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, flock = log_folder(path), __import__("fcntl").flock
    removed: list[Path] = []

    def remove_first(descriptor: int, kind: int) -> None:
        if not removed:
            removed.append(state_file(folder, 0))
            removed[0].unlink()
        flock(descriptor, kind)

    monkeypatch.setattr("fcntl.flock", remove_first)
    state = lock_state(folder, 0, force=False)
    monkeypatch.undo()
    assert recording(folder) == [0]
    os.close(state)


def test_a_discarded_rank_leaves_the_others_and_the_users_files(path: Path) -> None:
    folder = log_folder(path)
    own, other = leave_log(path, 0), leave_log(path, 1)
    discard(folder, 0)
    assert (own.exists(), other.exists()) == (False, True)
    (folder / "notes.txt").write_text("mine")
    discard(folder, 1)
    assert names(list(folder.iterdir())) == ["notes.txt"]
    discard(folder / "missing", 0)


def test_a_file_in_the_place_of_the_folder_is_refused(path: Path) -> None:
    log_folder(path).write_text("a file")
    for refused in (
        lambda: prepare(path, force=True),
        lambda: lock_state(log_folder(path), 0, force=True),
        lambda: join(path),
    ):
        with pytest.raises(CaptureError):
            refused()


# ---- captures of one command ---------------------------------------------------------


def test_captures_are_numbered_and_names_that_exist_are_passed_over(
    path: Path,
) -> None:
    assert members(path) == [path]
    path.with_name("run-2.h5").write_text("somebody's")
    log_folder(path.with_name("run-4.h5")).mkdir()
    made = [join(path) for _ in range(3)]
    assert names(made) == ["run.h5", "run-3.h5", "run-5.h5"]
    assert members(path) == made
    assert join(path, "run-9.h5") == path.with_name("run-9.h5")
    assert join(path, "run-9.h5") == path.with_name("run-9.h5")
    assert names(members(path))[-2:] == ["run-5.h5", "run-9.h5"]


def test_only_the_named_trace_is_replaced_with_force(path: Path) -> None:
    path.touch()
    path.with_name("run-2.h5").touch()
    assert join(path).name == "run-3.h5"
    assert join(path, force=True).name == "run.h5"
    assert join(path, force=True).name == "run-4.h5"


def test_jobs_beside_each_other_take_different_names(path: Path) -> None:
    taken: list[Path] = []
    threads = [
        threading.Thread(target=lambda: taken.append(join(path))) for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(taken)) == 12
    assert sorted(members(path)) == sorted(taken)


def test_room_is_made_of_what_no_rank_has_used(path: Path) -> None:
    join(path)
    make_room(path, force=False)
    assert list(path.parent.iterdir()) == []
    leave_log(path, 0)
    join(path)
    with pytest.raises(CaptureError, match="of an earlier capture"):
        make_room(path, force=False)
    assert members(path) == [path]
    make_room(path, force=True)
    assert list(path.parent.iterdir()) == []


def test_a_list_that_names_other_folders_is_not_followed(path: Path) -> None:
    join(path)
    with (log_folder(path) / LIST).open("a") as file:
        file.write("../else.h5\n/etc/passwd\n\nrun-2.h5\n")
    assert names(members(path)) == ["run.h5", "run-2.h5"]


def test_the_folder_stays_where_something_else_is_in_it(path: Path) -> None:
    join(path)
    (log_folder(path) / "notes.txt").write_text("mine")
    clear(path)
    assert names(list(log_folder(path).iterdir())) == ["notes.txt"]


def test_one_at_a_time_is_alone(path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(20):
            with alone(path):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(most), max(most)) == (80, 1)
    assert list(path.parent.iterdir()) == []

"""Names of a command's captures: each its own, none of somebody else's."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from moetraffic.errors import CaptureError
from moetraffic.trace.segments.series import (
    LIST,
    alone,
    clear,
    join,
    make_room,
    members,
)
from moetraffic.trace.segments.store import segments_folder


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_captures_are_numbered_and_names_that_exist_are_passed_over(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.h5"
    assert members(path) == [path]
    (tmp_path / "run-2.h5").write_text("somebody's")
    segments_folder(tmp_path / "run-4.h5").mkdir()
    made = [join(path) for _ in range(3)]
    assert names(made) == ["run.h5", "run-3.h5", "run-5.h5"]
    assert members(path) == made
    assert join(path, "run-9.h5") == tmp_path / "run-9.h5"
    assert join(path, "run-9.h5") == tmp_path / "run-9.h5"
    assert names(members(path))[-2:] == ["run-5.h5", "run-9.h5"]


def test_only_the_named_trace_is_replaced_with_force(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    path.touch()
    (tmp_path / "run-2.h5").touch()
    assert join(path).name == "run-3.h5"
    assert join(path, force=True).name == "run.h5"
    assert join(path, force=True).name == "run-4.h5"


def test_jobs_beside_each_other_take_different_names(tmp_path: Path) -> None:
    path, taken = tmp_path / "run.h5", []
    threads = [
        threading.Thread(target=lambda: taken.append(join(path))) for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(taken)) == 12
    assert sorted(members(path)) == sorted(taken)


def test_room_is_made_of_what_no_rank_has_used(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    join(path)
    make_room(path, force=False)
    assert list(tmp_path.iterdir()) == []
    own = segments_folder(path) / "rank-00000"
    own.mkdir(parents=True)
    (own / "segment-000000.h5").touch()
    join(path)
    with pytest.raises(CaptureError, match="of an earlier capture"):
        make_room(path, force=False)
    assert members(path) == [path]
    make_room(path, force=True)
    assert list(tmp_path.iterdir()) == []


def test_a_list_that_names_other_folders_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    join(path)
    with (segments_folder(path) / LIST).open("a") as file:
        file.write("../else.h5\n/etc/passwd\n\nrun-2.h5\n")
    assert names(members(path)) == ["run.h5", "run-2.h5"]


def test_the_folder_stays_where_something_else_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    join(path)
    (segments_folder(path) / "notes.txt").write_text("mine")
    clear(path)
    assert [p.name for p in segments_folder(path).iterdir()] == ["notes.txt"]


def test_one_at_a_time_is_alone(tmp_path: Path) -> None:
    path, inside, most = tmp_path / "run.h5", [], []

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
    assert list(tmp_path.iterdir()) == []

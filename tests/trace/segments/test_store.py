"""Outputs are looked at before the work, and one capture never takes another's."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from moetraffic.errors import CaptureError, ReplayError
from moetraffic.files import validate_other_than_input, validate_output
from moetraffic.trace.segments.store import (
    CLOSED,
    SegmentStore,
    prepare,
    segments_folder,
)


def test_outputs_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    os.mkfifo(tmp_path / "pipe")
    for path, said in {
        tmp_path: "is a folder: name a file in it",
        Path(""): "is a folder",
        file: "is not overwritten: choose another output, or give --force",
        file / "below.h5": "which is a file",
        tmp_path / "none" / "x.h5": "does not exist: make it first",
        tmp_path / ("x" * 300): "File name too long.: choose a shorter name",
        # the folder of segments has a longer name than the trace
        tmp_path / ("x" * 250): "File name too long.: choose a shorter name",
        tmp_path / "pipe": "a device or a pipe",
        tmp_path / "a\0b": "cannot be written",
    }.items():
        with pytest.raises(ReplayError, match=said) as refused:
            validate_output(path, force=False, error=ReplayError)
        assert len(str(refused.value)) < 400
    validate_output(file, force=True)
    validate_output(tmp_path / "new.h5", force=False)
    assert {p.name for p in tmp_path.iterdir()} == {"file", "pipe"}


def test_an_output_that_is_the_input_under_any_name(tmp_path: Path) -> None:
    file = tmp_path / "a.h5"
    file.write_text("mine")
    (tmp_path / "link.h5").symlink_to(file)
    for name in ("a.h5", "link.h5", "../" + tmp_path.name + "/a.h5"):
        with pytest.raises(ReplayError, match="is the input itself"):
            validate_other_than_input(file, tmp_path / name, error=ReplayError)
    validate_other_than_input(file, tmp_path / "b.h5")


def test_segments_of_an_earlier_capture_are_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    old = segments_folder(path) / "rank-00003" / "segment-000000.h5"
    old.parent.mkdir(parents=True)
    old.write_text("old")
    # whichever rank they are of: the next capture may have fewer
    with pytest.raises(CaptureError, match=r"holds 1 segments of an earlier capture.*"):
        prepare(path, force=False, overwrite="give --force")
    assert old.read_text() == "old"
    prepare(path, force=True)
    assert not segments_folder(path).exists()


def test_a_folder_in_use_is_not_cleared(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    spool = SegmentStore(segments_folder(path), 1, force=False)
    for force in (False, True):
        with pytest.raises(CaptureError, match="in use by a running one"):
            prepare(path, force=force)
    spool.close()
    assert not segments_folder(path).exists()  # nothing was written


def test_what_a_user_put_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    folder = segments_folder(path)
    spool = SegmentStore(folder, 0, force=False)
    (folder / "notes.txt").write_text("mine")
    spool.close()
    assert [p.name for p in folder.iterdir()] == ["notes.txt"]
    shutil.rmtree(folder)
    folder.write_text("a file")
    with pytest.raises(CaptureError, match="which is a file"):
        prepare(path, force=True)


def test_a_rank_that_may_still_write_keeps_the_folder(tmp_path: Path) -> None:
    folder = segments_folder(tmp_path / "run.h5")
    first, second = (SegmentStore(folder, rank, force=False) for rank in (0, 1))
    first.close()
    assert (folder / "rank-00000" / CLOSED).exists()
    second.close()
    assert not folder.exists()

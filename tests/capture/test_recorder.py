"""What a recorder leaves behind when something of ours fails."""

from __future__ import annotations

import logging
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moetraffic.capture import Recorder
from moetraffic.capture.hook import python as hook
from moetraffic.capture.input_validation import demand_of
from moetraffic.capture.record_format import STEP, loss_word
from moetraffic.capture.records import committer, committer_process
from moetraffic.capture.records.committer import Committer
from moetraffic.errors import CaptureError
from moetraffic.trace import Meta
from moetraffic.trace.segments.segment import read_segment
from moetraffic.trace.segments.store import RankFolder, SegmentWriter, segments_folder


def test_a_start_that_fails_leaves_the_folder_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> Any:
        raise CaptureError("no such dispatcher: upgrade torch")

    with monkeypatch.context() as patch:
        patch.setattr(hook, "install", refuses)
        with pytest.raises(CaptureError, match="no such dispatcher"):
            Recorder(tmp_path / "run.h5").start()
    assert list(tmp_path.iterdir()) == []
    recorder = Recorder(tmp_path / "run.h5").start()
    recorder.step(loss=1.0)
    merged = recorder.close()
    assert merged is not None
    assert merged.trace.steps.loss.tolist() == [[1.0]]
    assert recorder.warnings == []


def test_a_window_that_cannot_be_built_costs_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    folder = segments_folder(tmp_path / "run.h5")
    place = RankFolder(folder, 0, force=False)
    about = {
        "folder": str(folder),
        "rank": 0,
        "node": "node",
        "meta": Meta().as_dict(),
        "placement": {},
        "window": 2,
        "begun": 0,
    }
    writer = SegmentWriter(folder, 0)
    written = Committer(about, writer, pause_s=0.0)
    real = committer.placements
    for step in range(3):

        def fails(*told: Any, step: int = step) -> Any:
            if step == 1:
                raise ZeroDivisionError("a defect")
            return real(*told)

        monkeypatch.setattr(committer, "placements", fails)
        written.take(np.array([STEP, 6, step + 1, 8, 0, loss_word(0.5)], np.int64))
    written.close(final=True)
    assert "a defect" in writer.error
    place.leave()
    kept = [read_segment(path) for path in sorted(folder.glob("rank-00000/*.h5"))]
    assert [s.index for s in kept] == [0, 2, 3]
    assert [s.steps["iteration"].tolist() for s in kept] == [[0], [2], []]


@pytest.mark.parametrize("k", [0, -1, "two", True, 2**31])
def test_experts_per_token_are_from_1_on(k: Any) -> None:
    with pytest.raises(
        CaptureError, match="per token, a whole number from 1 to 65536, but"
    ):
        Recorder("run.h5", k=k)


def test_an_unknown_kind_of_step_ends_no_training(tmp_path: Path) -> None:
    """The step is recorded as without a kind; a warning is given once, and counted."""
    recorder = Recorder(tmp_path / "run.h5").start()
    for kind in ("evaluation", "eval", 7, "eval"):
        recorder.step(loss=1.0, kind=kind)  # type: ignore[arg-type]
    merged = recorder.close()
    assert merged is not None
    assert merged.trace.steps.kind == ("evaluation", "train", "train", "train")
    assert merged.remarks == (
        "rank 0 left out 3 x step kind ('eval' is none of train, evaluation, skipped: "
        "it is inferred)",
    )
    assert merged.trace.meta.complete  # no traffic is missing
    assert sum("could not be recorded" in each for each in recorder.warnings) == 1


def test_a_folder_that_vanished_before_its_first_read_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The committer ends during the training; its reason is not repeated at the end."""
    late = "import os, sys, time\nwhile os.path.isdir(sys.argv[2]): time.sleep(0.01)\n"
    program = late + committer_process.PROGRAM
    monkeypatch.setattr(committer_process, "PROGRAM", program)
    recorder = Recorder(tmp_path / "run.h5").start()
    shutil.rmtree(segments_folder(recorder.path))
    while not recorder.warnings:
        time.sleep(0.01)
    recorder.step(loss=1.0)
    recorder.close(merged=False)
    (warning,) = recorder.warnings
    assert warning.endswith("was removed: the records in it are lost")


def test_a_recorder_that_is_closed_leaves_no_process(tmp_path: Path) -> None:
    def children() -> set[str]:
        tasks = Path("/proc/self/task").glob("*/children")
        return {pid for task in tasks for pid in task.read_text().split()}

    before = children()
    recorder = Recorder(tmp_path / "run.h5").start()
    assert children() - before
    recorder.close()
    assert children() <= before


def test_dropped_copies_of_other_experts_than_the_demand_are_refused() -> None:
    with pytest.raises(ValueError, match="dropped has 3 counts, but demand has 4"):
        demand_of([4, 4, 4, 4], [1, 0, 0])

"""What a recorder leaves behind when something of ours fails."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from moetraffic.capture import Recorder
from moetraffic.capture.hook import calls as hook
from moetraffic.capture.validation import demand_of
from moetraffic.errors import CaptureError
from moetraffic.trace.merge.log_folder import log_folder


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


@pytest.mark.parametrize("k", [0, -1, "two", True, 2**31])
def test_experts_per_token_are_from_1_on(k: Any) -> None:
    with pytest.raises(
        CaptureError, match="per token, is a whole number from 1 to 65536, but"
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


def test_a_folder_that_vanished_is_told_once(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.h5").start()
    shutil.rmtree(log_folder(recorder.path))
    recorder.step(loss=1.0)
    recorder.close(merged=False)
    (warning,) = recorder.warnings
    assert warning.endswith("was removed: the records in it are lost")


def test_a_recorder_that_is_closed_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    recorder = Recorder(tmp_path / "run.h5").start()
    assert threading.active_count() == before + 1
    recorder.close()
    assert threading.active_count() == before


def test_dropped_copies_of_other_experts_than_the_demand_are_refused() -> None:
    with pytest.raises(ValueError, match="dropped has 3 counts, but demand has 4"):
        demand_of([4, 4, 4, 4], [1, 0, 0])

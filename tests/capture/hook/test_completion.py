"""The ends of calls whose works the program never waits for."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from moetraffic.capture import Recorder
from moetraffic.capture.hook import completion
from moetraffic.capture.hook.completion import SWEEP, CompletionTracker, DeviceClock
from moetraffic.capture.record_format import END


class Work(dist.Work):
    """A work that is completed by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.future: Any = torch.futures.Future()

    def get_future(self) -> Any:
        return self.future

    def is_completed(self) -> bool:
        return bool(self.future.done())


def test_a_forked_child_waits_for_no_callback_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threads that call back are the parent's alone."""
    slept: list[float] = []
    with Recorder(tmp_path / "run.h5") as recorder:
        tracker = recorder._completion
        with monkeypatch.context() as patch:
            patch.setattr(completion, "time", SimpleNamespace(sleep=slept.append))
            tracker._called_back.add(0)
            child = os.fork()  # which abandons the recorder
            if child == 0:
                os._exit(int(bool(slept)))
            tracker._called_back.clear()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_capture_ends_after_the_callbacks_of_its_works() -> None:
    """A callback at the end of the interpreter would abort the process."""
    records: list[Any] = []
    tracker = CompletionTracker(records.append, DeviceClock(lambda _: None))
    remove = tracker.install()
    for number in range(SWEEP):
        work = Work()
        work.future.set_result(None)
        tracker.launched(number, work, None, 0, None)
    late = Work()
    tracker.launched(SWEEP, late, None, 0, None)
    completes = threading.Timer(0.2, late.future.set_result, [None])
    completes.start()
    remove()
    tracker.settle()
    assert [record[:2] for record in records] == [(END, SWEEP)]
    completes.join()

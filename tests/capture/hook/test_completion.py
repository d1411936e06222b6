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
from moetraffic.capture.hook.calls import now_ns
from moetraffic.capture.hook.completion import SWEEP, CompletionTracker, DeviceClock
from moetraffic.trace.merge.log_format import END

from .conftest import Queue, split


class Work(dist.Work):
    """A work that is completed by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.future: Any = torch.futures.Future()

    def get_future(self) -> Any:
        return self.future

    def is_completed(self) -> bool:
        return bool(self.future.done())

    def wait(self, *_: Any) -> bool:
        return True


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
    queue = Queue()
    tracker = CompletionTracker(queue.put, DeviceClock(queue.put))
    remove = tracker.install()
    for number in range(SWEEP):
        work = Work()
        work.future.set_result(None)
        tracker.launched(number, work, torch.empty(1), 0, None)
    late = Work()
    tracker.launched(SWEEP, late, torch.empty(1), 0, None)
    completes = threading.Timer(0.2, late.future.set_result, [None])
    completes.start()
    remove()
    tracker.settle()
    # the others end before, when it is found that nobody waits for them
    records = split(queue.content)
    assert [(r[0], r[2]) for r in records] == [(END, n) for n in range(SWEEP + 1)]
    completes.join()


@pytest.mark.parametrize("number", [3, SWEEP + 3])
def test_works_that_only_cpp_code_waits_for_end_when_they_complete(number: int) -> None:
    """The first ones, too: it is known later that nobody waits for their kind."""
    queue = Queue()
    tracker = CompletionTracker(queue.put, DeviceClock(queue.put))
    remove = tracker.install()
    between: dict[int, tuple[int, int]] = {}
    for n in range(number):
        work = Work()
        tracker.launched(n, work, torch.empty(1), 0, None)
        before = now_ns()
        work.future.set_result(None)
        between[n] = before, now_ns()
    remove()
    tracker.settle()
    records = split(queue.content)
    assert {record[0] for record in records} == {END}
    assert sorted(record[2] for record in records) == list(range(number))
    for _, _, n, _, end in records:
        assert between[n][0] <= end <= between[n][1]


def test_a_work_of_a_device_has_no_callback_before_its_kind_is_known() -> None:
    """Without an event before it, its stream's graph may be being captured."""
    queue = Queue()
    tracker = CompletionTracker(queue.put, DeviceClock(queue.put))
    work = Work()
    tracker.launched(0, work, torch.empty(1, device="meta"), 0, None)
    work.future.set_result(None)
    tracker.settle()
    assert split(queue.content) == []


def test_the_end_of_a_work_with_a_wait_is_that_of_the_wait() -> None:
    queue = Queue()
    tracker = CompletionTracker(queue.put, DeviceClock(queue.put))
    remove = tracker.install()
    try:
        for n in range(SWEEP // 2):
            work = Work()
            tracker.launched(n, work, torch.empty(1), 0, None)
            work.future.set_result(None)
            before = now_ns()
            work.wait()
            records = split(queue.content)
            assert [(r[0], r[2]) for r in records] == [(END, m) for m in range(n + 1)]
            assert records[-1][4] >= before
    finally:
        remove()
    tracker.settle()
    assert len(split(queue.content)) == SWEEP // 2

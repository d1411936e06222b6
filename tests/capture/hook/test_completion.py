"""The ends of calls whose works the program never waits for."""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.distributed as dist

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


def test_a_capture_ends_after_the_callbacks_of_its_works() -> None:
    """A callback at the end of the interpreter would abort the process."""
    records: list[Any] = []
    completion = CompletionTracker(records.append, DeviceClock(lambda _: None))
    remove = completion.install()
    for number in range(SWEEP):
        work = Work()
        work.future.set_result(None)
        completion.launched(number, work, None, 0, None)
    late = Work()
    completion.launched(SWEEP, late, None, 0, None)
    completes = threading.Timer(0.2, late.future.set_result, [None])
    completes.start()
    remove()
    assert [record[:2] for record in records] == [(END, SWEEP)]
    completes.join()

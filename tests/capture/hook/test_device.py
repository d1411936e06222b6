"""Device times come from events that nobody waits for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from moetraffic.capture.hook import completion
from moetraffic.capture.hook.completion import DeviceClock
from moetraffic.trace.merge.log_format import END

from .conftest import Queue, split


class Event:
    """An event of a device whose time is told by hand, in ms."""

    clock = 0.0
    device = "cuda:1"
    passed = float("-inf")

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.at = float("nan")

    def record(self, stream: object = None) -> None:
        self.at = Event.clock
        self.idle = stream is not None

    def synchronize(self) -> None:
        assert self.idle, "the training's stream is never waited for"

    def query(self) -> bool:
        return self.at <= Event.passed

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


class Cuda:
    """What behaves like torch.cuda."""

    capturing, current = False, ""
    Event = Event

    def Stream(self) -> object:
        assert self.current == Event.device
        return object()

    @contextlib.contextmanager
    def device(self, device: str) -> Iterator[None]:
        self.current = device
        yield
        self.current = ""

    def is_current_stream_capturing(self) -> bool:
        return self.capturing


def test_times_are_the_device_s_on_the_host_s_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = Queue()
    monkeypatch.setattr(completion, "now_ns", lambda: 1_000_000_000)
    clock = DeviceClock(queue.put, Cuda())
    Event.clock, Event.passed = 5.0, float("-inf")
    before = clock.event()
    Event.clock = 7.5
    clock.ended(3, before)
    clock.resolve()
    assert queue.content == b""  # the device has not come so far
    Event.passed = 8.0
    clock.resolve()
    # the base event was recorded at 7.5 ms, when the host's clock was at 1 s
    expected = [(END, 5, 3, 1_000_000_000 - 2_500_000, 1_000_000_000)]
    assert split(queue.content) == expected
    clock.resolve()
    assert split(queue.content) == expected


def test_a_cuda_graph_s_capture_is_left_alone() -> None:
    cuda = Cuda()
    cuda.capturing = True
    clock = DeviceClock(Queue().put, cuda)
    assert clock.event() is None
    clock.ended(1, None)
    clock.resolve()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_events_of_a_real_device() -> None:
    queue = Queue()
    clock = DeviceClock(queue.put)
    before = clock.event()
    torch.cuda._sleep(10_000_000)
    clock.ended(1, before)
    torch.cuda.synchronize()
    clock.resolve()
    ((kind, _, number, start, end),) = split(queue.content)
    assert (kind, number) == (END, 1)
    assert end - start > 1_000_000

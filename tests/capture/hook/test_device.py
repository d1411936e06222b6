"""Device times come from events that nobody waits for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from moetraffic.capture.hook import completion
from moetraffic.capture.hook.completion import DeviceClock
from moetraffic.capture.record_format import END


class Event:
    """An event of a device whose time is told by hand, in ms."""

    clock = 0.0
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

    capturing = False
    Event = Event

    def Stream(self) -> object:
        return object()

    def is_current_stream_capturing(self) -> bool:
        return self.capturing


def test_times_are_the_device_s_on_the_host_s_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(completion, "now_ns", lambda: 1_000_000_000)
    clock = DeviceClock(told.append, Cuda())
    Event.clock, Event.passed = 5.0, float("-inf")
    before = clock.before()
    Event.clock = 7.5
    clock.ended(3, before)
    clock.resolve()
    assert told == []  # the device has not come so far
    Event.passed = 8.0
    clock.resolve()
    # the base event was recorded at 7.5 ms, when the host's clock was at 1 s
    assert told == [(END, 3, 1_000_000_000 - 2_500_000, 1_000_000_000)]
    clock.resolve()
    assert len(told) == 1


def test_a_cuda_graph_s_capture_is_left_alone() -> None:
    cuda = Cuda()
    cuda.capturing = True
    clock = DeviceClock([].append, cuda)
    assert clock.before() is None
    clock.ended(1, None)
    clock.resolve()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_events_of_a_real_device() -> None:
    told: list[Any] = []
    clock = DeviceClock(told.append)
    before = clock.before()
    torch.cuda._sleep(10_000_000)
    clock.ended(1, before)
    torch.cuda.synchronize()
    clock.resolve()
    ((kind, number, start, end),) = told
    assert (kind, number) == (END, 1)
    assert end - start > 1_000_000

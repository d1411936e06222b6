"""A CUDA device in virtual time: streams, events and launch queues.

Its methods stand for those of ``torch.cuda``.  Everything that a stream is given
before an event is recorded is known at that moment, so times follow at once:

- work on a stream begins after the stream's earlier work and some time after the host
  has launched it, and lasts as long as it says;
- an event has the time at which its stream reaches it;
- an operation of a communicator runs on a stream of its own, after what the current
  stream held, as in torch's NCCL process group;
- calls of the host take time, in which the device goes on.

What an operation really took is in :attr:`SimulatedCuda.transfers`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

LAUNCH_NS = 4_000  # host time of a launch, or of recording an event
LATENCY_NS = 3_000  # from a launch to its begin on an idle stream
OBSERVED_NS = 6_000  # from the end of an event to the host that waits for it
CALL_NS = 60  # reading the clock
CYCLES_PER_NS = 1.755


class Event:
    def __init__(self, cuda: SimulatedCuda) -> None:
        self._cuda = cuda
        self.at: int | None = None

    def record(self, stream: Stream | None = None) -> None:
        (stream or self._cuda.current).record(self)

    def query(self) -> bool:
        self._cuda.now += CALL_NS
        return self.at is None or self.at <= self._cuda.now

    def synchronize(self) -> None:
        assert self.at is not None
        self._cuda.now = max(self._cuda.now, self.at) + OBSERVED_NS

    def elapsed_time(self, other: Event) -> float:
        assert self.at is not None
        assert other.at is not None
        assert max(self.at, other.at) <= self._cuda.now
        return float(np.float32((other.at - self.at) / 1e6))


class Stream:
    def __init__(self, cuda: SimulatedCuda) -> None:
        self._cuda, self.tail = cuda, 0
        cuda.streams.append(self)

    def launched(self) -> int:
        """Launch something; return the earliest begin."""
        self._cuda.now += LAUNCH_NS
        return self._cuda.now + LATENCY_NS

    def record(self, event: Event) -> None:
        self.tail = event.at = max(self.tail, self.launched())

    def wait_event(self, event: Event) -> None:
        self._cuda.now += CALL_NS
        self.tail = max(self.tail, event.at or 0)

    def work(self, duration_ns: int) -> None:
        self.tail = max(self.tail, self.launched()) + duration_ns


@dataclass
class Work:
    """What NCCL returns for an operation."""

    cuda: SimulatedCuda
    end: Event

    def wait(self) -> None:
        self.cuda.current.wait_event(self.end)


class SimulatedCuda:
    """State of the simulated device, and of the host's clock, in ns."""

    def __init__(self) -> None:
        self.now = 1_000_000_000
        self.streams: list[Stream] = []
        self.current = Stream(self)
        self.communicators: dict[int, Stream] = {}
        self.transfers: list[list[tuple[int, int, int]]] = []

    def communicate(self, group: int, numbers: Iterable[int], duration_ns: int) -> Work:
        """Start operations of a communicator together; times go to ``transfers``.

        These are when the current stream reached it, its begin and its end.
        """
        comm = self.communicators.setdefault(group, Stream(self))
        ready, end = Event(self), Event(self)
        self.current.record(ready)
        comm.wait_event(ready)

        begin = max(comm.tail, comm.launched())
        comm.tail = begin + duration_ns
        for number in numbers:
            self.transfers[number].append((ready.at or 0, begin, comm.tail))
        comm.record(end)
        return Work(self, end)

    # ---- what stands for torch.cuda and time ----------------------------------------

    def synchronize(self, device: Any = None) -> None:
        self.now = max(self.now, *(s.tail for s in self.streams)) + OBSERVED_NS

    def clock(self) -> int:
        self.now += CALL_NS
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * 1e9) + 50_000  # it wakes late

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    @contextmanager
    def device(self, _: Any) -> Iterator[None]:
        yield

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Stand for ``torch.cuda`` and the clock."""
        names: dict[str, Any] = {
            "Stream": lambda device: Stream(self),
            "Event": lambda enable_timing: Event(self),
            "_sleep": lambda cycles: self.current.work(round(cycles / CYCLES_PER_NS)),
            **{n: getattr(self, n) for n in ("stream", "device", "synchronize")},
        }
        for name, stand_in in names.items():
            patch.setattr(torch.cuda, name, stand_in)
        patch.setattr(time, "monotonic_ns", self.clock)
        patch.setattr(time, "sleep", self.sleep)

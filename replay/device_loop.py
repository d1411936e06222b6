"""Timed pass on a CUDA device: queue operations and read their times from events.

Each stream of the plan is a CUDA stream; each group has a communicator, and so a
stream of its own inside NCCL.  One host thread queues the operations in the order of
the program, which is the same on all ranks, and does not wait for them: dependencies
and gaps between operations are enforced on the device, so an operation or gap of one
stream delays no other stream.  Messages of a batch are one launch.  Only open loop
waits on the host.

Times come from events.  An operation is issued when its stream reaches it, after the
operations and the gap that it waits for; the host may have queued it long before.  An
idle stream is held until the host has launched the operation behind the event: a launch
takes as long as a short transfer, and is none of it.  Events are read as operations
end, relative to an event whose time on the host's clock is known.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from moetraffic.trace.model import UNKNOWN_TIME

from .host_loop import MOST_IN_FLIGHT, TimedPass
from .pace import wait_until
from .plan.program import UNKNOWN_GAP
from .transport import POLL_S

_LEAD_NS = 50_000  # first estimate of how long the host takes to queue an operation
_LEAD_MOST_NS = 200_000  # a first launch takes longer
_LEAD_FADES = 0.9  # from one operation to the next
_FIRST_NS = 1_000_000  # until the schedule of a pace begins: for the first launches
_REAPED = 16  # operations in flight, from which on the host looks for ends
_REFERENCES = 3  # measurements of the device's clock, of which the closest counts
_BUSY = 4  # operations of a stream that have not ended: it is not held
_CYCLES = 4_000_000  # some 2 ms: long against the resolution of events, 0.5 us


@dataclass(frozen=True, kw_only=True)
class Queued:
    """An operation, or a batch, that was queued and whose times have not been read."""

    issued: Any  # event: its stream reached it
    ended: Any  # event
    origin: tuple[Any, int]  # an event that has ended, and its time on the host
    queued_ns: int

    def time_of(self, mark: Any) -> int:
        """Convert the time of an event that has ended to the host's clock, in ns."""
        origin, host_ns = self.origin
        return host_ns + round(float(origin.elapsed_time(mark)) * 1e6)


class DevicePass:
    """Timed pass of one rank on its CUDA device.

    The pass fails if no operation ends for longer than ``timeout_s``, gaps apart.
    """

    def __init__(
        self,
        timed: TimedPass,
        timeout_s: float = 60.0,
    ) -> None:
        self._timed, self._timeout_s = timed, timeout_s
        device = timed.bound.transport.device
        self._open_loop = timed.pace.absolute
        self._paced = timed.pace.timed and not self._open_loop
        make: Callable[..., Any] = torch.cuda.Stream
        used = np.unique(timed.program.stream).tolist()
        self._streams = {s: make(device) for s in used}
        self._side_streams = {s: make(device) for s in used}
        self._latest = {s: deque[int](maxlen=_BUSY) for s in used}  # queued last
        self._clock_stream, self._holding_stream = make(device), make(device)
        with torch.cuda.device(device):
            self._cycles_per_ns = _CYCLES / _kernel_ns()
        self._held = event()
        self._lead_ns, self._held_ns = _LEAD_NS, 0  # held_ns: of the host's clock
        self._in_flight: dict[int, Queued] = {}  # in program order
        self._origin: tuple[Any, int]
        self._begin = 0
        self._last_end = 0  # when the host last saw an operation end

    def run(self) -> None:
        """Run the timed pass on the device; its times are in ``timed`` afterwards."""
        timed, n = self._timed, 0
        program = timed.program
        firsts = np.flatnonzero(program.batch == np.arange(len(program))).tolist()
        begins = {begin for begin, _ in timed.iterations()}
        timed.begin()
        self._last_end = time.monotonic_ns()
        self._begin = self._last_end + _FIRST_NS * timed.pace.timed
        timed.counter[0] = timed.base + 1
        try:
            for n, following in pairwise([*firsts, len(program)]):
                if n in begins:
                    if not self._open_loop:
                        self._wait(0)
                    self._origin = self._new_origin()
                self._queue(range(n, following))
                if len(self._in_flight) >= _REAPED:
                    self._reap()
            self._wait(0)
            self._set_due()
        except RuntimeError as error:
            # what has not ended first, or else what could not be queued
            first = next(iter(self._in_flight), n)
            raise timed.failure(first, error) from error

    # ---- one operation, or a batch of messages ---------------------------------------

    def _queue(self, batch: range) -> None:
        """Queue a batch, the gap before its last operation and its events."""
        program, last = self._timed.program, batch[-1]
        number = int(program.stream[last])
        launch = self._timed.bound.launch(batch[0])  # starts all
        stream, issued, ended = self._streams[number], event(), event()
        if self._open_loop:
            self._wait_until_due(batch)
        with torch.cuda.stream(stream):
            if not self._open_loop:
                for queued in self._before({int(program.after[n]) for n in batch}):
                    stream.wait_event(queued.ended)
                self._fill_gap(max(batch, key=lambda n: int(program.due_ns[n])))
            began_ns = time.monotonic_ns()
            self._hold(number, batch, began_ns)
            issued.record(stream)
            work = launch()
            took_ns = min(time.monotonic_ns() - began_ns, _LEAD_MOST_NS)
            self._lead_ns = max(took_ns, round(_LEAD_FADES * self._lead_ns))
        if self._open_loop or not program.waits[last]:
            # no operation waits for it: its end is recorded on a side stream
            stream = self._side_streams[number]
            stream.wait_event(issued)
        with torch.cuda.stream(stream):
            if work is not None:
                work.wait()  # blocks the stream, not the host
            ended.record(stream)
        self._latest[number].append(batch[0])
        queued = Queued(
            issued=issued,
            ended=ended,
            origin=self._origin,
            queued_ns=time.monotonic_ns(),
        )
        self._in_flight.update(dict.fromkeys(batch, queued))

    def _hold(self, number: int, batch: range, now_ns: int) -> None:
        """Hold an idle stream until the host has launched a batch, and until it is due.

        Work on another stream takes this time.
        """
        until_ns = now_ns + self._lead_ns
        latest = self._latest[number]
        queued = self._in_flight.get(latest[0]) if len(latest) == _BUSY else None
        if self._open_loop:
            until_ns = max(until_ns, *(int(self._timed.due[n]) for n in batch))
        elif queued is not None and not queued.ended.query():
            return  # the stream is busy
        since_ns = max(now_ns, self._held_ns)
        with torch.cuda.stream(self._holding_stream):
            self._spin(until_ns - since_ns)
            self._held.record(self._holding_stream)
        self._held_ns = max(since_ns, until_ns)
        self._streams[number].wait_event(self._held)

    def _before(self, operations: set[int]) -> list[Queued]:
        """Return those of some operations that the next one waits for on the device.

        Ends of others are known where a gap follows: it is shorter by what has passed.
        """
        waited = []
        for n in sorted(operations & self._in_flight.keys()):
            queued = self._in_flight[n]
            if self._paced and queued.ended.query():
                self._read(n)
            else:
                waited.append(queued)
        return waited

    def _fill_gap(self, n: int) -> None:
        """Queue what is left of the gap before an operation on the current stream."""
        timed = self._timed
        gap_ns = timed.pace.waits_ns(timed.program, n)
        if gap_ns == UNKNOWN_GAP:
            return
        after = int(timed.program.after[n])
        if after not in self._in_flight:
            gap_ns += int(timed.end[after]) if after >= 0 else self._begin
            gap_ns -= time.monotonic_ns()
        self._spin(gap_ns)

    def _spin(self, gap_ns: float) -> None:
        """Queue a kernel of one thread that polls the device's clock for a time."""
        cycles = round(gap_ns * self._cycles_per_ns)
        if cycles > 0:
            _sleep(cycles)

    def _wait_until_due(self, batch: range) -> None:
        """Wait on the host until shortly before a batch of open loop is due."""
        timed = self._timed
        for n in batch:
            due_ns = timed.due_ns(n, self._begin)
            while due_ns and self._in_flight:
                if due_ns - time.monotonic_ns() < 2e9 * POLL_S:
                    break
                self._wait_once()
            self._wait(MOST_IN_FLIGHT)
            wait_until(due_ns - 2 * self._lead_ns, timed.alive)

    # ---- ends ------------------------------------------------------------------------

    def _wait(self, most: int) -> None:
        """Wait until at most this many operations are in flight."""
        while len(self._in_flight) > most:
            self._wait_once()

    def _wait_once(self) -> None:
        """Read what has ended, or wait for a moment if nothing has."""
        if self._reap() or not self._in_flight:
            return
        timed, (first, queued) = self._timed, next(iter(self._in_flight.items()))
        now, since = time.monotonic_ns(), max(self._last_end, queued.queued_ns)
        if self._paced:
            since += max(0, timed.pace.waits_ns(timed.program, first))
        if now - since > 1e9 * self._timeout_s:
            raise RuntimeError(f"timed out after {self._timeout_s:g} s")
        timed.bound.transport.check()
        timed.alive()
        time.sleep(POLL_S)

    def _reap(self) -> bool:
        """Read operations that have ended, in order; return whether there was one."""
        timed, any_ended = self._timed, False
        while self._in_flight:
            first = next(iter(self._in_flight))
            timed.counter[0] = timed.base + 2 * first + 1
            if not self._in_flight[first].ended.query():
                return any_ended
            self._read(first)
            timed.counter[0] = timed.base + 2 * first + 2
            timed.alive()
            any_ended = True
        return any_ended

    def _read(self, n: int) -> None:
        """Read the times of an operation that has ended."""
        timed, queued = self._timed, self._in_flight.pop(n)
        issue = queued.time_of(queued.issued)
        timed.issue[n] = issue
        timed.end[n] = max(issue, queued.time_of(queued.ended))
        timed.done += 1
        self._last_end = time.monotonic_ns()

    def _set_due(self) -> None:
        """Set when operations after a gap on the device, and batches, were due."""
        timed, program = self._timed, self._timed.program
        if self._paced:
            rows = np.flatnonzero(program.gap_ns != UNKNOWN_GAP)
            after, gap_ns = program.after[rows], program.gap_ns[rows]
            since = np.where(after >= 0, timed.end[after], self._begin)
            gaps = np.rint(gap_ns * timed.pace.factor).astype(np.int64)
            timed.due[rows] = since + gaps
        if timed.pace.timed:
            latest = np.full_like(timed.due, UNKNOWN_TIME)
            np.maximum.at(latest, program.batch, timed.due)
            timed.due[:] = latest[program.batch]

    def _new_origin(self) -> tuple[Any, int]:
        """Measure the time of an event on the host's clock.

        It lies between the calls that record the event and observe its end; of some
        measurements the one with the shortest time between these is returned.
        """
        measured = []
        for _ in range(_REFERENCES):
            origin, before = event(), time.monotonic_ns()
            origin.record(self._clock_stream)
            origin.synchronize()
            took = time.monotonic_ns() - before
            measured.append((took, (origin, before + took // 2)))
        return min(measured, key=lambda m: m[0])[1]


def event() -> Any:
    """Create an event of the device, with a time."""
    make: Callable[..., Any] = torch.cuda.Event
    return make(enable_timing=True)


def _sleep(cycles: int) -> None:
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def _kernel_ns() -> float:
    """Measure the kernel that polls the clock for _CYCLES, without its launch."""
    begin, end = event(), event()
    _sleep(_CYCLES)  # loads the kernel, raises clocks, and lasts until all is queued
    begin.record()
    _sleep(_CYCLES)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e6

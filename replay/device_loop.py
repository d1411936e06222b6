"""Timed pass on a CUDA device: queue operations and read their times from events.

Each stream of the plan is a CUDA stream; each group has a communicator, and so a
stream of its own inside NCCL.  One host thread queues the operations in the order of
the program, which is the same on all ranks, and does not wait for them: dependencies
and gaps between operations are enforced on the device, so an operation or gap of one
stream delays no other stream.  Messages of a batch are one launch.  Only gaps that
sleep, and open loop, wait on the host.

Times come from events.  An operation is issued when its stream reaches it, after the
operations and the gap that it waits for; the host may have queued it long before.  An
idle stream is held until the host has launched the operation behind the event: a launch
takes as long as a short transfer, and is none of it.  Events are read as operations
end, relative to an event whose time on the host's clock is known, and are used again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from moetraffic.errors import ReplayError
from moetraffic.trace.model import UNKNOWN_TIME

from .device_gaps import Gemm, Spin, event
from .host_loop import MOST_IN_FLIGHT, TimedPass
from .pace import wait_until
from .plan.program import UNKNOWN_GAP
from .transport import POLL_S, Launch, Work

_LEAD_NS = 50_000  # first estimate of how long the host takes to queue an operation
_LEAD_MOST_NS = 200_000  # a first launch takes longer
_LEAD_FADES = 0.9  # from one operation to the next
_FIRST_NS = 1_000_000  # until the schedule of a pace begins: for the first launches
_REAPED = 16  # operations in flight, from which on the host looks for ends
_REFERENCES = 3  # measurements of the device's clock, of which the closest counts
_BUSY = 4  # operations of a stream that have not ended: it is not held


@dataclass(frozen=True, kw_only=True)
class Marks:
    """Events of one operation."""

    issued: Any  # timed: its stream reached it
    ended: Any  # timed
    done: Any  # other streams wait for it


@dataclass(frozen=True, kw_only=True)
class Queued:
    """An operation, or a batch, that was queued and whose times have not been read."""

    marks: Marks
    reference: tuple[Any, int]  # an event that has ended, and its time on the host
    queued_ns: int
    shared: bool  # by the messages of a batch

    def time_of(self, mark: Any) -> int:
        """Convert the time of an event that has ended to the host's clock, in ns."""
        origin, host_ns = self.reference
        return host_ns + round(float(origin.elapsed_time(mark)) * 1e6)


class DevicePass:
    """Timed pass of one rank on its CUDA device.

    The pass fails if no operation ends for longer than ``timeout_s``, gaps apart;
    ``check`` raises the error of a communicator.
    """

    def __init__(
        self,
        timed: TimedPass,
        device: torch.device,
        *,
        graphs: bool = False,
        timeout_s: float = 60.0,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._timed, self._device, self._graphs = timed, device, graphs
        self._timeout_s, self._check = timeout_s, check
        pace = timed.pace
        self._open_loop = pace.absolute
        make: Callable[..., Any] = torch.cuda.Stream
        used = np.unique(timed.program.stream).tolist()
        self._streams = {s: make(device) for s in used}
        self._side_streams = {s: make(device) for s in used}
        self._latest = {s: deque[int](maxlen=_BUSY) for s in used}  # queued last
        self._clock_stream, self._holding_stream = make(device), make(device)
        self._spin, self._held = Spin(device), event(timed=False)
        self._lead_ns, self._held_ns = _LEAD_NS, 0  # held_ns: of the host's clock
        self._gap: Spin | Gemm | None = None
        if pace.timed and not self._open_loop and pace.gaps != "sleep":
            self._gap = Gemm(device) if pace.gaps == "gemm" else self._spin
        self._free: list[Marks] = []
        self._in_flight: dict[int, Queued] = {}  # in program order
        self._reference: tuple[Any, int]
        self._begin = 0
        self._last_end = 0  # when the host last saw an operation end

    def run(self) -> None:
        """Run the timed pass on the device; its times are in ``timed`` afterwards."""
        timed, n = self._timed, 0
        launches = timed.bound.launches()
        timed.barrier()
        self._last_end = time.monotonic_ns()
        self._begin = self._last_end + _FIRST_NS * timed.pace.timed
        timed.counter[0] = timed.base + 1
        try:
            for begin, end in timed.iterations():
                n = begin
                if not self._open_loop:
                    self._wait(0)
                self._reference = self._new_reference()
                if self._graphs:
                    self._run_graph(begin, end, launches)
                    continue
                for batch in self._batches(begin, end):
                    for n in batch:
                        self._wait_on_host(n)
                    self._queue(batch, launches)
                    if len(self._in_flight) >= _REAPED:
                        self._reap()
            self._wait(0)
            self._set_due()
        except RuntimeError as error:
            # what has not ended first, or else what could not be queued
            first = next(iter(self._in_flight), n)
            raise timed.failure(first, error) from error

    def _batches(self, begin: int, end: int) -> list[range]:
        """Return the batches in a half-open range of program indices; most are one."""
        batch = self._timed.program.batch[begin:end]
        firsts = np.flatnonzero(batch == np.arange(begin, end))
        return [range(a, b) for a, b in pairwise([*(begin + firsts).tolist(), end])]

    # ---- one operation, or a batch of messages ---------------------------------------

    def _queue(self, batch: range, launches: Iterator[Launch]) -> None:
        """Queue a batch, the gap before its last operation and its events."""
        program, last = self._timed.program, batch[-1]
        number = int(program.stream[last])
        launch, *_ = [next(launches) for _ in batch]  # the first starts all
        stream, marks = self._streams[number], self._marks()
        with torch.cuda.stream(stream):
            if not self._open_loop:
                for queued in self._before({int(program.after[n]) for n in batch}):
                    stream.wait_event(queued.marks.done)
                self._fill_gap(max(batch, key=lambda n: int(program.due_ns[n])))
            began_ns = time.monotonic_ns()
            if not self._graphs:
                self._hold(number, batch, began_ns)
            marks.issued.record(stream)
            if self._graphs:
                # an event that is read outside of a graph is no dependency in it
                marks.done.record(stream)
            work = launch()
            took_ns = min(time.monotonic_ns() - began_ns, _LEAD_MOST_NS)
            self._lead_ns = max(took_ns, round(_LEAD_FADES * self._lead_ns))
            if program.waits[last] and not self._open_loop:
                self._end(stream, work, marks)
        if self._open_loop or not program.waits[last]:
            # no operation waits for it: its end is recorded on a side stream
            side = self._side_streams[number]
            side.wait_event(marks.done if self._graphs else marks.issued)
            with torch.cuda.stream(side):
                self._end(side, work, marks)
        self._latest[number].append(batch[0])
        queued = Queued(
            marks=marks,
            reference=self._reference,
            queued_ns=time.monotonic_ns(),
            shared=len(batch) > 1,
        )
        self._in_flight.update(dict.fromkeys(batch, queued))

    def _end(self, stream: Any, work: Work | None, marks: Marks) -> None:
        """Record the end of an operation on the current stream."""
        if work is not None:
            work.wait()  # blocks the stream, not the host
        marks.ended.record(stream)
        if self._graphs:
            marks.done.record(stream)

    def _hold(self, number: int, batch: range, now_ns: int) -> None:
        """Hold an idle stream until the host has launched a batch, and until it is due.

        Work on another stream takes this time.
        """
        until_ns = now_ns + self._lead_ns
        latest = self._latest[number]
        queued = self._in_flight.get(latest[0]) if len(latest) == _BUSY else None
        busy = queued is not None and not queued.marks.ended.query()
        if self._timed.pace.timed and self._gap is None:
            until_ns = max(until_ns, *(int(self._timed.due[n]) for n in batch))
        elif busy and not self._open_loop:
            return
        since_ns = max(now_ns, self._held_ns)
        with torch.cuda.stream(self._holding_stream):
            self._spin.fill(until_ns - since_ns)
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
            if self._gap is not None and queued.marks.ended.query():
                self._read(n)
            else:
                waited.append(queued)
        return waited

    def _fill_gap(self, n: int) -> None:
        """Queue what is left of the gap before an operation on the current stream."""
        timed = self._timed
        gap_ns = timed.pace.waits_ns(timed.program, n)
        if self._gap is None or gap_ns == UNKNOWN_GAP:
            return
        after = int(timed.program.after[n])
        if after not in self._in_flight:
            gap_ns += int(timed.end[after]) if after >= 0 else self._begin
            gap_ns -= time.monotonic_ns()
        if gap_ns > 0:
            self._gap.fill(gap_ns)

    def _wait_on_host(self, n: int) -> None:
        """Wait on the host until an operation is due, unless the device does."""
        timed = self._timed
        if not timed.pace.timed or self._gap is not None:
            return
        if self._open_loop:
            due_ns = timed.due_ns(n, self._begin)
            while due_ns and self._in_flight:
                if due_ns - time.monotonic_ns() < 2e9 * POLL_S:
                    break
                self._wait_once()
            self._wait(MOST_IN_FLIGHT)
        else:
            while int(timed.program.after[n]) in self._in_flight:
                self._wait_once()
            due_ns = timed.due_ns(n, self._begin)
        wait_until(due_ns - 2 * self._lead_ns, timed.pace.gaps, timed.alive)

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
        if self._gap is not None:
            since += max(0, timed.pace.waits_ns(timed.program, first))
        if now - since > 1e9 * self._timeout_s:
            raise RuntimeError(f"timed out after {self._timeout_s:g} s")
        self._check()
        timed.alive(now)
        time.sleep(POLL_S)

    def _reap(self) -> bool:
        """Read operations that have ended, in order; return whether there was one."""
        timed, any_ended = self._timed, False
        while self._in_flight:
            first = next(iter(self._in_flight))
            timed.counter[0] = timed.base + 2 * first + 1
            if not self._in_flight[first].marks.ended.query():
                return any_ended
            self._read(first)
            timed.counter[0] = timed.base + 2 * first + 2
            timed.alive(self._last_end)
            any_ended = True
        return any_ended

    def _read(self, n: int) -> None:
        """Read the times of an operation that has ended."""
        timed, queued = self._timed, self._in_flight.pop(n)
        issue = queued.time_of(queued.marks.issued)
        timed.issue[n] = issue
        timed.end[n] = max(issue, queued.time_of(queued.marks.ended))
        timed.done += 1
        if not queued.shared:
            self._free.append(queued.marks)
        self._last_end = time.monotonic_ns()

    def _set_due(self) -> None:
        """Set when operations after a gap on the device, and batches, were due."""
        timed, program = self._timed, self._timed.program
        if self._gap is not None:
            rows = np.flatnonzero(program.gap_ns != UNKNOWN_GAP)
            after, gap_ns = program.after[rows], program.gap_ns[rows]
            since = np.where(after >= 0, timed.end[after], self._begin)
            gaps = np.rint(gap_ns * timed.pace.factor).astype(np.int64)
            timed.due[rows] = since + gaps
        if timed.pace.timed:
            latest = np.full_like(timed.due, UNKNOWN_TIME)
            np.maximum.at(latest, program.batch, timed.due)
            timed.due[:] = latest[program.batch]

    # ---- an iteration as a graph -----------------------------------------------------

    def _run_graph(self, begin: int, end: int, launches: Iterator[Launch]) -> None:
        """Record the operations of an iteration as one graph and launch it."""
        timed, graph = self._timed, torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            current = torch.cuda.current_stream(self._device)
            streams = (*self._streams.values(), *self._side_streams.values())
            for stream in streams:
                stream.wait_stream(current)
            for batch in self._batches(begin, end):
                self._queue(batch, launches)
            for stream in streams:
                current.wait_stream(stream)
        recorded = dict(self._in_flight)
        self._in_flight.clear()  # nothing of it runs yet
        timed.barrier()  # recording takes long, and not equally long on all ranks
        self._reference, now = self._new_reference(), time.monotonic_ns()
        graph.replay()
        for n, queued in recorded.items():
            self._in_flight[n] = replace(
                queued, reference=self._reference, queued_ns=now
            )
        self._wait(0)
        torch.cuda.synchronize(self._device)  # the graph is not needed any more

    # ---- events ----------------------------------------------------------------------

    def _marks(self) -> Marks:
        if self._free:
            return self._free.pop()
        if not self._graphs:
            ended = event()
            return Marks(issued=event(), ended=ended, done=ended)
        try:  # events that are read outside of a graph must be external ones
            issued, ended = event(external=True), event(external=True)
        except TypeError as error:
            raise ReplayError(
                "times inside CUDA graphs need events that this torch "
                f"{torch.__version__} does not have: upgrade torch, or leave out "
                "--graphs"
            ) from error
        return Marks(issued=issued, ended=ended, done=event(timed=False))

    def _new_reference(self) -> tuple[Any, int]:
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

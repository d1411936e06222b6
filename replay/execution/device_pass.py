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
takes as long as a short transfer, and is none of it.
Events are read as operations end, relative to an event whose time on the host's clock
is known, and are used again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from moetraffic.errors import ReplayError
from moetraffic.replay.backends.backend import Launch, Work
from moetraffic.replay.plan.program import UNKNOWN_GAP
from moetraffic.trace.model import UNKNOWN_TIME

from .device_gaps import Spin, device_gap
from .host_pass import MAX_IN_FLIGHT
from .pace import Schedule
from .timed_pass import TimedPass

_POLL_S = 50e-6  # interval at which the host checks whether operations have ended
_LEAD_NS = 50_000  # first estimate of how long the host takes to queue an operation
_LEAD_MOST_NS = 200_000  # a first launch takes longer
_LEAD_FADES = 0.9  # from one operation to the next
_FIRST_NS = 1_000_000  # until the schedule of a pace begins: for the first launches
_REAPED = 16  # operations in flight, from which on the host looks for ends
_REFERENCES = 3  # measurements of the device's clock, of which the closest counts


@dataclass(frozen=True, kw_only=True)
class Marks:
    """Events of one operation."""

    issued: torch.cuda.Event  # timed: its stream reached it
    ended: torch.cuda.Event  # timed
    done: torch.cuda.Event  # other streams wait for it


@dataclass(frozen=True, kw_only=True)
class Reference:
    """An event that has ended, and its time on the host's clock."""

    event: torch.cuda.Event
    host_ns: int

    def time_of(self, event: torch.cuda.Event) -> int:
        """Convert the time of an event that has ended to the host's clock, in ns."""
        elapsed_ms = float(self.event.elapsed_time(event))
        return self.host_ns + round(elapsed_ms * 1e6)


@dataclass(frozen=True, kw_only=True)
class Queued:
    """An operation that was queued and whose times have not been read."""

    marks: Marks
    reference: Reference
    queued_ns: int
    shared: bool = False  # by the messages of a batch


class DevicePass:
    """Timed pass of one rank on its CUDA device.

    The pass fails if no operation ends for longer than ``timeout_s``, gaps apart.

    Raises
    ------
    ReplayError
        If graphs are requested with a pace that issues operations one by one.
    """

    def __init__(
        self,
        timed: TimedPass,
        device: torch.device,
        *,
        graphs: bool = False,
        timeout_s: float = 60.0,
    ) -> None:
        if graphs and timed.pace.timed:
            raise ReplayError(
                "a CUDA graph launches a whole iteration at once, but pace "
                f"{timed.pace} issues operations one by one: choose --pace asap, or "
                "leave out --graphs"
            )
        self._timed = timed
        self._device = device
        self._graphs = graphs
        self._timeout_s = timeout_s
        self._open_loop = timed.pace.schedule is Schedule.OPEN_LOOP
        used = np.unique(timed.program.stream).tolist()
        make: Callable[..., torch.cuda.Stream] = torch.cuda.Stream
        self._streams = {s: make(device) for s in used}
        self._side_streams = {s: make(device) for s in used}
        self._clock_stream, self._holding_stream = make(device), make(device)
        self._spin, self._held = Spin(device), _event(timed=False)
        self._lead_ns, self._held_ns = _LEAD_NS, 0  # held_ns: of the host's clock
        paced = timed.pace.timed and not self._open_loop
        self._gap = device_gap(timed.pace.gaps, device) if paced else None
        self._free: list[Marks] = []
        self._in_flight: dict[int, Queued] = {}  # in program order
        self._reference: Reference
        self._begin = 0
        self._last_end = 0  # when the host last saw an operation end

    def run(self) -> None:
        """Run the timed pass on the device; its times are in ``timed`` afterwards.

        Raises
        ------
        RankError
            If another rank does not respond.
        """
        timed, n = self._timed, 0
        launches = timed.launches()
        timed.barrier()
        torch.cuda.synchronize(self._device)
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
                for batch in timed.batches(begin, end):
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

    # ---- one operation, or a batch of messages ---------------------------------------

    def _queue(self, batch: range, launches: Iterator[Launch]) -> None:
        """Queue a batch, the gap before its last operation and its events."""
        program, last = self._timed.program, batch[-1]
        number = int(program.stream[last])
        launch, *_ = [next(launches) for _ in batch]  # the first starts all
        before = self._before({int(program.after[n]) for n in batch})
        stream, marks = self._streams[number], self._marks()
        with torch.cuda.stream(stream):
            if not self._open_loop:
                for one in before:
                    stream.wait_event(one.marks.done)
                self._fill_gap(max(batch, key=lambda n: int(program.due_ns[n])))
            began_ns = time.monotonic_ns()
            if not self._graphs:
                self._hold(stream, batch, began_ns)
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
        queued = Queued(
            marks=marks,
            reference=self._reference,
            queued_ns=time.monotonic_ns(),
            shared=len(batch) > 1,
        )
        self._in_flight.update(dict.fromkeys(batch, queued))

    def _end(self, stream: torch.cuda.Stream, work: Work | None, marks: Marks) -> None:
        """Record the end of an operation on the current stream."""
        if work is not None:
            work.wait()  # blocks the stream, not the host
        marks.ended.record(stream)
        if self._graphs:
            marks.done.record(stream)

    def _hold(self, stream: torch.cuda.Stream, batch: range, now_ns: int) -> None:
        """Hold a stream until the host has launched a batch, and until it is due.

        Work on another stream takes this time, so a stream that is busy for longer is
        not delayed.
        """
        until_ns = now_ns + self._lead_ns
        if self._timed.pace.timed and self._gap is None:
            until_ns = max(until_ns, *(int(self._timed.due[n]) for n in batch))
        since_ns = max(now_ns, self._held_ns)
        with torch.cuda.stream(self._holding_stream):
            self._spin.fill(until_ns - since_ns)
            self._held.record(self._holding_stream)
        self._held_ns = max(since_ns, until_ns)
        stream.wait_event(self._held)

    def _before(self, operations: set[int]) -> list[Queued]:
        """Return those of some operations that the next one waits for on the device.

        Ends of others are known where a gap follows: it is shorter by what has passed.
        """
        found = []
        for n in sorted(operations & self._in_flight.keys()):
            queued = self._in_flight[n]
            if self._gap is not None and _has_ended(queued):
                self._read(n)
            else:
                found.append(queued)
        return found

    def _fill_gap(self, n: int) -> None:
        """Queue what is left of the gap before an operation on the current stream."""
        timed, program = self._timed, self._timed.program
        if self._gap is None or program.gap_ns[n] == UNKNOWN_GAP:
            return
        after, gap_ns = int(program.after[n]), self._gap_ns(n)
        if after not in self._in_flight:
            gap_ns += timed.since_ns(n, self._begin) - time.monotonic_ns()
        if gap_ns > 0:
            self._gap.fill(gap_ns)

    def _gap_ns(self, n: int) -> int:
        return round(int(self._timed.program.gap_ns[n]) * self._timed.pace.factor)

    def _wait_on_host(self, n: int) -> None:
        """Wait on the host until an operation is due, unless the device does."""
        timed = self._timed
        if self._open_loop:
            due_ns = int(timed.program.due_ns[n])
            while due_ns != UNKNOWN_GAP and self._in_flight:
                left_ns = self._begin + due_ns - time.monotonic_ns()
                if left_ns < 2e9 * _POLL_S:
                    break
                self._wait_once()
            self._wait(MAX_IN_FLIGHT)
            timed.wait_until_due(n, self._begin, early_ns=2 * self._lead_ns)
        elif timed.pace.timed and self._gap is None:
            after = int(timed.program.after[n])
            while after in self._in_flight:
                self._wait_once()
            timed.wait_until_due(n, self._begin, early_ns=2 * self._lead_ns)

    # ---- ends ----------------------------------------------------------------------

    def _wait(self, most: int) -> None:
        """Wait until at most this many operations are in flight."""
        while len(self._in_flight) > most:
            self._wait_once()

    def _wait_once(self) -> None:
        """Read what has ended, or wait for a moment if nothing has.

        Raises
        ------
        RuntimeError
            If nothing has ended for longer than the timeout.
        """
        if self._reap() or not self._in_flight:
            return
        timed, (first, queued) = self._timed, next(iter(self._in_flight.items()))
        now, since = time.monotonic_ns(), max(self._last_end, queued.queued_ns)
        if self._gap is not None and timed.program.gap_ns[first] != UNKNOWN_GAP:
            since += self._gap_ns(first)
        if now - since > 1e9 * self._timeout_s:
            raise RuntimeError(f"timed out after {self._timeout_s:g} s")
        timed.alive(now)
        time.sleep(_POLL_S)

    def _reap(self) -> bool:
        """Read operations that have ended, in order; return whether there was one."""
        timed, found = self._timed, False
        while self._in_flight:
            first = next(iter(self._in_flight))
            timed.counter[0] = timed.base + 2 * first + 1
            if not _has_ended(self._in_flight[first]):
                return found
            self._read(first)
            timed.counter[0] = timed.base + 2 * first + 2
            timed.alive(self._last_end)
            found = True
        return found

    def _read(self, n: int) -> None:
        """Read the times of an operation that has ended."""
        timed, queued = self._timed, self._in_flight.pop(n)
        marks, reference = queued.marks, queued.reference
        issue = reference.time_of(marks.issued)
        timed.issue[n] = issue
        timed.ended(n, max(issue, reference.time_of(marks.ended)))
        if not queued.shared:
            self._free.append(marks)
        self._last_end = time.monotonic_ns()

    def _set_due(self) -> None:
        """Set when operations after a gap on the device, and batches, were due."""
        timed, program = self._timed, self._timed.program
        if self._gap is not None:
            known = np.flatnonzero(program.gap_ns != UNKNOWN_GAP)
            after, gap_ns = program.after[known], program.gap_ns[known]
            since = np.where(after >= 0, timed.end[after], self._begin)
            gaps = np.rint(gap_ns * timed.pace.factor).astype(np.int64)
            timed.due[known] = since + gaps
        if timed.pace.timed:
            latest = np.full_like(timed.due, UNKNOWN_TIME)
            np.maximum.at(latest, program.batch, timed.due)
            timed.due[:] = latest[program.batch]

    # ---- an iteration as a graph ---------------------------------------------------

    def _run_graph(self, begin: int, end: int, launches: Iterator[Launch]) -> None:
        """Record the operations of an iteration as one graph and launch it."""
        timed, graph = self._timed, torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            current = torch.cuda.current_stream(self._device)
            for stream in (*self._streams.values(), *self._side_streams.values()):
                stream.wait_stream(current)
            for batch in timed.batches(begin, end):
                self._queue(batch, launches)
            for stream in (*self._streams.values(), *self._side_streams.values()):
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

    # ---- events --------------------------------------------------------------------

    def _marks(self) -> Marks:
        if self._free:
            return self._free.pop()
        if not self._graphs:
            ended = _event()
            return Marks(issued=_event(), ended=ended, done=ended)
        try:  # events that are read outside of a graph must be external ones
            issued, ended = _event(external=True), _event(external=True)
        except TypeError as error:
            raise ReplayError(
                "times inside CUDA graphs need events that this torch "
                f"{torch.__version__} does not have: upgrade torch, or leave out "
                "--graphs"
            ) from error
        return Marks(issued=issued, ended=ended, done=_event(timed=False))

    def _new_reference(self) -> Reference:
        """Measure the time of an event on the host's clock.

        It lies between the calls that record the event and observe its end; of some
        measurements the one with the shortest time between these is returned.
        """
        found: list[tuple[int, Reference]] = []
        for _ in range(_REFERENCES):
            event, before = _event(), time.monotonic_ns()
            event.record(self._clock_stream)
            event.synchronize()
            took = time.monotonic_ns() - before
            found.append((took, Reference(event=event, host_ns=before + took // 2)))
        return min(found, key=lambda one: one[0])[1]


def _event(*, timed: bool = True, **more: bool) -> torch.cuda.Event:
    make: Callable[..., torch.cuda.Event] = torch.cuda.Event
    return make(enable_timing=timed, **more)


def _has_ended(queued: Queued) -> bool:
    return bool(queued.marks.ended.query())  # type: ignore[no-untyped-call]

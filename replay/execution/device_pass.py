"""Timed pass on a CUDA device: queue operations and read their times from events.

Each stream of the plan is a CUDA stream; each group has a communicator, and so a
stream of its own inside NCCL.  The host runs ahead of the device within an iteration:
dependencies of operations are enforced on the device.  After each iteration the host
synchronizes with the device and reads the events, which are reused.

The issue time of an operation is when the host queued it; its start and end come from
events on its stream, converted to the host's clock with an event whose end the host
observed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from moetraffic.errors import ReplayError
from moetraffic.replay.backends.backend import Launch
from moetraffic.replay.plan.program import UNKNOWN_GAP

from .pace import Gaps, Schedule
from .timed_pass import TimedPass

_SIDE = 2048  # some 20 us on an H100, 100 us on a V100: gaps are many of these
_REPETITIONS = 32


class DevicePass:
    """Timed pass of one rank on its CUDA device.

    Raises
    ------
    ReplayError
        If graphs are requested with a pace that issues operations one by one.
    """

    def __init__(
        self, timed: TimedPass, device: torch.device, *, graphs: bool = False
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
        timed.start = np.empty_like(timed.issue)
        used = np.unique(timed.program.stream).tolist()
        make: Callable[..., torch.cuda.Stream] = torch.cuda.Stream
        self._streams = {s: make(device) for s in used}
        self._side_streams = {s: make(device) for s in used}
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        filled = timed.pace.timed and timed.pace.gaps is Gaps.GEMM
        self._gemm = Gemm(device) if filled else None
        self._launches: list[Launch] = []  # of one iteration
        self._begin = 0

    def run(self) -> None:
        """Run the timed pass on the device; its times are in ``timed`` afterwards.

        Raises
        ------
        RankError
            If another rank does not respond.
        """
        timed = self._timed
        timed.barrier()
        torch.cuda.synchronize(self._device)
        self._begin = time.monotonic_ns()
        for begin, end in timed.iterations():
            self._launches = timed.binder.launches(begin, end)
            reference, reference_ns = self._reference()
            timed.counter[0] = timed.base + 2 * begin + 1
            n = begin
            try:
                if self._graphs:
                    self._run_graph(begin, end)
                else:
                    for n in range(begin, end):
                        self._wait_until_due(n, begin)
                        timed.issue[n] = time.monotonic_ns()
                        self._queue(n, begin)
                torch.cuda.synchronize(self._device)
            except RuntimeError as error:
                raise timed.failure(n, error) from error
            self._read(begin, end, reference, reference_ns)
            timed.counter[0] = timed.base + 2 * end
            timed.done = end
            timed.alive(time.monotonic_ns())

    # ---- one operation -------------------------------------------------------------

    def _queue(self, n: int, begin: int) -> None:
        """Queue an operation and its two events on its stream."""
        program = self._timed.program
        number, after = int(program.stream[n]), int(program.after[n])
        stream = self._streams[number]
        before, ended = self._events_of(n - begin)
        open_loop = self._timed.pace.schedule is Schedule.OPEN_LOOP
        with torch.cuda.stream(stream):
            if after >= begin and not open_loop:
                stream.wait_event(self._events[after - begin][1])
            before.record(stream)
            work = self._launches[n - begin]()
            if program.waits[n] and not open_loop:
                if work is not None:
                    work.wait()  # blocks the stream, not the host
                ended.record(stream)
                return
        # no operation waits for it: its end is recorded on a side stream
        side = self._side_streams[number]
        with torch.cuda.stream(side):
            side.wait_event(before)
            if work is not None:
                work.wait()
            ended.record(side)

    def _wait_until_due(self, n: int, begin: int) -> None:
        """Wait, on the host or the device, until an operation is due."""
        timed, program = self._timed, self._timed.program
        after = int(program.after[n])
        gaps = timed.pace.timed and timed.pace.schedule is not Schedule.OPEN_LOOP
        if gaps and program.gap_ns[n] != UNKNOWN_GAP:
            if self._gemm is not None:
                stream = self._streams[int(program.stream[n])]
                with torch.cuda.stream(stream):
                    if after >= begin:
                        stream.wait_event(self._events[after - begin][1])
                    self._gemm.fill(round(program.gap_ns[n] * timed.pace.factor))
                return
            if after >= begin:
                self._events[after - begin][1].synchronize()
                timed.end[after] = time.monotonic_ns()  # until its event is read
        timed.wait_until_due(n, self._begin)

    # ---- an iteration as a graph ---------------------------------------------------

    def _run_graph(self, begin: int, end: int) -> None:
        """Record the operations of an iteration as one graph and launch it."""
        timed, graph = self._timed, torch.cuda.CUDAGraph()
        for n in range(begin, end):
            self._events_of(n - begin)
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            recorded = torch.cuda.current_stream(self._device)
            for stream in (*self._streams.values(), *self._side_streams.values()):
                stream.wait_stream(recorded)
            for n in range(begin, end):
                self._queue(n, begin)
            for stream in (*self._streams.values(), *self._side_streams.values()):
                recorded.wait_stream(stream)
        timed.barrier()  # recording takes long, and not equally long on all ranks
        timed.issue[begin:end] = time.monotonic_ns()
        graph.replay()
        torch.cuda.synchronize(self._device)

    # ---- events --------------------------------------------------------------------

    def _events_of(self, at: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        while at >= len(self._events):
            self._events.append((self._new_event(), self._new_event()))
        return self._events[at]

    def _new_event(self) -> torch.cuda.Event:
        if not self._graphs:
            return _event()
        try:  # events inside a graph must be external ones
            return _event(external=True)
        except TypeError as error:
            raise ReplayError(
                "times inside CUDA graphs need events that this torch "
                f"{torch.__version__} does not have: upgrade torch, or leave out "
                "--graphs"
            ) from error

    def _reference(self) -> tuple[torch.cuda.Event, int]:
        """Return an ended event, and the host time at which its end was observed."""
        reference = _event()
        reference.record(torch.cuda.current_stream(self._device))
        reference.synchronize()
        return reference, time.monotonic_ns()

    def _read(
        self, begin: int, end: int, reference: torch.cuda.Event, reference_ns: int
    ) -> None:
        """Read the times of an iteration from its events."""
        timed = self._timed
        for n in range(begin, end):
            before, ended = self._events[n - begin]
            # no operation starts before the host has queued it
            start = reference_ns + round(reference.elapsed_time(before) * 1e6)
            timed.start[n] = max(int(timed.issue[n]), start)
            last = reference_ns + round(reference.elapsed_time(ended) * 1e6)
            timed.end[n] = max(int(timed.start[n]), last)


def _event(**more: bool) -> torch.cuda.Event:
    make: Callable[..., torch.cuda.Event] = torch.cuda.Event
    return make(enable_timing=True, **more)


class Gemm:
    """Matrix products in bfloat16 that fill gaps; their duration is measured first."""

    def __init__(self, device: torch.device) -> None:
        make = {"device": device, "dtype": torch.bfloat16}
        self._a = torch.ones(_SIDE, _SIDE, **make)  # type: ignore[call-overload]
        self._b = torch.ones(_SIDE, _SIDE, **make)  # type: ignore[call-overload]
        self._out = torch.empty(_SIDE, _SIDE, **make)  # type: ignore[call-overload]
        self._multiply(_REPETITIONS)  # loads libraries, raises clocks
        begin, end = _event(), _event()
        begin.record()
        self._multiply(_REPETITIONS)
        end.record()
        end.synchronize()
        self.product_ns = max(1.0, begin.elapsed_time(end) * 1e6 / _REPETITIONS)

    def fill(self, gap_ns: int) -> None:
        """Queue matrix products of a given total duration on the current stream."""
        self._multiply(round(gap_ns / self.product_ns))

    def _multiply(self, times: int) -> None:
        for _ in range(times):
            torch.mm(self._a, self._b, out=self._out)

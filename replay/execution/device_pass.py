"""A timed pass on a CUDA device: operations are queued, and events tell the times.

Each of the plan's streams is a CUDA stream; each group has a communicator, and so a
stream of its own inside NCCL.  The host runs ahead of the device within an iteration:
what an operation waits for, it waits for on the device.  After each iteration the host
waits for the device, and reads the events; they are used again.

An operation's issue is when the host queued it, its start and end are what events on
its stream say, put on the host's clock by one event whose end the host has seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from moetraffic.errors import ReplayError
from moetraffic.replay.backends.backend import Launch
from moetraffic.replay.plan.program import UNKNOWN_GAP

from .gemm import Gemm
from .pace import Gaps, Schedule, wait_until
from .timed_pass import TimedPass


class DevicePass:
    """The pass of one rank.

    Parameters
    ----------
    timed
        The pass.
    device
        Its CUDA device.
    graphs
        Whether each iteration is recorded as a CUDA graph and started as one.

    Raises
    ------
    ReplayError
        If there are to be graphs, but a pace that the host has to keep.
    """

    def __init__(
        self, timed: TimedPass, device: torch.device, *, graphs: bool = False
    ) -> None:
        if graphs and timed.pace.timed:
            raise ReplayError(
                "a CUDA graph starts all of an iteration at once, but pace "
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
        self._aside = {s: make(device) for s in used}
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        filled = timed.pace.timed and timed.pace.gaps is Gaps.GEMM
        self._gemm = Gemm(device) if filled else None
        self._launches: list[Launch] = []  # of one iteration
        self._begin = 0

    def run(self) -> None:
        """Go through the program; the times are in the timed.

        Raises
        ------
        RankError
            If a rank does not answer.
        """
        timed = self._timed
        timed.meet()
        torch.cuda.synchronize(self._device)
        self._begin = time.monotonic_ns()
        for begin, end in timed.iterations():
            self._launches = timed.binder.launches(begin, end)
            zero, zero_ns = self._zero()
            timed.counter[0] = timed.base + 2 * begin + 1
            n = begin
            try:
                if self._graphs:
                    self._record_and_start(begin, end)
                else:
                    for n in range(begin, end):
                        self._pause(n, begin)
                        timed.issue[n] = time.monotonic_ns()
                        self._queue(n, begin)
                torch.cuda.synchronize(self._device)
            except RuntimeError as error:
                raise timed.failure(n, error) from error
            self._read(begin, end, zero, zero_ns)
            timed.counter[0] = timed.base + 2 * end
            timed.done = end
            timed.alive(time.monotonic_ns())

    # ---- one operation -------------------------------------------------------------

    def _queue(self, n: int, begin: int) -> None:
        """Put an operation and its two events on its stream."""
        program = self._timed.program
        number, after = int(program.stream[n]), int(program.after[n])
        stream = self._streams[number]
        before, ended = self._pair(n - begin)
        open_loop = self._timed.pace.schedule is Schedule.OPEN_LOOP
        with torch.cuda.stream(stream):
            if after >= begin and not open_loop:
                stream.wait_event(self._events[after - begin][1])
            before.record(stream)
            work = self._launches[n - begin]()
            if program.waits[n] and not open_loop:
                if work is not None:
                    work.wait()  # the stream's, not the host's
                ended.record(stream)
                return
        # nobody waits for it: its end is seen beside the stream
        aside = self._aside[number]
        with torch.cuda.stream(aside):
            aside.wait_event(before)
            if work is not None:
                work.wait()
            ended.record(aside)

    def _pause(self, n: int, begin: int) -> None:
        """Let the time pass until an operation is due."""
        timed, program = self._timed, self._timed.program
        pace = timed.pace
        if not pace.timed:
            return
        if pace.schedule is Schedule.OPEN_LOOP:
            if program.due_ns[n] != UNKNOWN_GAP:
                timed.due[n] = self._begin + program.due_ns[n]
                wait_until(int(timed.due[n]), pace.gaps, timed.alive)
            return
        if program.gap_ns[n] == UNKNOWN_GAP:
            return
        after = int(program.after[n])
        if self._gemm is not None:
            stream = self._streams[int(program.stream[n])]
            with torch.cuda.stream(stream):
                if after >= begin:
                    stream.wait_event(self._events[after - begin][1])
                self._gemm.fill(timed.due_after(n, 0))
            return
        if after >= begin:
            self._events[after - begin][1].synchronize()
            since = time.monotonic_ns()
        else:
            since = int(timed.end[after]) if after >= 0 else self._begin
        timed.due[n] = until = timed.due_after(n, since)
        wait_until(until, pace.gaps, timed.alive)

    # ---- an iteration as a graph ---------------------------------------------------

    def _record_and_start(self, begin: int, end: int) -> None:
        """Record an iteration's operations as one graph, and start it."""
        timed, graph = self._timed, torch.cuda.CUDAGraph()
        for n in range(begin, end):
            self._pair(n - begin)
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            there = torch.cuda.current_stream(self._device)
            for stream in (*self._streams.values(), *self._aside.values()):
                stream.wait_stream(there)
            for n in range(begin, end):
                self._queue(n, begin)
            for stream in (*self._streams.values(), *self._aside.values()):
                there.wait_stream(stream)
        timed.meet()  # recording takes long, and on no two ranks as long
        timed.issue[begin:end] = time.monotonic_ns()
        graph.replay()
        torch.cuda.synchronize(self._device)

    # ---- events --------------------------------------------------------------------

    def _pair(self, at: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        while at >= len(self._events):
            self._events.append((self._event(), self._event()))
        return self._events[at]

    def _event(self) -> torch.cuda.Event:
        if not self._graphs:
            return _timed()
        try:  # an event that a graph records is one from outside of it
            return _timed(external=True)
        except TypeError as error:
            raise ReplayError(
                "times inside CUDA graphs need events that this torch "
                f"{torch.__version__} does not have: upgrade torch, or leave out "
                "--graphs"
            ) from error

    def _zero(self) -> tuple[torch.cuda.Event, int]:
        """An event that has ended, and when the host saw its end."""
        zero = _timed()
        zero.record(torch.cuda.current_stream(self._device))
        zero.synchronize()
        return zero, time.monotonic_ns()

    def _read(self, begin: int, end: int, zero: torch.cuda.Event, zero_ns: int) -> None:
        """Take an iteration's times from its events."""
        timed = self._timed
        for n in range(begin, end):
            before, ended = self._events[n - begin]
            # no operation starts before the host has queued it
            start = zero_ns + round(zero.elapsed_time(before) * 1e6)
            timed.start[n] = max(int(timed.issue[n]), start)
            last = zero_ns + round(zero.elapsed_time(ended) * 1e6)
            timed.end[n] = max(int(timed.start[n]), last)


def _timed(**more: bool) -> torch.cuda.Event:
    make: Callable[..., torch.cuda.Event] = torch.cuda.Event
    return make(enable_timing=True, **more)

"""Timed pass on the host: from one thread, or from one thread per stream.

The loop for pace ``asap`` is benchmarked against a bare loop over torch's collectives,
so it does nothing but call, wait and read the clock twice: calls are prepared
beforehand, times go into preallocated arrays, and supervision is a counter in shared
memory.

With several streams, a thread that waits for an operation blocks nothing that the
others need (torch releases the GIL meanwhile), so operations of different streams
overlap.  All streams synchronize after each iteration.
"""

from __future__ import annotations

import gc
import queue
import threading
import time
from collections.abc import Callable

import numpy as np

from moetraffic.replay.backends.backend import Launch, Work
from moetraffic.replay.failure import RankError
from moetraffic.trace.model import UNKNOWN_TIME

from .pace import Schedule
from .prepared import BLOCK, PREPARED
from .timed_pass import HEARTBEAT_EVERY_NS, TimedPass

_POLL_S = 0.1  # interval at which a waiting thread checks whether another failed

MAX_IN_FLIGHT = 1024
"""Largest number of operations in flight; issuing more blocks."""


def run_in_order(timed: TimedPass) -> None:
    """Run a timed pass from one thread; its times are in ``timed`` afterwards.

    Each operation ends before the next one is issued, except in open loop: there
    operations are issued at their captured times, whether or not others have ended.
    Operations that the trace does not have (background traffic) have no captured time:
    they are issued in program order, without waiting.

    Raises
    ------
    RankError
        If another rank does not respond.
    """
    enabled = gc.isenabled()
    gc.disable()  # the timed loops create no reference cycles
    try:
        if timed.pace.timed:
            _paced(timed)
        else:
            _asap(timed)
    finally:
        if enabled:
            gc.enable()
    timed.done = len(timed.program)


def _asap(timed: TimedPass) -> None:
    launches = timed.launches()
    clock, counter = time.monotonic_ns, timed.counter
    issue, end = memoryview(timed.issue), memoryview(timed.end)  # type: ignore[arg-type]
    timed.barrier()
    n, heartbeat_ns = 0, clock()
    count = timed.base + 1
    try:
        for launch in launches:
            counter[0] = count
            issue[n] = clock()
            work = launch()
            if work is not None:
                work.wait()
            ended = clock()
            end[n] = ended
            counter[0] = count + 1
            count += 2
            n += 1
            if ended - heartbeat_ns > HEARTBEAT_EVERY_NS:
                heartbeat_ns, timed.done = ended, n
                timed.send_heartbeat()
    except RuntimeError as error:
        raise timed.failure(n, error) from error


def _paced(timed: TimedPass) -> None:
    stream, clock, counter = timed.program.stream, time.monotonic_ns, timed.counter
    errors: list[RankError] = []
    threads: dict[int, CompletionThread] = {}

    def failed(n: int, error: RuntimeError) -> None:
        errors.append(timed.failure(n, error))

    if timed.pace.schedule is Schedule.OPEN_LOOP:
        for number in np.unique(stream).tolist():
            threads[number] = CompletionThread(timed.ended, failed)
    launches = timed.launches()
    timed.barrier()
    n, begin = 0, clock()
    try:
        for n, launch in enumerate(launches):
            timed.wait_until_due(n, begin)
            counter[0] = timed.base + 2 * n + 1
            timed.issue[n] = now = clock()
            work = launch()
            if threads:
                threads[int(stream[n])].wait_for(n, work)
            else:
                if work is not None:
                    work.wait()
                now = clock()
                timed.ended(n, now)
            counter[0] = timed.base + 2 * n + 2
            timed.alive(now)
            if errors:
                raise errors[0]
    except RuntimeError as error:
        raise timed.failure(n, error) from error
    for thread in threads.values():
        thread.stop()
    if errors:
        raise errors[0]


class CompletionThread:
    """Thread that waits for operations in issue order and records their ends.

    The recorded end of an operation is the moment when it and all operations issued
    before it have ended.

    ``ended`` and ``failed`` are called with the number of an operation and the time in
    ns, or the error.
    """

    def __init__(
        self,
        ended: Callable[[int, int], None],
        failed: Callable[[int, RuntimeError], None],
    ) -> None:
        self._ended = ended
        self._failed = failed
        self._works: queue.Queue[tuple[int, Work | None] | None] = queue.Queue(
            MAX_IN_FLIGHT
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait_for(self, n: int, work: Work | None) -> None:
        """Add an operation to those that the thread waits for."""
        self._works.put((n, work))

    def drain(self) -> None:
        """Wait until all operations added so far have ended or failed."""
        self._works.join()

    def stop(self) -> None:
        """End the thread after the operations added so far."""
        self._works.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._works.get()) is not None:
            n, work = item
            try:
                if work is not None:
                    work.wait()
                self._ended(n, time.monotonic_ns())
            except RuntimeError as error:
                self._failed(n, error)
            finally:
                self._works.task_done()


class _Stopped(Exception):
    """Raised to end the thread of a stream after another stream has failed."""


class StreamThreads:
    """Threads of one timed pass, one for each stream of the program."""

    def __init__(self, timed: TimedPass) -> None:
        self._timed = timed
        self._streams = np.unique(timed.program.stream).tolist()
        self._iterations = timed.iterations()
        self._joined = threading.Barrier(len(self._streams))
        self._changed = threading.Condition()
        self._waiting = 0  # threads that wait for an operation of another stream
        self._in_flight: dict[int, int] = {}  # stream to its operation in flight
        self._error: RankError | None = None
        self._begin = 0

    def run(self) -> None:
        """Run the timed pass with one thread per stream; record times in ``timed``.

        Raises
        ------
        RankError
            If another rank does not respond.
        """
        timed = self._timed
        count = len(timed.program)
        ready = timed.binder.launches(0, count) if count <= PREPARED else None
        threads = [
            threading.Thread(target=self._run_stream, args=(s, ready), daemon=True)
            for s in self._streams
        ]
        timed.barrier()
        self._begin = time.monotonic_ns()
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive() and self._error is None:
                thread.join(_POLL_S)
                timed.alive(time.monotonic_ns())
        if self._error is not None:
            # threads inside operations end when those do; nothing here waits for them
            raise self._error
        timed.done = count

    def _run_stream(self, stream: int, ready: list[Launch] | None) -> None:
        timed = self._timed
        completion = CompletionThread(self._ended, self._fail)
        n = -1
        try:
            for begin, end in self._iterations:
                mine = begin + np.flatnonzero(timed.program.stream[begin:end] == stream)
                for first in range(0, len(mine), BLOCK):
                    block = mine[first : first + BLOCK].tolist()
                    launches = [
                        timed.binder.launch(n) if ready is None else ready[n]
                        for n in block
                    ]
                    for n, launch in zip(block, launches, strict=True):
                        self._run_one(stream, n, launch, completion)
                completion.drain()
                self._check()
                self._joined.wait()
        except (_Stopped, threading.BrokenBarrierError):
            return
        except RuntimeError as error:
            self._fail(n, error)
        finally:
            completion.stop()

    def _run_one(
        self, stream: int, n: int, launch: Launch, completion: CompletionThread
    ) -> None:
        timed, program = self._timed, self._timed.program
        waited = int(program.after[n])
        if waited >= 0:
            self._wait_for(waited)
        timed.wait_until_due(n, self._begin, heartbeats=False)
        self._in_flight[stream] = n
        self._count()
        timed.issue[n] = time.monotonic_ns()
        work = launch()
        if program.waits[n]:
            if work is not None:
                work.wait()
            self._ended(n, time.monotonic_ns())
        else:
            completion.wait_for(n, work)
        del self._in_flight[stream]
        if self._in_flight:
            self._count()
        else:
            timed.counter[0] = timed.base + 2 * n + 2

    def _count(self) -> None:
        """Set the supervisor's counter to the first of the operations in flight."""
        first = min(self._in_flight.copy().values(), default=0)
        self._timed.counter[0] = self._timed.base + 2 * first + 1

    # ---- synchronization of streams ------------------------------------------------

    def _ended(self, n: int, now_ns: int) -> None:
        self._timed.ended(n, now_ns)
        if self._waiting:
            with self._changed:
                self._changed.notify_all()

    def _wait_for(self, n: int) -> None:
        end = self._timed.end
        if end[n] != UNKNOWN_TIME:
            return
        with self._changed:
            self._waiting += 1
            while end[n] == UNKNOWN_TIME:
                self._changed.wait(_POLL_S)
                if self._error is not None:
                    break
            self._waiting -= 1
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise _Stopped

    def _fail(self, n: int, error: RuntimeError) -> None:
        if self._error is None:
            self._error = self._timed.failure(n, error)
        self._joined.abort()

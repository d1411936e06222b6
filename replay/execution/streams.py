"""Run a program with overlapping streams: one thread for each stream.

A thread that waits for an operation blocks nothing that the others need (torch releases
the GIL meanwhile), so operations of different streams overlap.  All streams
synchronize after each iteration.
"""

from __future__ import annotations

import threading
import time

import numpy as np

from moetraffic.replay.backends.backend import Launch
from moetraffic.replay.failure import RankError
from moetraffic.replay.plan.program import UNKNOWN_GAP
from moetraffic.trace.model import UNKNOWN_TIME

from .completion_thread import CompletionThread
from .pace import wait_until
from .timed_pass import BLOCK, PREPARED, TimedPass

_POLL_S = 0.1  # interval at which a waiting thread checks whether another failed


class _Stopped(Exception):
    """Raised to end the thread of a stream after another stream has failed."""


class StreamThreads:
    """Threads of one timed pass, one for each stream of the program.

    Parameters
    ----------
    timed
        State of the timed pass.
    """

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
        if timed.pace.timed and program.gap_ns[n] != UNKNOWN_GAP:
            since = int(timed.end[waited]) if waited >= 0 else self._begin
            timed.due[n] = until = timed.due_after(n, since)
            wait_until(until, timed.pace.gaps)
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

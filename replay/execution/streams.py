"""A program whose streams overlap: a lane, which is a thread, for each stream.

A thread that waits for an operation holds nothing that the others need (torch lets go
of the interpreter meanwhile), so operations of different lanes are under way together.
Streams meet after each iteration.
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

_LOOK_S = 0.1  # how often a waiting thread looks whether another failed


class _Stopped(Exception):
    """Another lane has failed: this one ends."""


class Streams:
    """The lanes of one pass.

    Parameters
    ----------
    timed
        The pass.
    """

    def __init__(self, timed: TimedPass) -> None:
        self._timed = timed
        program = timed.program
        self._streams = np.unique(program.stream).tolist()
        self._iterations = timed.iterations()
        self._joined = threading.Barrier(len(self._streams))
        self._changed = threading.Condition()
        self._waiting = 0  # lanes that wait for an operation of another
        self._under_way: dict[int, int] = {}  # lane: the operation that it waits in
        self._error: RankError | None = None
        self._begin = 0

    def run(self) -> None:
        """Go through the program; the times are in the timed.

        Raises
        ------
        RankError
            If a rank does not answer.
        """
        timed = self._timed
        count = len(timed.program)
        ready = timed.binder.launches(0, count) if count <= PREPARED else None
        threads = [
            threading.Thread(target=self._lane, args=(s, ready), daemon=True)
            for s in self._streams
        ]
        timed.meet()
        self._begin = time.monotonic_ns()
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive() and self._error is None:
                thread.join(_LOOK_S)
                timed.alive(time.monotonic_ns())
        if self._error is not None:
            # lanes in operations end when those do; nothing here waits for them
            raise self._error
        timed.done = count

    def _lane(self, stream: int, ready: list[Launch] | None) -> None:
        completion = CompletionThread(self._ended, self._fail)
        n = -1
        try:
            for begin, end in self._iterations:
                places = begin + np.flatnonzero(
                    self._timed.program.stream[begin:end] == stream
                )
                for first in range(0, len(places), BLOCK):
                    part = places[first : first + BLOCK].tolist()
                    if ready is None:
                        launches = [self._timed.binder.launch(p) for p in part]
                    else:
                        launches = [ready[p] for p in part]
                    for n, launch in zip(part, launches, strict=True):
                        self._one(stream, n, launch, completion)
                completion.drain()
                self._check()
                self._joined.wait()
        except (_Stopped, threading.BrokenBarrierError):
            return
        except RuntimeError as error:
            self._fail(n, error)
        finally:
            completion.stop()

    def _one(
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
        self._enter(stream, n)
        timed.issue[n] = time.monotonic_ns()
        work = launch()
        if program.waits[n]:
            if work is not None:
                work.wait()
            self._ended(n, time.monotonic_ns())
        else:
            completion.take(n, work)
        self._leave(stream)

    # ---- between lanes -------------------------------------------------------------

    def _ended(self, n: int, now_ns: int) -> None:
        self._timed.end[n] = now_ns
        self._timed.done += 1
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
                self._changed.wait(_LOOK_S)
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

    # ---- supervision: the first of the operations under way ------------------------

    def _enter(self, stream: int, n: int) -> None:
        self._under_way[stream] = n
        self._count()

    def _leave(self, stream: int) -> None:
        n = self._under_way.pop(stream)
        if self._under_way:
            self._count()
        else:
            self._timed.counter[0] = self._timed.base + 2 * n + 2

    def _count(self) -> None:
        first = min(self._under_way.copy().values(), default=0)
        self._timed.counter[0] = self._timed.base + 2 * first + 1

"""Timed pass on the host: a tight chain, or an event loop where operations overlap.

The chain is benchmarked against a bare loop over torch's collectives, so it does
nothing but call, wait and read the clock twice: closures are bound beforehand, times go
into preallocated arrays, and supervision is a counter in shared memory.

The event loop is one thread, too.  Futures of operations that end put their number and
time into a queue; the loop issues what is due, and waits for the queue or for the next
due time.  It keeps the rules of :mod:`.plan.program`; in open loop it issues in program
order at the due times, whether or not others have ended.
"""

from __future__ import annotations

import gc
import queue
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
from torch.futures import collect_all

from moetraffic.launch.board import ALIVE_NS, own
from moetraffic.trace.model import UNKNOWN_TIME

from .failure import RankError, backend_error, backend_errors
from .pace import SPIN_NS, Pace, wait_until
from .plan.program import UNKNOWN_GAP, Timing
from .transport import Bound

MOST_IN_FLIGHT = 1024
"""Largest number of operations in flight; issuing more waits."""

POLL_S = 0.1


class TimedPass:
    """State of one timed pass: closures, times and signs of life.

    ``passed`` operations were counted in earlier passes of this rank.
    """

    def __init__(self, bound: Bound, pace: Pace, passed: int = 0) -> None:
        self.bound, self.pace = bound, pace
        self.plan, self.program = bound.plan, bound.program
        self.counter = own().counter
        self.base = 2 * passed  # value of the counter when the pass begins
        shape = 3, len(self.program)
        self.issue, self.end, self.due = np.full(shape, UNKNOWN_TIME, np.int64)
        self.done = 0  # operations that have ended

    def begin(self) -> None:
        """Prepare the operations, and wait until all ranks have done so."""
        self.bound.prepare()
        with backend_errors(self.program.rank, "the start of the timed pass"):
            self.bound.transport.barrier()

    def iterations(self) -> list[tuple[int, int]]:
        """Return the half-open range of program indices of each iteration."""
        when = self.plan.iteration[self.program.operation]
        edges = np.flatnonzero(np.diff(when, prepend=when[:1] - 1, append=-1))
        return list(pairwise(edges.tolist()))

    def due_ns(self, n: int, begin_ns: int) -> int:
        """Return when the n-th operation is due, and record it; 0: at once.

        What it waits for has ended.
        """
        wait_ns = self.pace.waits_ns(self.program, n)
        if wait_ns == UNKNOWN_GAP:
            return 0
        after = int(self.program.after[n])
        absolute = self.pace.absolute or after < 0
        self.due[n] = (begin_ns if absolute else int(self.end[after])) + wait_ns
        return int(self.due[n])

    def alive(self) -> None:
        """Give a sign of life, with the number of operations that have ended."""
        own().alive(done=self.base // 2 + self.done)

    def failure(self, n: int, error: RuntimeError) -> RankError:
        """Convert an error of the n-th operation to a RankError that names it."""
        name = self.plan.name(int(self.program.operation[n]))
        return backend_error(self.program.rank, name, error)

    def timing(self) -> Timing:
        """Return the recorded times of all operations of the pass."""
        return Timing(
            operation=self.program.operation,
            issue=self.issue,
            end=self.end,
            due=self.due,
        )


def run(timed: TimedPass, *, overlap: bool = False) -> None:
    """Run a timed pass; its times are in ``timed`` afterwards.

    ``overlap``: by the event loop even if no operations overlap, so that passes with
    and without some of the operations run the same loop.
    """
    collecting = gc.isenabled()
    gc.disable()  # the loops create no reference cycles
    try:
        if timed.pace.absolute or overlap or not timed.program.chained:
            EventLoop(timed).run()
        else:
            _chain(timed)
    finally:
        if collecting:
            gc.enable()
    own().note(done=timed.base // 2 + len(timed.program))


def _chain(timed: TimedPass) -> None:
    launch_of, count = timed.bound.launch, len(timed.program)
    clock, counter = time.monotonic_ns, timed.counter
    issue, end = memoryview(timed.issue), memoryview(timed.end)  # type: ignore[arg-type]
    paced, alive = timed.pace.timed, timed.alive
    timed.begin()
    begin = alive_ns = clock()
    n, position = 0, timed.base + 1
    try:
        for n in range(count):
            launch = launch_of(n)
            if paced:
                wait_until(timed.due_ns(n, begin), alive)
            counter[0] = position
            issue[n] = clock()
            work = launch()
            if work is not None:
                work.wait()
            ended = clock()
            end[n] = ended
            counter[0] = position + 1
            position += 2
            if ended - alive_ns > ALIVE_NS:
                alive_ns, timed.done = ended, n + 1
                alive()
    except RuntimeError as error:
        raise timed.failure(n, error) from error


class EventLoop:
    """Loop that issues the operations of a pass whose operations overlap."""

    def __init__(self, timed: TimedPass) -> None:
        self.timed = timed
        self.open = timed.pace.absolute
        self.ends: queue.SimpleQueue[tuple[int, int, RuntimeError | None]]
        self.ends = queue.SimpleQueue()
        self.waiters: dict[int, ThreadPoolExecutor] = {}  # of works without a future
        self.flying: dict[int, None] = {}  # operations in flight, in order of issue
        self.begin = 0

    def run(self) -> None:
        """Run the pass; its times are in ``timed`` afterwards."""
        timed = self.timed
        count = len(timed.program)
        stretches = [(0, count)] if self.open else timed.iterations()
        timed.begin()
        self.begin = time.monotonic_ns()
        try:
            for begin, end in stretches:
                self._stretch(begin, end)
            while self.flying:
                self._receive(0)
        finally:
            for waiter in self.waiters.values():
                waiter.shutdown(wait=False, cancel_futures=True)

    def _stretch(self, begin: int, end: int) -> None:
        """Run the operations of a range; unless in open loop, until all have ended."""
        timed, program = self.timed, self.timed.program
        number = np.zeros_like(program.stream) if self.open else program.stream
        streams = [
            (begin + np.flatnonzero(number[begin:end] == s)).tolist()[::-1]
            for s in np.unique(number[begin:end])
        ]
        before: dict[int, int] = {}  # what an operation awaits of its stream
        for rows in streams:
            before |= {n: m for n, m in pairwise(rows) if program.waits[m]}

        def held(n: int) -> bool:
            after = int(program.after[n])
            waiting = after >= 0 and timed.end[after] == UNKNOWN_TIME
            return not self.open and (waiting or before.get(n, -1) in self.flying)

        due: dict[int, int] = {}  # of what only waits for its time
        while any(streams) or (self.flying and not self.open):
            issued, soonest = False, 0
            for rows in streams:
                if not rows or len(self.flying) >= MOST_IN_FLIGHT:
                    continue
                n = rows[-1]
                if n not in due:
                    if held(n):
                        continue
                    due[n] = timed.due_ns(n, self.begin)
                if due[n] > time.monotonic_ns():
                    soonest = min(soonest or due[n], due[n])
                    continue
                rows.pop()
                self._issue(n)
                issued = True
            if not issued or not self.ends.empty():
                self._receive(soonest)

    def _issue(self, n: int) -> None:
        """Start an operation; its end comes into the queue, with its time or error."""
        timed, launch = self.timed, self.timed.bound.launch(n)
        self.flying[n] = None
        self._count(n)

        def ended(wait: Callable[[], object]) -> None:
            error = None
            try:
                wait()
            except RuntimeError as raised:
                error = raised
            self.ends.put((n, time.monotonic_ns(), error))

        timed.issue[n] = time.monotonic_ns()
        try:
            work = launch()
        except RuntimeError as error:
            raise timed.failure(n, error) from error
        if work is None:
            ended(lambda: None)
            return
        works: Any = getattr(work, "works", [work])
        try:
            future = collect_all([w.get_future() for w in works])
        except (RuntimeError, AttributeError):  # messages of gloo have none
            stream = int(timed.program.stream[n])
            if stream not in self.waiters:
                self.waiters[stream] = ThreadPoolExecutor(1)
            self.waiters[stream].submit(ended, work.wait)
            return
        future.then(lambda done: ended(done.value))

    def _receive(self, due_ns: int) -> None:
        """Take the ends out of the queue; wait for one, but not beyond a due time.

        0: nothing is due.
        """
        timed, timeout_s = self.timed, POLL_S
        if due_ns:
            left_ns = due_ns - SPIN_NS - time.monotonic_ns()
            timeout_s = min(POLL_S, max(left_ns, 0) / 1e9)
        try:
            while True:
                n, now, error = self.ends.get(timeout_s > 0, timeout_s)
                if error is not None:
                    raise timed.failure(n, error) from error
                timed.end[n] = now
                timed.done += 1
                del self.flying[n]
                self._count(n)
                timeout_s = 0.0  # what has ended meanwhile
        except queue.Empty:
            timed.alive()

    def _count(self, n: int) -> None:
        """Set the counter to the first operation in flight, or behind the n-th."""
        first = min(self.flying, default=-1)
        timed = self.timed
        timed.counter[0] = timed.base + (2 * first + 1 if first >= 0 else 2 * n + 2)

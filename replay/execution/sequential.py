"""Run the operations of one rank one after the other.

The loop for pace ``asap`` is benchmarked against a bare loop over torch's collectives,
so it does nothing but call, wait and read the clock twice: calls are prepared
beforehand, times go into preallocated arrays, and supervision is a counter in shared
memory.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .pace import wait_until
from .timed_pass import HEARTBEAT_EVERY_NS, TimedPass


def run(timed: TimedPass) -> None:
    """Run a timed pass without overlap; its times are in ``timed`` afterwards.

    Raises
    ------
    RankError
        If another rank does not respond.
    """
    with _without_garbage_collection():
        if timed.pace.timed:
            _paced(timed)
        else:
            _asap(timed)
    timed.done = len(timed.program)


def _asap(timed: TimedPass) -> None:
    launches = timed.launches()
    clock, counter = time.monotonic_ns, timed.counter
    issue, end = memoryview(timed.issue), memoryview(timed.end)  # type: ignore[arg-type]
    timed.barrier()
    n, count, heartbeat_ns = 0, timed.base + 1, clock()
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
    launches = timed.launches()
    clock, counter, gaps = time.monotonic_ns, timed.counter, timed.pace.gaps
    issue, end, due = timed.issue, timed.end, timed.due
    after = timed.program.after
    timed.barrier()
    n, begin = 0, clock()
    try:
        for launch in launches:
            waited = int(after[n])
            since = int(end[waited]) if waited >= 0 else begin
            due[n] = until = timed.due_after(n, since)
            wait_until(until, gaps, timed.alive)
            counter[0] = timed.base + 2 * n + 1
            issue[n] = clock()
            work = launch()
            if work is not None:
                work.wait()
            ended = clock()
            end[n] = ended
            counter[0] = timed.base + 2 * n + 2
            n += 1
            timed.done = n
            timed.alive(ended)
    except RuntimeError as error:
        raise timed.failure(n, error) from error


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector: the timed loops create no reference cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()

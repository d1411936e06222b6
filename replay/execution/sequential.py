"""A program in which each operation waits for the one before: one after the other.

The loop for ``asap`` is what is compared with a bare loop over torch's collectives, so
it does no more than such a loop and take two times: calls are made beforehand, times
go into arrays that are there, supervision is a number in shared memory.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

from moetraffic.replay.backends.backend import Launch
from moetraffic.replay.scratch_file import release

from .pace import wait_until
from .timed_pass import BEAT_EVERY_NS, BLOCK, PREPARED, TimedPass


def run(timed: TimedPass) -> None:
    """Go through the program; the times are in the timed.

    Raises
    ------
    RankError
        If a rank does not answer.
    """
    with _undisturbed():
        if timed.pace.timed:
            _paced(timed)
        else:
            _asap(timed)
    timed.done = len(timed.program)


def _asap(timed: TimedPass) -> None:
    prepared = blocks(timed)
    launches = next(prepared, [])
    clock, counter = time.monotonic_ns, timed.counter
    issue, end = memoryview(timed.issue), memoryview(timed.end)  # type: ignore[arg-type]
    timed.meet()
    n, count, beat_ns = 0, timed.base + 1, clock()
    try:
        while launches:
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
                if ended - beat_ns > BEAT_EVERY_NS:
                    beat_ns, timed.done = ended, n
                    timed.beat()
            launches = next(prepared, [])
    except RuntimeError as error:
        raise timed.failure(n, error) from error


def _paced(timed: TimedPass) -> None:
    prepared = blocks(timed)
    launches = next(prepared, [])
    clock, counter, gaps = time.monotonic_ns, timed.counter, timed.pace.gaps
    issue, end, due = timed.issue, timed.end, timed.due
    after = timed.program.after
    timed.meet()
    n, begin = 0, clock()
    try:
        while launches:
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
            launches = next(prepared, [])
    except RuntimeError as error:
        raise timed.failure(n, error) from error


def blocks(timed: TimedPass) -> Iterator[list[Launch]]:
    """What starts the operations: all of them, or block by block in a long program."""
    count = len(timed.program)
    step = count if count <= PREPARED else BLOCK
    for begin in range(0, count, max(step, 1)):
        yield timed.binder.launches(begin, min(begin + step, count))
        if step < count:
            release(timed.issue)
            release(timed.end)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No garbage is collected meanwhile: nothing here makes cycles."""
    there = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if there:
            gc.enable()

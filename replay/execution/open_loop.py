"""Issue every operation at its captured time, whatever has ended by then."""

from __future__ import annotations

import time

import numpy as np

from moetraffic.replay.failure import RankError
from moetraffic.replay.plan.program import UNKNOWN_GAP

from .completion_thread import CompletionThread
from .pace import wait_until
from .sequential import blocks
from .timed_pass import TimedPass


def run(timed: TimedPass) -> None:
    """Go through the program; the times are in the timed.

    What was added beside the trace has no time: it is issued when its turn comes.

    Raises
    ------
    RankError
        If a rank does not answer.
    """
    program, clock = timed.program, time.monotonic_ns
    errors: list[RankError] = []

    def ended(n: int, now_ns: int) -> None:
        timed.end[n] = now_ns
        timed.done += 1

    def failed(n: int, error: RuntimeError) -> None:
        errors.append(timed.failure(n, error))

    threads = {
        s: CompletionThread(ended, failed) for s in np.unique(program.stream).tolist()
    }
    launches = blocks(timed)
    ready = next(launches, [])
    timed.meet()
    n, begin = 0, clock()
    try:
        while ready:
            for launch in ready:
                if program.due_ns[n] != UNKNOWN_GAP:
                    timed.due[n] = begin + program.due_ns[n]
                    wait_until(int(timed.due[n]), timed.pace.gaps, timed.alive)
                timed.counter[0] = timed.base + 2 * n + 1
                timed.issue[n] = now = clock()
                threads[int(program.stream[n])].take(n, launch())
                timed.counter[0] = timed.base + 2 * n + 2
                n += 1
                timed.alive(now)
                if errors:
                    raise errors[0]
            ready = next(launches, [])
    except RuntimeError as error:
        raise timed.failure(n, error) from error
    for completion in threads.values():
        completion.drain()
        completion.stop()
    if errors:
        raise errors[0]

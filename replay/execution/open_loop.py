"""Issue every operation at its captured time, whether or not others have ended."""

from __future__ import annotations

import time

import numpy as np

from moetraffic.replay.failure import RankError
from moetraffic.replay.plan.program import UNKNOWN_GAP

from .completion_thread import CompletionThread
from .pace import wait_until
from .timed_pass import TimedPass


def run(timed: TimedPass) -> None:
    """Run a timed pass in open loop; its times are in ``timed`` afterwards.

    Operations that the trace does not have (background traffic) have no captured time:
    they are issued in program order, without waiting.

    Raises
    ------
    RankError
        If another rank does not respond.
    """
    program, clock = timed.program, time.monotonic_ns
    errors: list[RankError] = []

    def failed(n: int, error: RuntimeError) -> None:
        errors.append(timed.failure(n, error))

    streams = np.unique(program.stream).tolist()
    threads = {s: CompletionThread(timed.ended, failed) for s in streams}
    launches = timed.launches()
    timed.barrier()
    n, begin = 0, clock()
    try:
        for n, launch in enumerate(launches):
            if program.due_ns[n] != UNKNOWN_GAP:
                timed.due[n] = begin + program.due_ns[n]
                wait_until(int(timed.due[n]), timed.pace.gaps, timed.alive)
            timed.counter[0] = timed.base + 2 * n + 1
            timed.issue[n] = now = clock()
            threads[int(program.stream[n])].wait_for(n, launch())
            timed.counter[0] = timed.base + 2 * n + 2
            timed.alive(now)
            if errors:
                raise errors[0]
    except RuntimeError as error:
        raise timed.failure(n, error) from error
    for thread in threads.values():
        thread.drain()
        thread.stop()
    if errors:
        raise errors[0]

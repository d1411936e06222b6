"""Issue every operation at its captured time, whatever has ended by then."""

from __future__ import annotations

import time

import numpy as np

from moetraffic.replay.failure import RankError
from moetraffic.replay.plan.program import UNKNOWN_GAP

from .pace import wait_until
from .reaper import Reaper
from .sequential import blocks
from .timed_pass import TimedPass


def run(course: TimedPass) -> None:
    """Go through the program; the times are in the course.

    What was added beside the trace has no time: it is issued when its turn comes.

    Raises
    ------
    RankError
        If a rank does not answer.
    """
    program, clock = course.program, time.monotonic_ns
    errors: list[RankError] = []

    def ended(n: int, now_ns: int) -> None:
        course.end[n] = now_ns
        course.done += 1

    def failed(n: int, error: RuntimeError) -> None:
        errors.append(course.failure(n, error))

    reapers = {s: Reaper(ended, failed) for s in np.unique(program.stream).tolist()}
    launches = blocks(course)
    ready = next(launches, [])
    course.meet()
    n, begin = 0, clock()
    try:
        while ready:
            for launch in ready:
                if program.due_ns[n] != UNKNOWN_GAP:
                    course.due[n] = begin + program.due_ns[n]
                    wait_until(int(course.due[n]), course.pace.gaps, course.alive)
                course.counter[0] = course.base + 2 * n + 1
                course.issue[n] = now = clock()
                reapers[int(program.stream[n])].take(n, launch())
                course.counter[0] = course.base + 2 * n + 2
                n += 1
                course.alive(now)
                if errors:
                    raise errors[0]
            ready = next(launches, [])
    except RuntimeError as error:
        raise course.failure(n, error) from error
    for reaper in reapers.values():
        reaper.drain()
        reaper.stop()
    if errors:
        raise errors[0]

"""A captured run of two ranks whose times are replaced by known ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moetraffic.data import path
from moetraffic.trace import ALL_TO_ALL, UNKNOWN_TIME, Trace
from tests.timed import with_times

MS = 1_000_000


def clocked(pause_after: int = 99, pause_ns: int = 0) -> Trace:
    """Steps of 10 ms: layer 1 dispatches at 3 ms and combines at 6 ms, for 2 ms each.

    After an iteration, which is an evaluation then, training may pause.
    """
    trace = Trace.open(path("golden.h5"))
    calls = [
        trace.find(operation=ALL_TO_ALL, phase=phase, layer=1, slot=0)
        for phase in ("dispatch", "combine")
    ]
    trace = trace.select(np.sort(np.concatenate(calls)))
    combines = np.array([site.phase == "combine" for site in trace.sites])
    at = np.where(combines[trace.occurrences.site], 6, 3) * MS
    at += later(trace.occurrences.iteration, pause_after, pause_ns)
    begin, end = ({2: np.repeat(t[:, None], 2, axis=1)} for t in (at, at + 2 * MS))
    steps = trace.steps
    marks = later(steps.iteration, pause_after, pause_ns)
    start = np.repeat(marks[:, None], 2, axis=1)
    kinds = ["evaluation" if i == pause_after else "train" for i in steps.iteration]
    return with_times(
        trace,
        {"issue": begin, "start": begin, "end": end},
        steps=replace(steps, kind=tuple(kinds), start=start, end=start + 10 * MS),
        clocks=trace.clocks[:0],
    )


def later(iteration: np.ndarray, pause_after: int, pause_ns: int) -> np.ndarray:
    """Return the begins of iterations, ns."""
    begin = iteration.astype(np.int64) * 10 * MS
    return np.asarray(begin + np.where(iteration > pause_after, pause_ns, 0), np.int64)


def silent() -> Trace:
    """The run without times."""
    trace = clocked()
    never = {2: np.full((len(trace.occurrences), 2), UNKNOWN_TIME)}
    return with_times(trace, dict.fromkeys(("issue", "start", "end"), never))

"""Apply the measures to a trace: what can be computed is, the rest says why not.

Two stages.  *Observation* reads the file once, window by window, and keeps a row an
iteration (:mod:`.observation`).  *Conclusion* computes from the rows what needs the
whole run (:mod:`.conclusion`).  Only the first meets the size of the trace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.trace import Trace

from .beats import Beats, beats
from .conclusion import Subject, conclude
from .exchange import OF, Source, read, sources, windows
from .observation import Rows, joined, observe

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

Mapper = Callable[[Source, Sequence[range]], Iterator[Rows]]
"""Yields the rows of windows of an exchange, in their order."""

Tick = Callable[[int, str], None]


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """The statistics of one layer's expert exchange on one process group."""

    layer: int
    group: int
    phase: str  # of its wire
    ranks: tuple[int, ...]
    iterations: Int64  # [T] those whose records are whole
    left_out: int  # iterations in which a rank's record is missing
    subjects: tuple[Subject, ...]


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """Everything that was computed of a trace."""

    exchanges: tuple[Exchange, ...]
    beats: Beats  # the on-off rhythm of phases, layers and ranks
    notes: tuple[str, ...] = ()  # what could not be computed, and why


def analyze(
    trace: Trace,
    *,
    layers: Sequence[int] | None = None,
    phase: str = "dispatch",
    iterations: range | None = None,
    of: Sequence[str] = OF,
    threads: int = 2,
    mapper: Mapper | None = None,
    tick: Tick | None = None,
) -> Analysis:
    """Compute skew, rhythm, predictability and convergence of a trace.

    Micro-batches of a step are summed.  Demand is what the router wanted; wire is what
    a phase, dispatch unless another is asked for, sent between different ranks.

    Parameters
    ----------
    trace
        Captured, imported, generated or replayed.
    layers
        MoE layers to look at; all if None.
    phase
        Whose wire is looked at: one of :data:`moetraffic.trace.PHASES`.
    iterations
        Training iterations to look at; all if None.
    of
        "demand", "wire" or both.
    threads
        That read and compute.  Results do not depend on it.
    mapper
        Who computes the rows of windows; None: threads of this process.
    tick
        Told of every window that was read: how many so far, and of which exchange.

    Returns
    -------
    Analysis

    Raises
    ------
    AnalysisError
        If the trace has no such layer or phase, or none of the iterations.
    TraceError
        If the file is damaged.
    """
    notes: list[str] = []
    every = sources(
        trace, notes, layers=layers, phase=phase, iterations=iterations, of=of
    )
    exchanges, done = [], 0
    for source in every:
        parts = []
        cut = windows(source)
        rows = (mapper or in_threads(trace, threads))(source, cut)
        for part in rows:
            parts.append(part)
            done += 1
            if tick is not None:
                tick(done, source.where)
        exchanges.append(
            Exchange(
                layer=source.layer,
                group=source.group,
                phase=source.phase,
                ranks=source.ranks,
                iterations=source.iterations,
                left_out=source.left_out,
                subjects=conclude(source, joined(parts), trace.meta, notes),
            )
        )
    told = beats(trace, layers=layers, iterations=iterations)
    notes += told.notes
    return Analysis(
        exchanges=tuple(exchanges),
        beats=told,
        notes=tuple(dict.fromkeys(notes)),
    )


def effort(
    trace: Trace,
    *,
    layers: Sequence[int] | None = None,
    phase: str = "dispatch",
    iterations: range | None = None,
    of: Sequence[str] = OF,
) -> int:
    """Windows that :func:`analyze` will read, for a progress bar."""
    every = sources(trace, [], layers=layers, phase=phase, iterations=iterations, of=of)
    return sum(len(windows(source)) for source in every)


def observed(trace: Trace, source: Source, *, threads: int = 2) -> Rows:
    """The rows of all iterations of an exchange.

    Parameters
    ----------
    trace
        Where it is.
    source
        Which exchange.
    threads
        That read and compute; results do not depend on it.

    Returns
    -------
    Rows
        As :func:`.observation.observe` says.
    """
    return joined(list(in_threads(trace, threads)(source, windows(source))))


def in_threads(trace: Trace, threads: int) -> Mapper:
    """Have threads of this process compute rows; few windows are in memory."""

    def rows(source: Source, parts: Sequence[range]) -> Iterator[Rows]:
        def work(window: range) -> Rows:
            return observe(source, read(trace, source, window))

        if threads <= 1 or len(parts) <= 1:
            yield from map(work, parts)
            return
        with ThreadPoolExecutor(threads) as pool:
            waiting: deque[Future[Rows]] = deque()
            for part in parts:
                waiting.append(pool.submit(work, part))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    return rows

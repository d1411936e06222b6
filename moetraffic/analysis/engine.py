"""Apply the measures to a trace: what can be computed is, the rest says why not.

Two stages.  *Observation* reads the file once, window by window, and keeps a row an
iteration (:mod:`.observation`).  *Conclusion* computes from the rows what needs the
whole run (:mod:`.conclusion`).  Only the first meets the size of the trace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from moetraffic.trace import ALL_TO_ALL, UNKNOWN_TIME, Trace

from .conclusion import Subject, conclude
from .exchange import OF, Source, read, sources, windows
from .observation import Rows, joined, observe
from .rhythm import Rhythm, rhythm

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

BINS_A_STEP = 32  # of the on-off series in which the period is sought

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
    rhythms: Mapping[int, Rhythm]  # of each world rank's all-to-alls
    rhythm_of: str = ""  # which all-to-alls these are, in words
    notes: tuple[str, ...] = field(default=())  # what could not be computed, and why


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
    chosen = trace.layers if layers is None else tuple(layers)
    found, about = on_the_wire(trace, chosen, iterations)
    return Analysis(
        exchanges=tuple(exchanges),
        rhythms=_rhythms(trace, found, notes),
        rhythm_of=about,
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


def on_the_wire(
    trace: Trace, layers: Sequence[int], iterations: range | None
) -> tuple[Int64, str]:
    """All-to-alls whose rhythm is told, and which these are, in words.

    Those with a phase where the program names any; counts that are exchanged before a
    dispatch, and calls without a name, are then no part of it.
    """
    found = trace.complete(trace.find(operation=ALL_TO_ALL, iterations=iterations))
    site = trace.occurrences.site[found]
    named = np.array([bool(s.phase) and s.layer in layers for s in trace.sites], bool)
    if not layers or not named.any():
        return found, "all all-to-alls"
    mine = named[site]
    others = sorted(
        {
            trace.sites[s].label or trace.sites[s].phase or "without a name"
            for s in np.unique(site[~mine])
        }
    )
    left = int((~mine).sum())
    about = "all-to-alls with a phase, layers " + ", ".join(map(str, layers))
    if left:
        about += f"; {left} others are left out ({', '.join(others)})"
    return found[mine], about


def _rhythms(trace: Trace, found: Int64, notes: list[str]) -> dict[int, Rhythm]:
    """The on-off pattern of each rank's all-to-alls.

    A rank counts as sending from when the last member has issued the all-to-all (or
    from its known start) until it ended there: before that, it waits.
    """
    spans: dict[int, list[tuple[Int64, Int64]]] = {}
    sizes = np.array([trace.size(int(o)) for o in found], np.int64)
    for width in np.unique(sizes):
        of = found[sizes == width]
        issue, start, end = trace.times(of)
        begin = np.where(start != UNKNOWN_TIME, start, issue.max(axis=1, keepdims=True))
        known = (issue != UNKNOWN_TIME).all(axis=1, keepdims=True)
        known = known & (end != UNKNOWN_TIME)
        members = trace.members(of)
        for rank in np.unique(members):
            mine = (members == rank) & known
            # another rank's clock may be off by its error: nothing ends before it began
            first, last = begin[mine], end[mine]
            if len(first):
                spans.setdefault(int(rank), []).append((np.minimum(first, last), last))
    if not spans:
        notes.append("no rhythm: the trace has no all-to-all whose times are known")
    return {
        rank: rank_rhythm(
            np.concatenate([first for first, _ in parts]),
            np.concatenate([last for _, last in parts]),
            step_ns(trace, rank),
        )
        for rank, parts in sorted(spans.items())
    }


def rank_rhythm(first: Int64, last: Int64, step_ns: float) -> Rhythm:
    """A rank's on-off pattern; where steps are marked, the period is sought near them.

    Over a whole run, iteration times wander so far that any lag may win by chance.
    """
    if not np.isfinite(step_ns):
        return rhythm(first, last)
    return rhythm(
        first,
        last,
        bin_ns=step_ns / BINS_A_STEP,
        period_range_ns=(0.5 * step_ns, 1.5 * step_ns),
    )


def step_ns(trace: Trace, rank: int) -> float:
    """Median length of a rank's training steps, ns; NaN where it is not known."""
    steps = trace.steps
    train = np.array([kind == "train" for kind in steps.kind], bool)
    start, end = steps.start[train, rank], steps.end[train, rank]
    known = (start != UNKNOWN_TIME) & (end != UNKNOWN_TIME) & (end > start)
    lengths = (end - start)[known]
    return float(np.median(lengths)) if len(lengths) >= 4 else float("nan")

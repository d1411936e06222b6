"""Compute all statistics of a trace; notes give the reason for missing ones.

Two stages.  *Observation* reads the file once, window by window, and keeps a row an
iteration (:mod:`.observation`).  *Conclusion* computes from the rows what needs the
whole run (:mod:`.conclusion`).  Only the first meets the size of the trace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.convergence.convergence import Convergence
from moetraffic.analysis.forecast.forecasting import HORIZONS
from moetraffic.analysis.forecast.lead_time import LeadTimes, leads
from moetraffic.analysis.forecast.within_iteration import (
    WithinIteration,
    within_iteration,
)
from moetraffic.analysis.network.complexity import Complexity
from moetraffic.analysis.rhythm.source_statistics import OnOffStatistics, beats
from moetraffic.analysis.times.time_breakdown import TimeBreakdown, occupation
from moetraffic.errors import AnalysisError
from moetraffic.tables import ShownAsTables
from moetraffic.trace import Trace

from .conclusion import PARTS, Subject, conclude, converged, sent_tokens
from .exchange import OF, Rows, Source, Window, read, sources, windows
from .network_statistics import NetworkStatistics, network, packet_complexity
from .observation import joined, observe

if TYPE_CHECKING:
    import pandas

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

Mapper = Callable[[Source, Sequence[range]], Iterator[Rows]]
"""Yields the rows of windows of an exchange, in their order."""

Watch = Callable[[Source, Window, Rows], None]
"""Is shown each window that was read, and its rows."""

MOST_TIMES = 1 << 24
"""Calls times ranks whose times are held at once, for what ranks' time went into."""

Tick = Callable[[int, str], None]


@dataclass(frozen=True, kw_only=True)
class ExchangeAnalysis:
    """Statistics of one layer's expert exchange on one process group."""

    layer: int
    group: int
    phase: str  # of its wire
    ranks: tuple[int, ...]
    iterations: Int64  # [T] those whose records are whole
    left_out: int  # iterations in which a rank's record is missing
    subjects: tuple[Subject, ...]
    convergence: Convergence | None  # of loads and matrix, side by side
    complexity: Complexity | None  # of the packets between ranks
    network: NetworkStatistics | None  # tiers and flows


@dataclass(frozen=True, kw_only=True)
class Analysis(ShownAsTables):
    """All statistics of a trace."""

    exchanges: tuple[ExchangeAnalysis, ...]
    beats: OnOffStatistics  # the on-off rhythm of phases, layers and ranks
    leads: LeadTimes  # where exchanges stand in an iteration
    sights: tuple[
        WithinIteration, ...
    ]  # what an iteration's first dispatch tells of later ones
    occupation: TimeBreakdown | None = None  # what ranks' time went into
    notes: tuple[str, ...] = ()  # what could not be computed, and why

    def to_frame(self, *, file: str = "") -> pandas.DataFrame:
        """Tidy data frame: one row a figure, and an iteration for statistics over time.

        Parameters
        ----------
        file
            Value of the column ``file``, to tell several analyses apart.

        Returns
        -------
        pandas.DataFrame
            With the columns of :class:`moetraffic.analysis.records.Record`.

        Examples
        --------
        >>> from moetraffic.data import path
        >>> with Trace.open(path("golden-v1.h5")) as trace:
        ...     frame = analyze(trace, parts=["skew"]).to_frame()
        >>> cv = frame[(frame.subject == "expert_load") & (frame.statistic == "cv")]
        >>> cv[["layer", "iteration", "value", "floor"]].shape[1]
        4
        """
        import pandas

        from .records import COLUMNS, records

        return pandas.DataFrame(map(vars, records(self, file=file)), columns=COLUMNS)


def analyze(
    trace: Trace,
    *,
    layers: Sequence[int] | None = None,
    phase: str = "dispatch",
    iterations: range | None = None,
    of: Sequence[str] = OF,
    parts: Sequence[str] = PARTS,
    horizons: Sequence[int] = HORIZONS,
    rhythm_by: Sequence[str] = ("phase", "layer", "rank"),
    threads: int = 2,
    mapper: Mapper | None = None,
    tick: Tick | None = None,
) -> Analysis:
    """Compute skew, rhythm, predictability, complexity and convergence of a trace.

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
    parts
        Some of :data:`PARTS`.
    horizons
        Iterations ahead, of the forecasts.
    rhythm_by
        Some of :data:`moetraffic.analysis.rhythm.source_statistics.SOURCES`.
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
        If the trace has no such layer, phase or part, or none of the iterations.
    TraceError
        If the file is damaged.
    """
    _refuse_unknown(parts)
    notes: list[str] = []
    every = sources(
        trace, notes, layers=layers, phase=phase, iterations=iterations, of=of
    )
    when = leads(trace, iterations=iterations)
    followed = bool({"forecasts", "limits", "convergence"} & set(parts))
    by = mapper or in_threads(trace, threads, cells=followed)
    exchanges: list[ExchangeAnalysis] = []
    first: Rows = {}
    later: dict[str, npt.NDArray[np.generic]] = {}
    early: dict[str, float] = {}
    done = 0
    for source in every:
        gathered = []
        computed = by(source, windows(source))
        for part in computed:
            gathered.append(part)
            done += 1
            if tick is not None:
                tick(done, source.where)
        rows = joined(gathered)
        exchanges.append(
            ExchangeAnalysis(
                layer=source.layer,
                group=source.group,
                phase=source.phase,
                ranks=source.ranks,
                iterations=source.iterations,
                left_out=source.left_out,
                subjects=conclude(
                    source,
                    rows,
                    trace.meta,
                    notes,
                    parts=parts,
                    horizons=horizons,
                    leads=when,
                ),
                convergence=(
                    converged(source, rows, trace.meta)
                    if "convergence" in parts
                    else None
                ),
                complexity=(
                    packet_complexity(trace, source, notes)
                    if "complexity" in parts
                    else None
                ),
                network=(
                    network(
                        source,
                        rows,
                        tokens=sent_tokens(source, rows, trace.meta),
                        k=trace.meta.k,
                    )
                    if "skew" in parts
                    else None
                ),
            )
        )
        if "within" in parts:
            _gather(source, rows, every[0], first, later, early, when)
    told = (
        beats(trace, by=rhythm_by, layers=layers, iterations=iterations)
        if "rhythm" in parts
        else OnOffStatistics(about="", found=(), notes=())
    )
    notes += told.notes
    spent: TimeBreakdown | None = None
    if "occupation" in parts:
        spent = _occupation(trace, iterations, notes)
    return Analysis(
        exchanges=tuple(exchanges),
        beats=told,
        leads=when,
        sights=within_iteration(first["load"], later, lead_s=early) if later else (),
        occupation=spent,
        notes=tuple(dict.fromkeys(notes)),
    )


def _occupation(
    trace: Trace, iterations: range | None, notes: list[str]
) -> TimeBreakdown | None:
    """What ranks' time went into; None, and a note, where it cannot be told."""
    if trace.meta.virtual:
        notes.append(
            "no occupation: the trace is virtual, one process computed for all ranks"
        )
        return None
    found = trace.find(iterations=iterations, kind=None)
    if len(found) * trace.meta.world > MOST_TIMES:
        notes.append(
            f"no occupation: the times of {len(found)} calls of {trace.meta.world} "
            "ranks are too many to hold, choose fewer iterations"
        )
        return None
    try:
        return occupation(trace, iterations=iterations)
    except AnalysisError as error:
        notes.append(f"no occupation: {error}")
        return None


def _refuse_unknown(parts: Sequence[str]) -> None:
    if unknown := sorted(set(parts) - set(PARTS)):
        raise AnalysisError(
            f"an analysis consists of {', '.join(PARTS)}, but {', '.join(unknown)} is "
            "none of these: choose among them"
        )


def _gather(
    source: Source,
    rows: Rows,
    start: Source,
    first: Rows,
    later: dict[str, npt.NDArray[np.generic]],
    early: dict[str, float],
    when: LeadTimes,
) -> None:
    """Keep the loads of the first exchange, and of later layers on the same ranks."""
    name = "demand.load" if "demand.load" in rows else "wire.received"
    if name not in rows or source.group != start.group:
        return
    if source is start:
        first["load"] = rows[name]
    elif "load" in first and np.array_equal(source.iterations, start.iterations):
        target = f"layer {source.layer}"
        later[target] = rows[name]
        early[target] = when.between(
            (start.layer, start.phase), (source.layer, source.phase)
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


def observed(
    trace: Trace,
    source: Source,
    *,
    threads: int = 2,
    cells: bool = True,
    tick: Tick | None = None,
) -> Rows:
    """The rows of all iterations of an exchange.

    Parameters
    ----------
    trace
        Where it is.
    source
        Which exchange.
    threads
        That read and compute; results do not depend on it.
    cells
        Whether cells are followed through time, as forecasts of matrices need it.
    tick
        Told of every window that was read: how many so far, and of which exchange.

    Returns
    -------
    Rows
        As :func:`.observation.observe` says.
    """
    parts: list[Rows] = []
    for part in in_threads(trace, threads, cells=cells)(source, windows(source)):
        parts.append(part)
        if tick is not None:
            tick(len(parts), source.where)
    return joined(parts)


def in_threads(
    trace: Trace, threads: int, *, watch: Watch | None = None, cells: bool = True
) -> Mapper:
    """Have threads of this process compute rows; few windows are in memory.

    Parameters
    ----------
    trace
        That is read.
    threads
        How many.
    watch
        Shown every window with its rows, by several threads at once and in any order:
        who wants to keep some of it need not read it again.
    cells
        Whether cells are followed through time.
    """

    def rows(source: Source, parts: Sequence[range]) -> Iterator[Rows]:
        def work(window: range) -> Rows:
            seen = read(trace, source, window)
            found = observe(source, seen, cells=cells)
            if watch is not None:
                watch(source, seen, found)
            return found

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

"""Compute all statistics of a trace; notes give the reason for missing ones.

There are two stages.  *Observation* reads the file once, window by window, and keeps
one row per iteration (:mod:`.observation`).  *Conclusion* computes statistics of the
whole run from the rows (:mod:`.conclusion`).
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
from moetraffic.analysis.forecast.lead_time import LeadTimes, lead_times
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
"""Function that yields the rows of windows of an exchange, in order."""

Watch = Callable[[Source, Window, Rows], None]
"""Callback that receives each window read and its rows."""

MOST_TIMES = 1 << 24
"""Maximum number of calls times ranks of a time breakdown, to bound memory."""

Tick = Callable[[int, str], None]


@dataclass(frozen=True, kw_only=True)
class ExchangeAnalysis:
    """Statistics of one layer's expert exchange on one process group."""

    layer: int
    group: int
    phase: str  # whose bytes are the wire matrix
    ranks: tuple[int, ...]
    iterations: Int64  # [T] iterations with complete records
    left_out: int  # iterations in which a rank's record is missing
    subjects: tuple[Subject, ...]
    convergence: Convergence | None  # of loads and matrix
    complexity: Complexity | None  # of the packets between ranks
    network: NetworkStatistics | None  # tiers and flows


@dataclass(frozen=True, kw_only=True)
class Analysis(ShownAsTables):
    """Result of an analysis: all statistics of a trace."""

    exchanges: tuple[ExchangeAnalysis, ...]
    beats: OnOffStatistics  # on-off statistics of phases, layers and ranks
    leads: LeadTimes  # times of exchanges within an iteration
    sights: tuple[
        WithinIteration, ...
    ]  # forecasts of later traffic from an iteration's first dispatch
    occupation: TimeBreakdown | None = None  # time breakdown of ranks
    notes: tuple[str, ...] = ()  # reasons for missing statistics

    def to_frame(self, *, file: str = "") -> pandas.DataFrame:
        """Convert to a tidy data frame with one row per value (and iteration).

        Parameters
        ----------
        file
            Value of the column ``file``, to distinguish several analyses.

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

    Micro-batches of a step are summed.  Demand is the token copies the router assigned;
    wire is the bytes sent between different ranks in one phase, by default dispatch.

    Parameters
    ----------
    trace
        Captured, imported, generated or replayed.
    layers
        MoE layers to analyze; all if None.
    phase
        Phase of the wire matrices: one of :data:`moetraffic.trace.PHASES`.
    iterations
        Training iterations to analyze; all if None.
    of
        "demand", "wire" or both.
    parts
        Some of :data:`PARTS`.
    horizons
        Forecast horizons, iterations.
    rhythm_by
        Some of :data:`moetraffic.analysis.rhythm.source_statistics.SOURCES`.
    threads
        Number of threads that read and compute; results do not depend on it.
    mapper
        Function that computes the rows of windows; None: threads of this process.
    tick
        Progress callback: number of windows read so far, and the exchange.

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
    when = lead_times(trace, iterations=iterations)
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
    """Compute the time breakdown of the ranks; None, with a note, if unavailable."""
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
    """Collect the loads of the first exchange and of later layers on the same ranks."""
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
    """Count the windows that :func:`analyze` will read, for a progress bar."""
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
    """Read an exchange and compute the rows of all its iterations.

    Parameters
    ----------
    trace
        Trace with the exchange.
    source
        Exchange to read.
    threads
        Number of threads that read and compute; results do not depend on it.
    cells
        Whether cells are tracked over time, as forecasts of matrices require.
    tick
        Progress callback: number of windows read so far, and the exchange.

    Returns
    -------
    Rows
        As from :func:`.observation.observe`.
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
    """Create a mapper that computes rows in threads, with few windows in memory.

    Parameters
    ----------
    trace
        Trace to read.
    threads
        Number of threads.
    watch
        Callback that receives every window with its rows, from several threads at once
        and in any order.
    cells
        Whether cells are tracked over time.
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

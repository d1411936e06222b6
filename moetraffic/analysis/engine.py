"""Compute all statistics of a trace; notes give the reason for missing ones.

There are two stages.  *Observation* reads the file once, window by window, and keeps
one row per iteration (:mod:`.observation`).  *Conclusion* computes statistics of the
whole run from the rows (:mod:`.conclusion`).

Exchanges are independent of each other, and so is the rhythm of the run: two of them
are computed at a time, in threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from moetraffic.analysis.claim import Claim
from moetraffic.analysis.forecast.lead_time import LeadTimes, lead_times
from moetraffic.analysis.forecast.origins import check_horizons
from moetraffic.analysis.forecast.within_iteration import (
    WithinIteration,
    within_iteration,
)
from moetraffic.analysis.rhythm.source_claims import rank_claims
from moetraffic.analysis.rhythm.source_statistics import (
    OnOffStatistics,
    beats,
    validate_sources,
)
from moetraffic.analysis.times.time_breakdown import TimeBreakdown, time_breakdown
from moetraffic.errors import AnalysisError
from moetraffic.tables import ShownAsTables
from moetraffic.trace import UNKNOWN_TIME, Trace
from moetraffic.trace.iterations import (
    iteration_range,
    layer_numbers,
    names,
    numbers,
    regular_stretch,
)

from .conclusion import (
    PARTS,
    ExchangeAnalysis,
    conclude,
    converged,
    load_levels,
    tokens_of,
    unchanging,
)
from .exchange import (
    OF,
    Source,
    elapsed,
    new_iterations,
    sources,
    stated_tokens,
    windows,
)
from .exchange_claims import exchange_claims
from .expert_statistics import expert_statistics
from .mapper import Mapper, in_threads, observed
from .network_statistics import network, packet_complexity
from .omissions import demand_remarks, omitted_calls, unnamed_exchanges
from .records import frame, records
from .skew.capacity import load_figures
from .token_choices import token_choices

if TYPE_CHECKING:
    import pandas

SUMMARY_PARTS = ("claims", "time-breakdown")
"""Parts that the summary of an analysis consists of."""

STAGES = ("forecasts", "convergence", "complexity", "claims")
"""Parts of an exchange that progress is reported of; others are quick or with these."""

RUN_STAGES = ("rhythm", "within", "time-breakdown")
"""Parts of the whole run that progress is reported of."""

CONSECUTIVE = ("limits", "rhythm")
"""Parts that need consecutive iterations."""

ALL_CALLS = ("rhythm", "time-breakdown")
"""Parts that need the records of all calls of the analyzed iterations."""

AT_ONCE = 2
"""Maximum number of exchanges computed at a time, to bound memory."""

MOST_TIMES = 1 << 24
"""Maximum number of calls times ranks of a time breakdown, to bound memory."""

Tick = Callable[[int, str], None]
Loads = tuple[Source, npt.NDArray[np.generic] | None]


@dataclass(frozen=True, kw_only=True)
class Analysis(ShownAsTables):
    """Result of an analysis: all statistics of a trace."""

    exchanges: tuple[ExchangeAnalysis, ...]
    beats: OnOffStatistics  # on-off statistics of phases, layers and ranks
    leads: LeadTimes  # times of exchanges within an iteration
    sights: tuple[WithinIteration, ...]  # of later traffic, from the first dispatch
    occupation: TimeBreakdown | None = None  # time breakdown of ranks
    notes: tuple[str, ...] = ()  # reasons for missing statistics
    contradiction: str = ""  # where the rows that were sent contradict the routing
    gaps: str = ""  # which iterations statistics over time are of, if some are missing
    omitted: str = ""  # calls that ranks could not record, and how many; "": none
    unnamed: int = 0  # uneven all-to-alls of unknown layer, where no exchange is known
    origin: str = "captured"  # of the trace, as in its metadata

    @property
    def claims(self) -> tuple[Claim, ...]:
        """All conclusions about the run: of each exchange, then of the bursts."""
        return (*(c for e in self.exchanges for c in e.claims), *self.beats.claims)

    def to_frame(self, *, file: str = "") -> pandas.DataFrame:
        """Convert to a tidy data frame with one row per value (and iteration).

        Parameters
        ----------
        file
            Value of the column ``file``, to distinguish several analyses.

        Returns
        -------
        pandas.DataFrame
            With the columns of :class:`moetraffic.analysis.records.Record`, and the
            notes of the analysis in ``attrs["notes"]``.

        Warns
        -----
        UserWarning
            If there is no row, with the reason.

        Examples
        --------
        >>> from moetraffic.data import path
        >>> with Trace.open(path("golden.h5")) as trace:
        ...     frame = analyze(trace, parts=["skew"]).to_frame()
        >>> cv = frame[(frame.subject == "expert_load") & (frame.statistic == "cv")]
        >>> cv[["layer", "iteration", "value", "floor"]].shape[1]
        4
        """
        found = records(
            self.exchanges, self.beats, self.occupation, self.sights, file=file
        )
        return frame(found, self.notes)


def analyze(
    trace: Trace | str | Path,
    *,
    layers: Sequence[int] | str | int | None = None,
    phase: str = "dispatch",
    iterations: range | str | None = None,
    of: Sequence[str] | str = OF,
    parts: Sequence[str] | str = PARTS,
    horizons: Sequence[int] | str | int | None = None,
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
        Captured, imported, generated or replayed; or the path of its file.
    layers
        MoE layers to analyze, such as ``[1, 3]`` or ``"1,3:6"``; all if None.
    phase
        Phase of the wire matrices: one of :data:`moetraffic.trace.PHASES`.
    iterations
        Training iterations to analyze, a range or ``"10:20"``; all if None.
    of, parts
        "demand", "wire" or both; some of :data:`PARTS`.
    horizons
        Forecast horizons, iterations, such as ``[1, 10]`` or ``"1,10"``; None: those of
        :data:`~.HORIZONS` that the run is long enough for.
    rhythm_by
        Some of :data:`moetraffic.analysis.rhythm.source_statistics.SOURCES`.
    threads
        Number of threads that read and compute; results do not depend on it.
    mapper
        Function that computes the rows of windows; None: threads of this process.
    tick
        Progress callback: number of windows read and stages begun so far
        (:func:`effort` in all), and the exchange and part.

    Raises
    ------
    AnalysisError
        If the trace has no such layer, phase or part, or none of the iterations.
    TraceError
        If the file is damaged.
    """
    trace, of, parts = Trace.open(trace), names(of), names(parts)
    ahead = numbers(horizons, "horizons")
    layers, iterations = layer_numbers(layers), iteration_range(iterations)
    if unknown := sorted(set(parts) - set(PARTS)):
        raise AnalysisError(
            f"parts are {', '.join(PARTS)}, not {', '.join(unknown)}: choose among them"
        )
    validate_sources(rhythm_by)
    notes, omitted = demand_remarks(trace), omitted_calls(trace)
    if omitted:  # what depends on the times of all calls would be false
        lost = [part for part in ALL_CALLS if part in parts]
        lost += ["claims about the bursts of a rank"] * ("claims" in parts)
        notes += [f"no {part}: {omitted}" for part in lost]
        parts = tuple(part for part in parts if part not in ALL_CALLS)
    parts = consecutive_parts(trace, parts, notes)
    chosen: dict[str, Any] = {"layers": layers, "phase": phase, "of": of}
    every = sources(trace, notes, iterations=iterations, **chosen)
    missing = gaps(every)
    notes += missing
    spans = [len(each.iterations) * each.regular[1] for each in every]
    check_horizons(ahead, max(spans, default=0))
    iterations = new_iterations(trace, iterations, [])
    when = lead_times(trace, iterations=iterations)
    followed = bool({"claims", "forecasts", "limits", "convergence"} & set(parts))
    # the summary needs loads alone: of the demand if known, else of the wire
    light = mapper is None and set(parts) <= set(SUMMARY_PARTS)
    if light:
        every = [replace(s, sent=s.sent[:0]) if len(s.routed) else s for s in every]
    workers = 1 if mapper else max(1, min(threads, AT_ONCE, len(every)))
    mapper = mapper or in_threads(
        trace, threads // workers, cells=followed, loads_only=light
    )
    progress = _Progress(tick)

    def begin(part: str, where: str = "") -> None:
        progress.report(", ".join([where] * bool(where) + [part] * (part in parts)))

    def exchange(source: Source) -> tuple[ExchangeAnalysis, Loads, list[str]]:
        """Compute all parts of an exchange, its loads and its notes."""
        remarks: list[str] = []
        rows = observed(source, mapper, report=progress.report)
        rows |= stated_tokens(trace, source)
        begin("forecasts", source.where)
        levels = load_levels(rows) if {"claims", "limits"} & set(parts) else None
        subjects = conclude(
            source,
            rows,
            trace.meta,
            remarks,
            parts=parts,
            horizons=ahead,
            leads=when,
            levels=levels,
        )
        convergence = packets = statistics = experts = choices = None
        begin("convergence", source.where)
        if "convergence" in parts:
            convergence = converged(source, rows, trace.meta)
        begin("complexity", source.where)
        if "complexity" in parts:
            packets = packet_complexity(trace, source, remarks)
        claims: tuple[Claim, ...] = ()
        begin("claims", source.where)
        if {"claims", "skew"} & set(parts):
            choices = token_choices(trace, source)
        if "claims" in parts:
            claims = exchange_claims(source, rows, trace.meta, subjects, levels)
            claims += () if choices is None else choices.claims
        if "skew" in parts:
            statistics = network(source, rows)
            tokens = tokens_of(source, rows, trace.meta, [])
            experts = expert_statistics(
                source, rows, trace.meta, tokens=tokens, choices=choices
            )
        found = ExchangeAnalysis(
            layer=source.layer,
            group=source.group,
            phase=source.phase,
            ranks=source.ranks,
            iterations=source.iterations,
            left_out=source.left_out,
            subjects=subjects,
            convergence=convergence,
            complexity=packets,
            network=statistics,
            experts=experts,
            claims=claims,
            figures=load_figures(rows) if {"claims", "skew"} & set(parts) else None,
            unchanging=unchanging(source, rows),
        )
        load = rows.get("demand.load", rows.get("wire.received"))
        return found, (source, load), remarks

    def bursts() -> OnOffStatistics:
        begin("rhythm")
        found = OnOffStatistics(about="", found=(), notes=())
        if "rhythm" in parts:
            found = beats(trace, by=rhythm_by, layers=layers, iterations=iterations)
        if "claims" in parts and not omitted:
            claims = rank_claims(trace, layers=layers, iterations=iterations)
            found = replace(found, claims=claims)
        return found

    # the threads of a linear algebra library would wait for each other's cores
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(workers) as pool:
        try:
            each = [pool.submit(exchange, source) for source in every]
            rhythm = pool.submit(bursts)
            done = [future.result() for future in each]
            found = rhythm.result()
        except BaseException:
            progress.stopped = True
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        notes += [note for *_, remarks in done for note in remarks]
        notes += found.notes
        begin("within")
        sights = _within([n for _, n, _ in done], when) if "within" in parts else ()
    begin("time-breakdown")
    spent = _breakdown(trace, iterations, notes) if "time-breakdown" in parts else None
    return Analysis(
        exchanges=tuple(one for one, *_ in done),
        beats=found,
        leads=when,
        sights=sights,
        occupation=spent,
        notes=tuple(dict.fromkeys(notes)),
        contradiction=trace.meta.contradiction,
        omitted=omitted,
        gaps="; ".join(missing),
        unnamed=0 if every else unnamed_exchanges(trace),
        origin=trace.meta.origin,
    )


class _Progress:
    """Progress that several threads report."""

    def __init__(self, tick: Tick | None) -> None:
        self.stopped = False  # set to end the threads at their next report
        self._tick, self._done, self._lock = tick, count(1), Lock()

    def report(self, note: str) -> None:
        with self._lock:
            if self.stopped:
                raise CancelledError
            if self._tick is not None:
                self._tick(next(self._done), note)


def consecutive_parts(
    trace: Trace, parts: Sequence[str], notes: list[str]
) -> tuple[str, ...]:
    """Leave out the parts that need consecutive iterations, with a note."""
    _, spacing = regular_stretch(elapsed(trace, trace.iterations))
    if spacing == 1:
        return tuple(parts)
    left = [part for part in parts if part in CONSECUTIVE]
    if left:
        notes.append(
            f"{', '.join(left)} unavailable: they need consecutive iterations, but "
            f"only one of {spacing} iterations is recorded"
        )
    return tuple(part for part in parts if part not in CONSECUTIVE)


def gaps(every: Sequence[Source]) -> list[str]:
    """Note which iterations statistics over time are of, where some are missing."""
    found = []
    for source in every:
        stretch, spacing = source.regular
        used = source.iterations[stretch]
        if len(used) < len(source.iterations):
            found.append(
                "iterations are missing in between: forecasts and half-lives are of "
                f"the longest part without a gap, {used[0]} to {used[-1]} "
                f"({len(used)} of {len(source.iterations)} iterations)"
            )
        if spacing > 1:
            found.append(
                f"one of {spacing} iterations is recorded: forecasts are {spacing} "
                "iterations ahead, or a multiple"
            )
    return list(dict.fromkeys(found))


def _within(loads: list[Loads], when: LeadTimes) -> tuple[WithinIteration, ...]:
    """Forecast loads of later layers on the first exchange's ranks from its load."""
    first = loads[0][1] if loads else None
    if first is None:
        return ()
    start, later, lead_s = loads[0][0], {}, {}
    for source, load in loads[1:]:
        same = np.array_equal(source.iterations, start.iterations)
        if load is not None and source.group == start.group and same:
            target = f"layer {source.layer}"
            later[target] = load
            lead_s[target] = when.between(
                (start.layer, start.phase), (source.layer, source.phase)
            )
    return within_iteration(first, later, lead_s=lead_s) if later else ()


def _breakdown(
    trace: Trace, iterations: range | None, notes: list[str]
) -> TimeBreakdown | None:
    """Compute the time breakdown of the ranks; None, with a note, if unavailable."""
    if trace.meta.virtual:
        notes.append("no time-breakdown: the trace is virtual: no time was measured")
        return None
    origin, starts = trace.meta.origin, trace.steps.start
    if origin != "captured" and (starts == UNKNOWN_TIME).all():
        notes.append(f"no time-breakdown: the {origin} run has no times of its steps")
        return None
    found = trace.find(iterations=iterations, kind=None)
    if len(found) * trace.meta.world > MOST_TIMES:
        notes.append(
            f"no time-breakdown: the times of {len(found)} calls of {trace.meta.world} "
            "ranks are too many to hold, choose fewer iterations"
        )
        return None
    try:
        return time_breakdown(trace, iterations=iterations)
    except AnalysisError as error:
        notes.append(f"no time-breakdown: {error}")
        return None


def effort(
    trace: Trace,
    *,
    layers: Sequence[int] | None = None,
    phase: str = "dispatch",
    iterations: range | None = None,
    of: Sequence[str] = OF,
    stages: bool = True,
) -> int:
    """Count the windows that :func:`analyze` will read, for a progress bar.

    With ``stages``, those of the computation count, too.
    """
    every = sources(trace, [], layers=layers, phase=phase, iterations=iterations, of=of)
    number = sum(len(windows(source)) for source in every)
    return number + stages * (len(STAGES) * len(every) + len(RUN_STAGES))

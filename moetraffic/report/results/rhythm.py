"""Report the use of time: timeline, spectrum, bursts, breakdown of training steps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.analysis import Analysis, SourceStatistics
from moetraffic.analysis.rhythm.spectrum import Spectrum, spectra
from moetraffic.analysis.times.call_times import timed
from moetraffic.analysis.times.time_breakdown import TimeBreakdown
from moetraffic.report.chart import (
    OTHER_COLOR,
    PHASE_COLORS,
    Axis,
    Chart,
    Missing,
    Panel,
    Rule,
    Series,
    line_colors,
)
from moetraffic.tables import Table
from moetraffic.trace import ALL_TO_ALL, ROUTING, UNKNOWN_TIME, Trace
from moetraffic.units import duration

SHOWN = 3  # iterations in the timeline
MOST_BARS = 6000
MOST_ROWS = 64
MOST_SOURCES = 24

OTHERS = "other communication"
"""Name of all but the all-to-alls of a phase in the timeline."""

TIME_PARTS = (
    ("compute only", "#0072B2"),
    ("overlapped", "#009E73"),
    ("transfer only", "#D55E00"),
    ("waiting for late ranks", "#BBBBBB"),
)
"""Parts of the step time in drawing order, with Okabe and Ito's colors."""

TIME_TITLE = "Time breakdown of a training step"

_ORDER = (0, 2, 1, 3)  # columns of TimeBreakdown.shares


def calls(
    trace: Trace,
    chosen: range,
    *,
    layers: Collection[int] | None = None,
    phase: str | None = None,
) -> list[npt.NDArray[Any]]:
    """List starts and ends [ns of rank 0's clock], ranks and names of calls.

    All-to-alls have the name of their phase, all others :data:`OTHERS`; the latter are
    left out if ``layers`` or a ``phase`` are chosen.
    """
    found = trace.complete(trace.find(iterations=chosen))
    phases = np.array(
        [(s.operation == ALL_TO_ALL and s.phase) or OTHERS for s in trace.sites], object
    )
    wanted = [
        site.operation != ROUTING
        and (layers is None or (site.layer in layers and name != OTHERS))
        and phase in (None, name)
        for site, name in zip(trace.sites, phases, strict=True)
    ]
    found = found[np.array(wanted, bool)[trace.occurrences.site[found]]]
    parts: list[list[npt.NDArray[Any]]] = [[np.zeros(0, np.int64)] * 4]
    for part in timed(trace, found, with_wire=False):
        phase_of = phases[trace.occurrences.site[part.occurrence]][:, None]
        names = np.broadcast_to(phase_of, part.end.shape)
        every = (part.begin, part.end, part.ranks, names)
        parts.append([e[part.known] for e in every])
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def _in_a_row(when: npt.NDArray[np.int64]) -> range:
    """Return a range of SHOWN iterations near the middle, of training if possible."""
    if not len(when):
        return range(SHOWN)
    first = when[: max(1, len(when) - SHOWN + 1)]
    last = when[min(SHOWN, len(when)) - 1 :]
    apart = np.abs(np.arange(len(first)) - (len(when) // 2 - 1))
    at = int(np.lexsort((apart, last - first))[0])
    return range(int(first[at]), int(first[at]) + SHOWN)


def timeline(
    trace: Trace,
    *,
    source: str = "",
    reason: str = "",
    layers: Collection[int] | None = None,
    phase: str | None = None,
) -> Chart | Missing:
    """Draw each rank's calls as bars over time, all-to-alls colored by phase.

    ``layers`` and ``phase`` select all-to-alls (None: all calls). ``reason`` explains
    why the trace has no times, if known.
    """
    some = layers is not None or phase is not None
    title = f"On-off timeline of {'all-to-alls' if some else 'all communication'}"
    chosen = _in_a_row(trace.iterations)
    start, end, rank, phases = calls(trace, chosen, layers=layers, phase=phase)
    if not len(start):
        return Missing(title=title, reason=reason or UNTIMED)
    begins = {
        int(i): int(t)
        for i, t in zip(trace.steps.iteration, trace.steps.start[:, 0], strict=True)
        if i in chosen and t != UNKNOWN_TIME
    }
    ranks = np.unique(rank)
    each = -(-len(ranks) // MOST_ROWS)
    shown = np.isin(rank, ranks[::each])
    note = f" One of every {each} ranks is drawn." if each > 1 else ""
    if shown.sum() > MOST_BARS:
        # later calls are omitted
        shown &= start <= np.sort(start[shown])[MOST_BARS - 1]
        note += f" The first {MOST_BARS} calls are drawn."
    origin = min([int(start[shown].min()), *begins.values()])
    series = []
    for name in dict.fromkeys([OTHERS, *PHASE_COLORS, *sorted(set(phases[shown]))]):
        mine = shown & (phases == name)
        if not mine.any():
            continue
        series.append(
            Series(
                kind="bars",
                x=(end[mine] - start[mine]) / 1e6,
                y=rank[mine],
                base=(start[mine] - origin) / 1e6,
                name=name,
                color=PHASE_COLORS.get(name, OTHER_COLOR),
                width=0.74 * each,
                hover="rank %{y}<br>at %{base:.3f} ms, for %{x:.3f} ms",
            )
        )
    rules = tuple(
        Rule(x=(begin - origin) / 1e6, text=f"{'' if n else 'iteration '}{i}")
        for n, (i, begin) in enumerate(begins.items())
    )
    about = (
        "From when the last rank has issued the call until it has ended on the rank; "
        "times on rank 0's clock. Dotted lines: starts of iterations."
    )
    return Chart(
        key="timeline",
        title=title,
        source=f"{source}. {about}{note}" if source else f"{about}{note}",
        columns=("length [ms]", "rank", "begin [ms]"),
        panels=(
            Panel(
                x=Axis(label=f"time{', all-to-alls only' * some} [ms]"),
                y=Axis(label="rank", reverse=True),
                series=tuple(series),
                rules=rules,
            ),
        ),
        height=int(np.clip(190 + 30 * len(ranks[::each]), 260, 620)),
        width=1200,
    )


def spectrum(trace: Trace, analysis: Analysis) -> Chart | Missing:
    """Draw the power spectrum of the on-off series of phases and ranks."""
    title = "Spectrum of the on-off pattern"
    found, reason = spectra(trace)
    if not found:
        return Missing(title=title, reason=reason)
    periods = {b.name: b.rhythm.period_ns for b in analysis.beats.found}
    one = found[0]
    return Chart(
        key="spectrum",
        title=title,
        source="Fourier power of the on-off series, 32 bins an iteration, averaged "
        f"over {one.windows} overlapping windows (Welch), as a share of all but the "
        f"mean. Iteration time {duration(1 / one.step_hz)}, the median of rank 0.",
        columns=("frequency [1/s]", "share of the power"),
        choices=("source",),
        panels=tuple(
            _spectrum([s for s in found if s.by == kind], kind, periods)
            for kind in dict.fromkeys(s.by for s in found)
        ),
    )


def _spectrum(found: list[Spectrum], kind: str, periods: dict[str, float]) -> Panel:
    own = [
        f"{s.name}: {duration(periods[s.name] / 1e9)}"
        for s in found
        if np.isfinite(periods.get(s.name, np.nan))
    ]
    return Panel(
        name=(kind,),
        x=Axis(label="frequency [1/s]"),
        y=Axis(label="share of the power [%]", from_zero=True),
        series=tuple(
            Series(
                x=s.frequency_hz,
                y=100 * s.share,
                name=s.name,
                color=PHASE_COLORS.get(s.name.removeprefix("phase "), color),
                width=1.2,
            )
            for s, color in zip(found, line_colors(len(found)), strict=True)
        ),
        rules=(Rule(x=found[0].step_hz, text="once per iteration"),),
        note=f"Periods: {', '.join(own)}." if own else "",
    )


def statistics_tables(
    analysis: Analysis, *, most: int = MOST_SOURCES
) -> list[Table | Missing]:
    """Tabulate duty cycle, bursts, periodicity and step time by source."""
    title = "On-off statistics"
    every = analysis.beats.found
    if not every:
        return [Missing(title=title, reason=why_no_times(analysis))]
    on_off, periods = [], []
    for one in every[:most]:
        r, name = one.rhythm, _named(one)
        bursts = (r.duty, r.bursts, r.burst_ns / 1e9, r.burst_cv)
        on_off.append((name, *bursts, r.gap_ns / 1e9, r.gap_cv, r.peak_to_mean))
        stationary = r.length_stationarity.p if r.length_stationarity else None
        period = (r.period_ns / 1e9, r.acf, r.cycle_ns / 1e9)
        periods.append((name, *period, r.likeness, r.jitter, stationary))
    more = len(every) - len(on_off)
    about = analysis.beats.about
    return [
        Table(
            title=title,
            columns={
                **{"source": "", "duty cycle": ".1%", "bursts": "", "mean burst": "s"},
                **{"CV of bursts": ".2f", "mean gap": "s", "CV of gaps": ".2f"},
                "peak/mean": ".1f",
            },
            rows=on_off,
            notes=[
                *([f"{about[:1].upper()}{about[1:]}."] if about else []),
                *([f"{more} more: moetraffic analyze --json"] if more > 0 else []),
            ],
        ),
        Table(
            title="Periodicity",
            columns={
                **{"source": "", "period": "s", "autocorrelation at the period": ".2f"},
                **{"cycle time": "s", "cycle-to-cycle correlation": ".2f"},
                **{"jitter": ".1%", "stationarity p-value": ".2g"},
            },
            rows=periods,
            notes=[
                "Period: only where bursts in random order or at random places of the "
                "steps would not show it. Jitter: CV of all steps."
            ],
        ),
        *_step_times(every, most),
    ]


def _named(one: SourceStatistics) -> str:
    return one.name if one.by in one.name else f"{one.by} {one.name}"


def _step_times(every: Sequence[SourceStatistics], most: int) -> list[Table]:
    """Tabulate step times: of each rank where steps are marked, else of each source."""
    rows: dict[str, tuple[object, ...]] = {}
    marked = all(one.rhythm.marked for one in every)
    for one in sorted(every, key=lambda one: marked and one.by != "rank"):
        if (t := one.rhythm.step_time) is not None:
            name = f"rank {one.ranks[0]}" if marked else _named(one)
            lengths = (t.p50_ns, t.p90_ns, t.p99_ns, t.max_ns)
            tail = (t.tail_index, t.tail_index_low, t.tail_index_high)
            row = (name, t.steps, *(x / 1e9 for x in lengths), t.cv, *tail)
            rows.setdefault(name, row)
    table = Table(
        title="Time from step start to step start"
        if marked
        else "Time from an iteration's first burst to the next one's",
        columns={
            **{"source": "", "steps": "", "p50": "s", "p90": "s", "p99": "s"},
            **{"max": "s", "CV": ".1%", "tail index": ".2f"},
            **{"95% low": ".2f", "95% high": ".2f"},
        },
        rows=[*rows.values()][:most],
    )
    return [table] if rows else []


UNTIMED = "the trace has no times of its calls (capture or replay it on real ranks)"


def why_no_times(analysis: Analysis) -> str:
    """Explain why an analysis has no on-off rhythm."""
    notes = [note for note in analysis.beats.notes if "rhythm" in note]
    return "; ".join(notes) or "the times of the all-to-alls are not recorded"


def time_table(found: TimeBreakdown) -> Table:
    """Tabulate the time shares of each rank's training steps."""
    names = [*(name for name, _ in TIME_PARTS), "in collectives"]
    shares = zip(found.shares[:, _ORDER], found.collective_fraction, strict=True)
    return Table(
        title=TIME_TITLE,
        columns={"rank": ""} | dict.fromkeys(names, ".1%"),
        rows=[(rank, *row, total) for rank, (row, total) in enumerate(shares)],
    )


def time_chart(
    found: TimeBreakdown | None, source: str = "", *, reason: str = ""
) -> Chart | Missing:
    """Draw the time shares of each rank's training steps as stacked bars.

    ``reason`` explains why there is no breakdown, if known.
    """
    if found is None or not found.known.any():
        return Missing(title=TIME_TITLE, reason=reason or UNTIMED)
    shares = 100 * np.nan_to_num(found.shares[:, _ORDER])
    ranks = np.arange(len(shares))
    first = found.total[found.known[:, 0], 0]
    length = f"iteration time {duration(np.median(first) / 1e9)}, the median of rank 0"
    base = np.cumsum(shares, axis=1) - shares
    about = (
        f"{len(found.iteration)} training steps{f', {length}' if len(first) else ''}; "
        f"mean of ranks: {np.mean(found.collective_fraction):.1%} of step time in "
        f"collectives, including {np.mean(found.shares[:, 3]):.1%} of step time "
        "waiting for late ranks; "
        "compute inferred from gaps between collectives (no profile)"
    )
    return Chart(
        key="time-breakdown",
        title=TIME_TITLE,
        source=f"{source}; {about}" if source else f"{about}.",
        columns=("share of step time [%]", "rank"),
        panels=(
            Panel(
                x=Axis(label="share of step time [%]", limits=(0, 100)),
                y=Axis(label="rank", reverse=True),
                series=tuple(
                    Series(
                        kind="bars",
                        x=shares[:, part],
                        y=ranks,
                        base=base[:, part],
                        name=name,
                        color=color,
                        width=0.78,
                        hover=f"rank %{{y}}, {name}: %{{x:.1f}} %<extra></extra>",
                    )
                    for part, (name, color) in enumerate(TIME_PARTS)
                    if shares[:, part].any()
                ),
            ),
        ),
        height=int(np.clip(150 + 24 * len(ranks), 240, 560)),
    )

"""When traffic is on: a timeline, its spectrum, what ranks' time went into."""

from __future__ import annotations

import numpy as np

from moetraffic.analysis import Analysis
from moetraffic.analysis.rhythm.spectrum import Spectrum, spectra
from moetraffic.report.figures import OTHER_COLOR, PHASE_COLORS
from moetraffic.report.occupation import PARTS
from moetraffic.report.pictures import ON, calls
from moetraffic.trace import Trace
from moetraffic.units import duration

from .chart import (
    Chart,
    Listed,
    Missing,
    View,
    axes,
    colors,
    line,
    packed,
    upright,
)

MOST_BARS = 6000
MOST_ROWS = 64
MOST_BEATS = 24


def timeline(trace: Trace, analysis: Analysis) -> Chart | Missing:
    """Each rank's all-to-alls as bars, in a few iterations."""
    title = "On-off timeline of the all-to-alls"
    on = calls(trace)
    if not len(on.start):
        return Missing(title=title, reason=_why(analysis))
    ranks = np.unique(on.rank)
    each = -(-len(ranks) // MOST_ROWS)
    shown = np.isin(on.rank, ranks[::each])
    said = f" Every {each} ranks one is drawn." if each > 1 else ""
    if shown.sum() > MOST_BARS:
        # later iterations are left out
        until = np.sort(on.start[shown])[MOST_BARS - 1]
        shown &= on.start <= until
        said += f" The first {MOST_BARS} calls are drawn."
    origin = int(min(on.start[shown].min(), on.marks.min(initial=on.start.min())))
    names = np.array(on.phase, object)
    traces = []
    for phase in (*PHASE_COLORS, *sorted(set(on.phase) - set(PHASE_COLORS))):
        mine = shown & (names == phase)
        if not mine.any():
            continue
        begin = (on.start[mine] - origin) / 1e6
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": phase,
                "base": packed(begin, dtype="f8"),
                "x": packed((on.end[mine] - on.start[mine]) / 1e6),
                "y": packed(on.rank[mine]),
                "width": 0.74 * each,
                "marker": {
                    "color": PHASE_COLORS.get(phase, OTHER_COLOR),
                    # what is shorter than a pixel must not vanish
                    "line": {
                        "color": PHASE_COLORS.get(phase, OTHER_COLOR),
                        "width": 0.5,
                    },
                },
                "hovertemplate": f"{phase}, rank %{{y}}<br>at %{{base:.3f}} ms, for "
                "%{x:.3f} ms<extra></extra>",
            }
        )
    marks = [
        upright((int(m) - origin) / 1e6, f"iteration {i}")
        for m, i in zip(on.marks.tolist(), on.iterations, strict=True)
    ]
    return Chart(
        key="timeline",
        title=title,
        source=f"{ON}; times on rank 0's clock." + said,
        columns=("length [ms]", "rank", "begin [ms]"),
        views=(
            View(
                traces=tuple(traces),
                layout={
                    **axes(
                        "time [ms]",
                        "rank",
                        y_autorange="reversed",
                        y_dtick=max(1, each * (len(ranks) // each // 8)),
                        barmode="overlay",
                        margin={"t": 64},
                        legend={"yref": "container", "y": 0.99, "yanchor": "top"},
                    ),
                    "shapes": [s for s, _ in marks],
                    # above the bars, below the legend
                    "annotations": [
                        {**t, "yanchor": "bottom", "textangle": 0} for _, t in marks
                    ],
                },
            ),
        ),
        height=int(np.clip(190 + 30 * len(ranks[::each]), 260, 620)),
    )


def spectrum(trace: Trace, analysis: Analysis) -> Chart | Missing:
    """At which frequencies phases and ranks are switched on and off."""
    title = "Spectrum of the on-off pattern"
    found, reason = spectra(trace)
    if not found:
        return Missing(title=title, reason=reason)
    kinds = list(dict.fromkeys(s.by for s in found))
    periods = {b.name: b.rhythm.period_ns for b in analysis.beats.found}
    views = [_spectrum([s for s in found if s.by == k], k, periods) for k in kinds]
    one = found[0]
    return Chart(
        key="spectrum",
        title=title,
        source="Fourier power of the on-off series, 32 bins an iteration, averaged "
        f"over {one.windows} overlapping windows (Welch), as a share of all but the "
        f"mean. An iteration takes {duration(1 / one.step_hz)}, the median of rank 0.",
        columns=("frequency [1/s]", "share of the power"),
        choices=("of",),
        views=tuple(views),
    )


def _spectrum(found: list[Spectrum], kind: str, periods: dict[str, float]) -> View:
    traces = [
        line(packed(s.frequency_hz), packed(100 * s.share), s.name, color, width=1.2)
        for s, color in zip(found, colors(len(found)), strict=True)
    ]
    shape, words = upright(found[0].step_hz, "once an iteration")
    own = [
        f"{s.name}: {duration(periods[s.name] / 1e9)}"
        for s in found
        if np.isfinite(periods.get(s.name, np.nan))
    ]
    return View(
        name=(kind,),
        traces=tuple(traces),
        layout={
            **axes("frequency [1/s]", "share of the power [%]", y_rangemode="tozero"),
            "shapes": [shape],
            "annotations": [words],
        },
        aside=f"Periods by autocorrelation: {', '.join(own)}." if own else "",
    )


def beats(analysis: Analysis) -> Listed | Missing:
    """The rhythm of each source in figures."""
    title = "Rhythm in figures"
    found = analysis.beats.found
    if not found:
        return Missing(title=title, reason=_why(analysis))
    rows = []
    for beat in found[:MOST_BEATS]:
        r = beat.rhythm
        rows.append(
            (
                beat.name if beat.by in beat.name else f"{beat.by} {beat.name}",
                _percent(r.duty),
                str(r.bursts),
                duration(r.burst_ns / 1e9),
                duration(r.gap_ns / 1e9),
                duration(r.period_ns / 1e9),
                _number(r.strength),
                _percent(r.jitter),
                _number(r.peak_to_mean),
            )
        )
    more = len(found) - len(rows)
    return Listed(
        key="beats",
        title=title,
        source=f"{analysis.beats.about[:1].upper()}{analysis.beats.about[1:]}. ACF: "
        "autocorrelation at the period."
        + (f" {more} more sources are told by moetraffic analyze." if more else ""),
        head=(
            *("of", "on [%]", "bursts", "mean burst", "mean gap", "period"),
            *("ACF", "jitter [%]", "peak / mean"),
        ),
        rows=tuple(rows),
    )


def occupation(analysis: Analysis) -> Chart | Missing:
    """What the time of each rank's steps went into."""
    title = "What the time of a step goes into"
    spent = analysis.occupation
    if spent is None or not spent.known.any():
        why = "; ".join(n for n in analysis.notes if "occupation" in n)
        return Missing(title=title, reason=why or "the times of calls are not known")
    order = (0, 2, 1, 3)
    ranks = np.arange(spent.shares.shape[0])
    traces = tuple(
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "x": packed(100 * spent.shares[:, at]),
            "y": packed(ranks),
            "marker": {"color": color},
            "hovertemplate": f"rank %{{y}}, {name}: %{{x:.1f}} %<extra></extra>",
        }
        for at, (name, color) in zip(order, PARTS, strict=True)
    )
    how = "told from calls alone" if spent.inferred else "told from kernels"
    return Chart(
        key="occupation",
        title=title,
        source=f"{len(spent.iteration)} training steps, all collectives; compute is "
        f"{how}.",
        columns=("share of the time [%]", "rank"),
        views=(
            View(
                traces=traces,
                layout=axes(
                    "share of the time of training steps [%]",
                    "rank",
                    x_range=[0, 100],
                    y_autorange="reversed",
                    y_dtick=max(1, len(ranks) // 8),
                    barmode="stack",
                ),
            ),
        ),
        height=int(np.clip(150 + 24 * len(ranks), 240, 560)),
    )


def _why(analysis: Analysis) -> str:
    told = [n for n in analysis.beats.notes if "rhythm" in n]
    return "; ".join(told) or "the times of the all-to-alls are not known"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}" if np.isfinite(value) else ""


def _number(value: float) -> str:
    return f"{value:.3g}" if np.isfinite(value) else ""

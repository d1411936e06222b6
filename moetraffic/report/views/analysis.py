"""Charts of an analysis, from the tables of its result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from moetraffic.analysis.evenness import WORST
from moetraffic.columns import COLUMNS, cell_text
from moetraffic.report.chart import (
    LINE_COLORS,
    OTHER_COLOR,
    PHASE_COLORS,
    Axis,
    Chart,
    Label,
    Missing,
    Panel,
    Rule,
    Series,
    in_legend,
    line_colors,
)
from moetraffic.result import Result
from moetraffic.units import duration

from .trace import named

if TYPE_CHECKING:
    import pandas

SMOOTHED = 40
"""Number of windows of the moving mean in a run."""

LONGEST = 1000
"""Maximum points of a line; longer ones are thinned evenly."""

MOST_POINTS = 250_000
"""Maximum points of all lines of a chart; above it, lines are thinned further."""

MOST_MARKED = 4
"""Layers up to which the worst ten iterations of all are marked."""

EVEN = {"entropy": "1: even", "max_mean": "1: even"}
"""What the value of an even load is; others are 0."""

MARKED = {
    ("expert_load", "entropy"): "entropy",
    ("received", "entropy"): "entropy",
    ("expert_load", "max_mean"): "busiest_expert",
    ("received", "max_mean"): "busiest_receiver",
}
"""Measure of the table of stages by subject and measure."""

SCORES = {
    "within_20": "share of bytes in cells forecast within 20% [%]",
    "nmse": "NMSE: MSE over that of the mean of the past",
    "below_last": "MSE below that of the last values [%]",
}
"""Drawn scores of forecasts, and the labels of their axes."""

TIME_PARTS = {
    "compute": ("compute", "#0072B2"),
    "overlapped": ("overlapped", "#009E73"),
    "transfer": ("transfer", "#D55E00"),
    "waiting": ("waiting for late ranks", "#BBBBBB"),
}
"""Shares of a step in drawing order: name and Okabe and Ito's colors."""


def table_of(result: Result, name: str) -> pandas.DataFrame | None:
    """Return a table as a frame; None if it is absent or empty."""
    if name not in result.tables:
        return None
    frame = result.frame(name)
    return frame if len(frame) else None


def _layers(frame: pandas.DataFrame) -> Iterator[tuple[str, pandas.DataFrame]]:
    """Yield the name of each exchange, and its rows."""
    several = frame["group"].nunique() > 1
    for (layer, group), rows in frame.groupby(["layer", "group"], sort=False):
        yield named({"layer": layer, "group": group}, several), rows


def _missing(result: Result, title: str, part: str) -> Missing:
    """State why there is no chart: the note about the part, or a general reason."""
    notes = [note for note in result.notes if f"no {part}" in note]
    reason = "; ".join(notes) or f"the run has too few iterations for {part}"
    return Missing(title=title, reason=reason)


# ---- evenness ------------------------------------------------------------------------


def evenness_chart(result: Result, *, first_screen: bool = False) -> Chart | Missing:
    """Draw the measures of evenness in every iteration beside a balanced router's.

    ``first_screen``: only entropy and busiest expert (or receiver) of the load.
    """
    title = "Evenness of the load beside a balanced router"
    frame = table_of(result, "measures")
    if frame is None:
        return Missing(title=title, reason="; ".join(result.notes) or "no exchange")
    if first_screen:
        loads = [s for s in ("expert_load", "received") if (frame.subject == s).any()]
        frame = frame[
            (frame.subject == loads[0]) & frame.measure.isin(["entropy", "max_mean"])
        ]
    lines = frame.groupby(["subject", "measure", "layer", "group"]).ngroups
    longest = len(frame) // max(1, lines)
    fit = max(16, min(LONGEST, MOST_POINTS // max(1, lines)))
    step = max(1, -(-longest // fit))
    panels = [
        _evenness(result, subject, measure, rows, step)
        for (subject, measure), rows in frame.groupby(
            ["subject", "measure"], sort=False
        )
        if measure != "entropy_bits" and (measure != "zero" or rows.value.any())
    ]
    return Chart(
        key="load" if first_screen else "evenness",
        title=title,
        source="Token copies of experts (without routing, bytes that ranks receive). "
        "Faint lines: each iteration; thick lines: moving mean; dashed: expected of a "
        "balanced router; diamonds: worst mean of ten iterations; circles: last third"
        + (f". One of every {step} iterations" if step > 1 else ""),
        columns=("iteration", "value (dimensionless)"),
        choices=("quantity", "measure"),
        panels=tuple(panels),
        height=300 if first_screen else 380,
        across=2 if first_screen else 1,
        width=1200 if first_screen else 900,
        shared=False,
    )


def _evenness(
    result: Result, subject: str, measure: str, rows: pandas.DataFrame, step: int
) -> Panel:
    heading = COLUMNS[measure].heading
    every = list(_layers(rows))
    stages: dict[str, dict[str, float]] = {}
    frame = table_of(result, "stages")
    if frame is not None and (stage := MARKED.get((subject, measure))):
        own_rows = frame[(frame.measure == stage) & (frame.layer >= 0)]
        stages = {name: own.iloc[0] for name, own in _layers(own_rows)}
    series: list[Series] = []
    labels: list[Label] = []
    worst = (min if measure == "entropy" else max)(
        (mark["worst"] for mark in stages.values()), default=np.nan
    )
    known = [own for _, own in every if own.balanced.notna().any()]
    if known:
        series.append(
            Series(
                x=known[0].iteration.to_numpy()[::step],
                y=known[0].balanced.to_numpy()[::step],
                name="balanced router",
                color=OTHER_COLOR,
                dash="dash",
                reference=True,
            )
        )
    for (name, own), color, legend in zip(
        every, line_colors(len(every)), in_legend(len(every)), strict=True
    ):
        when = own.iteration.to_numpy()
        series.append(
            Series(
                x=when[::step],
                y=own.value.to_numpy()[::step],
                name=name,
                color=color,
                legend=legend,
            )
        )
        if name not in stages:
            continue
        mark, form = stages[name], COLUMNS[measure].format
        if len(every) > MOST_MARKED and mark["worst"] != worst:
            continue
        middle = np.searchsorted(when, mark["worst_at"]) + WORST // 2
        for at, y, symbol in (
            (middle, mark["worst"], "diamond"),
            (-1, mark["late"], "circle"),
        ):
            if np.isfinite(y):
                series.append(
                    Series(
                        kind="points",
                        x=np.array([when[at]]),
                        y=np.array([y]),
                        name=f"{name}, {'last third' if at < 0 else 'worst ten'}",
                        color=color,
                        symbol=symbol,
                        size=9,
                        legend=False,
                        reference=True,
                    )
                )
            if np.isfinite(y) and mark["worst"] == worst:
                labels.append(
                    Label(
                        x=float(when[at]),
                        y=float(y),
                        text=f"  {cell_text(y, form)}  ",
                        across="right" if at < 0 else "left",
                        up="top" if measure == "entropy" else "bottom",
                        color="#000000",
                    )
                )
    return Panel(
        name=(subject.replace("_", " "), heading),
        x=Axis(label="iteration"),
        y=Axis(label=f"{heading} ({EVEN.get(measure, '0: even')})"),
        series=tuple(series),
        labels=tuple(labels),
        smooth=len(every[0][1]) // step // SMOOTHED,
        note="Balanced router: of the first layer." if len(known) > 1 else "",
    )


# ---- forecasts -----------------------------------------------------------------------


def forecast_chart(result: Result) -> Chart | Missing:
    """Draw each forecaster's accuracy at every horizon, for each quantity."""
    title = "Forecast accuracy by horizon"
    frame = table_of(result, "forecasts")
    if frame is None:
        return _missing(result, title, "forecasts")
    panels = []
    for name, own in _layers(frame):
        for subject, rows in own.groupby("subject", sort=False):
            panels += [
                _forecasts(rows, (name, subject.replace("_", " ")), score)
                for score in SCORES
                if rows[score].notna().any()
            ]
    return Chart(
        key="forecasts",
        title=title,
        source="Forecasters are tuned on the middle of the run and tested on its last "
        "quarter. Diamonds: chosen; the last values, if they did better in the test. "
        "Where drawn, bars: 95% intervals; oracle: sampling noise alone",
        columns=("iterations ahead", "value (unit as on the axis)"),
        choices=("layer", "quantity", "score"),
        panels=tuple(panels),
    )


def _forecasts(rows: pandas.DataFrame, name: tuple[str, ...], score: str) -> Panel:
    scale = 1.0 if score == "nmse" else 100.0
    methods = list(dict.fromkeys(rows.method))
    series = []
    for method, color in zip(methods, line_colors(len(methods)), strict=True):
        own = rows[rows.method == method]
        ends = None
        if score != "within_20":
            base = "below_mean" if score == "nmse" else score
            low, high = own[f"{base}_low"].to_numpy(), own[f"{base}_high"].to_numpy()
            ends = (1 - high, 1 - low) if score == "nmse" else (100 * low, 100 * high)
        series.append(
            Series(
                x=own.horizon.astype(str).tolist(),
                y=scale * own[score].to_numpy(),
                name="last values" if method == "persistence" else method,
                color=color,
                dash="dash" if method == "persistence" else "solid",
                marked=True,
                y_interval=ends,
            )
        )
    best = rows[rows.chosen]
    series.append(
        Series(
            kind="points",
            x=best.horizon.astype(str).tolist(),
            y=scale * best[score].to_numpy(),
            name="chosen",
            color="#000000",
            symbol="diamond",
            size=9,
        )
    )
    if score == "nmse" and rows.oracle_nmse.notna().any():
        own = rows.drop_duplicates("horizon")
        series.append(
            Series(
                x=own.horizon.astype(str).tolist(),
                y=own.oracle_nmse.to_numpy(),
                name="oracle",
                color=OTHER_COLOR,
                dash="dot",
                marked=True,
                reference=True,
            )
        )
    return Panel(
        name=(*name, COLUMNS[score].heading if score in COLUMNS else score),
        x=Axis(label="iterations ahead"),
        y=Axis(label=SCORES[score], limits=(0, 101) if score == "within_20" else None),
        series=tuple(series),
    )


def within_chart(result: Result) -> Chart | Missing:
    """Draw how well the first dispatch predicts later layers of its iteration."""
    title = "Prediction of later layers from the first dispatch of an iteration"
    frame = table_of(result, "within")
    if frame is None or not frame.below_past.notna().any():
        return Missing(title=title, reason="at least two MoE layers are needed")
    frame = frame[frame.below_past.notna()]
    points = Series(
        kind="points",
        x=100 * frame.below_past.to_numpy(),
        y=[name for name, _ in _layers(frame)],
        name="95% interval",
        size=10,
        x_interval=(
            100 * frame.below_past_low.to_numpy(),
            100 * frame.below_past_high.to_numpy(),
        ),
    )
    return Chart(
        key="within",
        title=title,
        source="Loads of the first MoE layer as predictors of those of later layers, "
        "in the run's last quarter, beside the best forecast from earlier iterations",
        columns=("MSE below the past's [%]", "layer"),
        panels=(
            Panel(
                x=Axis(label="MSE below that of the forecast from the past [%]"),
                y=Axis(reverse=True),
                series=(points,),
                rules=(Rule(x=0.0),),
            ),
        ),
        height=max(220, 110 + 28 * len(frame)),
    )


# ---- rhythm and times ----------------------------------------------------------------


def spectrum_chart(result: Result) -> Chart | Missing:
    """Draw the power spectrum of the on-off series of phases and ranks."""
    title = "Spectrum of the on-off pattern"
    frame = table_of(result, "spectrum")
    if frame is None:
        return _missing(result, title, "rhythm")
    bursts, steps = table_of(result, "bursts"), table_of(result, "steps")
    assert bursts is not None
    kinds = dict(zip(bursts.source, bursts.by, strict=True))
    periods = dict(zip(bursts.source, bursts.period_ns, strict=True))
    step_ns = np.nan if steps is None else float(steps.step_p50_ns.iloc[0])
    panels = []
    for kind, own in frame.groupby(frame.source.map(kinds).fillna("rank"), sort=False):
        names = list(dict.fromkeys(own.source))
        known = [
            f"{name}: {duration(periods[name] / 1e9)}"
            for name in names
            if np.isfinite(periods.get(name, np.nan))
        ]
        panels.append(
            Panel(
                name=(kind,),
                x=Axis(label="frequency [1/s]"),
                y=Axis(label="share of the power [%]", from_zero=True),
                series=tuple(
                    Series(
                        x=own.frequency_hz[own.source == name].to_numpy(),
                        y=100 * own.power_share[own.source == name].to_numpy(),
                        name=name,
                        color=PHASE_COLORS.get(name.removeprefix("phase "), color),
                        width=1.2,
                    )
                    for name, color in zip(names, line_colors(len(names)), strict=True)
                ),
                rules=(Rule(x=1e9 / step_ns, text="once per iteration"),)
                if np.isfinite(step_ns)
                else (),
                note=f"Periods: {', '.join(known)}." if known else "",
            )
        )
    return Chart(
        key="spectrum",
        title=title,
        source="Fourier power of the on-off series, 32 bins an iteration, averaged "
        "over overlapping windows (Welch), as a share of all but the mean",
        columns=("frequency [1/s]", "share of the power [%]"),
        choices=("by",),
        panels=tuple(panels),
    )


def times_chart(result: Result) -> Chart | Missing:
    """Draw the time shares of each rank's training steps as stacked bars."""
    title = "Time breakdown of a training step"
    frame = table_of(result, "times")
    if frame is None:
        return _missing(result, title, "times")
    values = 100 * frame[list(TIME_PARTS)].to_numpy()
    base = np.cumsum(values, axis=1) - values
    return Chart(
        key="times",
        title=title,
        source="Mean of the training steps of each rank. Compute is inferred from gaps "
        "between collectives (no profile); waiting: until the last rank has issued",
        columns=("share of step time [%]", "rank"),
        panels=(
            Panel(
                x=Axis(label="share of step time [%]", limits=(0, 100)),
                y=Axis(label="rank", reverse=True),
                series=tuple(
                    Series(
                        kind="bars",
                        x=values[:, number],
                        y=frame["rank"].to_numpy(),
                        base=base[:, number],
                        name=name,
                        color=color,
                        width=0.78,
                        hover=f"rank %{{y}}, {name}: %{{x:.1f}} %<extra></extra>",
                    )
                    for number, (name, color) in enumerate(TIME_PARTS.values())
                    if values[:, number].any()
                ),
            ),
        ),
        height=int(np.clip(150 + 24 * len(frame), 240, 560)),
    )


# ---- network -------------------------------------------------------------------------


def complexity_chart(result: Result) -> Chart | Missing:
    """Draw NT, T and T without compressor bias, a row for each layer."""
    title = "Trace complexity"
    frame = table_of(result, "complexity")
    if frame is not None:
        frame = frame[frame.trace_complexity.notna()]
    if frame is None or not len(frame):
        return _missing(result, title, "complexity")
    names = [name for name, _ in _layers(frame)]
    series = []
    for number, (column, name, symbol) in enumerate(
        (
            ("non_temporal", "NT (non-temporal)", "circle"),
            ("temporal", "T (temporal)", "circle"),
            ("temporal_corrected", "T without compressor bias (no bar)", "diamond"),
        )
    ):
        low = frame.get(f"{column}_low", np.nan * frame.temporal)
        high = frame.get(f"{column}_high", np.nan * frame.temporal)
        series.append(
            Series(
                kind="points",
                # a row has one line for each quantity
                x=frame[column].to_numpy(),
                y=np.arange(len(frame)) + (number - 1) / 4,
                name=name,
                color=LINE_COLORS[number],
                symbol=symbol,
                x_interval=(low.to_numpy(), high.to_numpy()),
                hover="%{x:.4f}",
            )
        )
    return Chart(
        key="complexity",
        title=title,
        source=f"{frame.packets.iloc[0]:,} packets between ranks of each layer, each "
        f"of {frame.packet_size.iloc[0]} token copies (bytes, where copies are not "
        "known), in random order within an iteration (Avin et al., SIGMETRICS 2020). "
        "NT = 1: all pairs are equally likely; T = 1: no order in time; bars: 95% over "
        "windows",
        columns=("complexity", "row"),
        panels=(
            Panel(
                x=Axis(label="complexity (1 = random)"),
                y=Axis(names=tuple(names), reverse=True),
                series=tuple(series),
                rules=(Rule(x=1.0),),
            ),
        ),
        height=150 + 40 * len(frame),
    )

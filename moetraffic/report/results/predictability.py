"""Draw forecast accuracy by horizon with its bounds, and the convergence of a run."""

from __future__ import annotations

import numpy as np

from moetraffic.analysis import Analysis, Subject, Trajectory
from moetraffic.analysis.claim import LEVEL
from moetraffic.analysis.forecast.judging import ForecastScore
from moetraffic.arrays import Int64
from moetraffic.report.chart import (
    LINE_COLORS,
    OTHER_COLOR,
    Axis,
    Chart,
    Missing,
    Panel,
    Rule,
    Series,
    line_colors,
)

from .skew import SMOOTHED, every, named, thinned

TOLERANCE = 0.2
"""Relative error for which the share of bytes is drawn."""

MEASURES = {
    "bytes within 20%": "share of bytes in cells forecast to within ±20% [%]",
    "skill": "skill: 1 − NMSE (0 = mean of the past)",
    "NMSE": "NMSE: MSE / MSE of the mean of the past",
}

CONVERGENCE = {
    "distance": "distance from the final shares (0 to 1)",
    "change": "change from the step before (0 to 1)",
    "evenness": "Jain's index without sampling noise (1 = balanced)",
}


def horizons(analysis: Analysis) -> Chart | Missing:
    """Draw every forecaster's accuracy at every horizon, for each quantity."""
    title = "Forecast accuracy by horizon"
    panels, reasons = [], []
    for exchange in analysis.exchanges:
        for subject in exchange.subjects:
            if subject.forecasts is None:
                continue
            verdicts = subject.forecasts.verdicts
            lacking = [v for v in verdicts if v.reason]
            reasons += [f"{v.horizon} ahead: {v.reason}" for v in lacking]
            if len(lacking) == len(verdicts):
                continue
            notes = [
                f"{v.horizon} iterations ahead is unavailable: {v.reason}."
                for v in lacking
            ]
            where = (named(exchange, analysis), subject.name.replace("_", " "))
            panels += [_panel(subject, (*where, m), notes) for m in MEASURES]
    if not panels:
        why = "; ".join(dict.fromkeys(reasons)) or "the trace has no expert exchange"
        return Missing(title=title, reason=why)
    return Chart(
        key="forecasts",
        title=title,
        source="Forecasters are tuned on the middle of the run and tested on its last "
        "quarter. The distance is the age of a plan that the forecast is used for. "
        "Errors and bounds are relative to the MSE of the mean of the past on the test "
        "part. Oracle: true gate probabilities, sampling noise only. Lower bound: of "
        "any linear forecast one iteration ahead, from the spectrum (Kolmogorov). "
        "Bars: 95% intervals.",
        columns=("iterations ahead", "value (unit as on the axis)"),
        choices=("layer", "quantity", "metric"),
        panels=tuple(panels),
        height=420,
    )


def _panel(subject: Subject, name: tuple[str, ...], notes: list[str]) -> Panel:
    assert subject.forecasts is not None
    measure = name[-1]
    found = [h for h in subject.forecasts.horizons if h.scores]
    at = 0
    if found:
        given = np.array(found[0].verdict.tolerances)
        at = int(np.argmin(abs(given - TOLERANCE)))
    forecasters = list(dict.fromkeys(s.forecaster for h in found for s in h.scores))
    series: list[Series] = []
    for forecaster, color in zip(
        forecasters, line_colors(len(forecasters)), strict=True
    ):
        rows = [(h, s) for h in found if (s := h.score(forecaster)) is not None]
        baseline = forecaster == "persistence"
        low, high = ([getattr(s.skill, k) for _, s in rows] for k in ("low", "high"))
        ends = {
            "skill": (low, high),
            "NMSE": ([1 - v for v in high], [1 - v for v in low]),
        }
        series.append(
            Series(
                x=[str(h.horizon) for h, _ in rows],
                y=np.array([_value(s, measure, at) for _, s in rows]),
                name="persistence baseline" if baseline else forecaster,
                color=color,
                dash="dash" if baseline else "solid",
                marked=True,
                size=[11 if h.best == forecaster else 6 for h, _ in rows],
                y_interval=ends.get(measure),
            )
        )
    oracle = np.array([h.nmse_floor for h in found])
    reach = np.array([h.nmse_floor_error for h in found])
    if measure == "skill":
        oracle = 1 - oracle
    elif measure != "NMSE":
        oracle = 100 * np.array([h.verdict.oracle_bound[at] for h in found])
        reach = 100 * np.array([h.verdict.oracle_bound_error[at] for h in found])
    if np.isfinite(oracle).any():
        series.append(
            Series(
                x=[str(h.horizon) for h in found],
                y=oracle,
                name="oracle (true gate probabilities)",
                y_interval=(oracle - 1.96 * reach, oracle + 1.96 * reach),
                color=OTHER_COLOR,
                dash="dot",
                marked=True,
                reference=True,
            )
        )
    limits = subject.limits
    one_ahead = any(h.horizon == 1 for h in found)
    bounded = limits is not None and np.isfinite(limits.nmse)
    if measure == "NMSE" and limits is not None and bounded and one_ahead:
        series.append(
            Series(
                kind="points",
                x=["1"],
                y=[limits.nmse],
                name="lower bound of linear forecasts",
                color="#000000",
                symbol="diamond",
                size=12,
                y_interval=([limits.low], [limits.high]),
            )
        )
    span: tuple[float, float] | None = None
    lowest = min((s.skill.value for h in found for s in h.scores), default=0.0)
    notes = ["Large markers: selected without the last quarter.", *notes]
    if measure == "skill" and lowest < -1:
        span = (-1.05, 1.05)
        notes.insert(1, "Skill below −1 is cut off.")
    elif measure not in ("skill", "NMSE"):
        span = (0, 101)
    return Panel(
        name=name,
        x=Axis(label="iterations ahead"),
        y=Axis(label=MEASURES[measure], limits=span),
        series=tuple(series),
        note=" ".join(notes),
    )


def _value(score: ForecastScore, measure: str, at: int) -> float:
    if measure == "skill":
        return score.skill.value
    return score.nmse if measure == "NMSE" else 100 * score.within[at]


def within(analysis: Analysis) -> Chart | Missing:
    """Draw how well the first dispatch predicts later layers of its iteration."""
    title = "Prediction of later layers from the first dispatch of an iteration"
    found = [s for s in analysis.sights if np.isfinite(s.skill)]
    if not found:
        why = "; ".join(dict.fromkeys(s.reason for s in analysis.sights if s.reason))
        return Missing(title=title, reason=why or "at least two MoE layers are needed")
    points = Series(
        kind="points",
        x=np.array([s.skill for s in found]),
        y=[s.target for s in found],
        name="skill, 95% interval",
        size=10,
        x_interval=([s.skill_low for s in found], [s.skill_high for s in found]),
    )
    return Chart(
        key="within",
        title=title,
        source="Expert loads of the first MoE layer as predictors of those of later "
        f"layers, {found[0].origins} iterations of the run's last quarter. Skill: "
        "1 − MSE / MSE of the best history-based forecaster.",
        columns=("skill (dimensionless)", "target"),
        panels=(
            Panel(
                x=Axis(label="skill over the best history-based forecaster"),
                y=Axis(reverse=True),
                series=(points,),
            ),
        ),
        height=max(220, 110 + 28 * len(found)),
    )


def convergence(analysis: Analysis) -> Chart | Missing:
    """Draw the trajectory of each layer's loads and matrix, with its change points."""
    title = "Convergence and change points"
    found = [(e, e.convergence) for e in analysis.exchanges if e.convergence]
    if not found:
        return Missing(
            title=title, reason="the trace has no routing and no expert exchange"
        )
    step = every(max(len(c.at) for _, c in found), 5 * 2 * len(found))
    return Chart(
        key="convergence",
        title=title,
        source="Total variation of the shares of experts (loads) or of cells (matrix), "
        "of demand where it was observed, else of wire bytes. Gray: expected from "
        "sampling noise. Dotted lines: change points, at which the level of the shares "
        f"changed (p < {LEVEL:g}); orange: converged from here on." + thinned(step),
        columns=("iteration", "value (dimensionless)"),
        choices=("layer", "quantity", "metric"),
        panels=tuple(
            _trajectory(
                both.at, course, measure, step, (named(e, analysis), name, measure)
            )
            for e, both in found
            for name, course in (("loads", both.load), ("matrix", both.cells))
            for measure in CONVERGENCE
        ),
    )


def _trajectory(
    at: Int64,
    course: Trajectory,
    measure: str,
    step: int,
    name: tuple[str, ...],
) -> Panel:
    values = np.asarray(getattr(course, measure), np.float64)[::step]
    series = [Series(x=at[::step], y=values, name=measure)]
    floor = getattr(course, f"{measure}_floor", None)
    if floor is not None:
        series.append(
            Series(
                x=at[::step],
                y=np.asarray(floor, np.float64)[::step],
                name="expected from sampling noise",
                color=OTHER_COLOR,
                width=2.0,
                dash="dash",
                reference=True,
            )
        )
    changes = course.changed_at.tolist()
    # no labels: changes may be close to each other, and are listed in the note
    rules = [Rule(x=float(change)) for change in changes]
    if course.settled_at >= 0 and course.converged:
        settled = float(course.settled_at)
        rules.append(Rule(x=settled, color=LINE_COLORS[1], width=2, dash="solid"))
    why = (course.why[:1].upper() + course.why[1:]).rstrip(".")
    listed = f" Changes at {', '.join(map(str, changes))}." if changes else ""
    return Panel(
        name=name,
        x=Axis(label="iteration"),
        y=Axis(label=CONVERGENCE[measure], from_zero=True),
        series=tuple(series),
        rules=tuple(rules),
        smooth=len(values) // SMOOTHED,
        note=f"{why}.{listed}",
    )

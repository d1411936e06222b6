"""Draw the convergence of a run: distances, evenness and change points."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moetraffic.analysis import Analysis, Trajectory
from moetraffic.report.chart import (
    LINE_COLORS,
    OTHER_COLOR,
    Axis,
    Chart,
    Missing,
    Panel,
    Rule,
    Series,
)

from .skew import SMOOTHED, every, named, thinned

MEASURES = {
    "distance": "distance from the final shares (0 to 1)",
    "change": "change from the step before (0 to 1)",
    "evenness": "Jain's index without sampling noise (1 = balanced)",
}


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
        "changed (5% false alarms); orange: converged from here on." + thinned(step),
        columns=("iteration", "value (dimensionless)"),
        choices=("layer", "quantity", "metric"),
        panels=tuple(
            _panel(both.at, course, measure, step, (named(e, analysis), name, measure))
            for e, both in found
            for name, course in (("loads", both.load), ("matrix", both.cells))
            for measure in MEASURES
        ),
    )


def _panel(
    at: npt.NDArray[np.int64],
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
        y=Axis(label=MEASURES[measure], from_zero=True),
        series=tuple(series),
        rules=tuple(rules),
        smooth=len(values) // SMOOTHED,
        note=f"{why}.{listed}",
    )

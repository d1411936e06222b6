"""How a run came to rest: distances, evenness, change points."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moetraffic.analysis import Analysis, Trajectory

from .chart import (
    FAINT,
    Chart,
    Missing,
    View,
    axes,
    colors,
    every,
    line,
    packed,
    thinned,
    upright,
)
from .skew import SMOOTHED, named

MEASURES = {
    "distance": "distance from the settled shares (0 to 1)",
    "change": "change from the step before (0 to 1)",
    "evenness": "Jain's index without counting noise (1 = even)",
}


def convergence(analysis: Analysis) -> Chart | Missing:
    """The course of loads and matrix of each layer, with the changes found."""
    title = "Convergence, and where the traffic changed"
    told = [(e, e.convergence) for e in analysis.exchanges if e.convergence]
    if not told:
        return Missing(
            title=title, reason="the trace shows no routing and no expert exchange"
        )
    step = every(max(len(c.at) for _, c in told), 5 * 2 * len(told))
    views = []
    for exchange, both in told:
        for name, course in (("loads", both.load), ("matrix", both.cells)):
            for measure, words in MEASURES.items():
                views.append(
                    _view(
                        both.at,
                        course,
                        measure,
                        words,
                        step,
                        (named(exchange, analysis), name, measure),
                    )
                )
    return Chart(
        key="convergence",
        title=title,
        source="Total variation of the shares of experts (loads) or of cells (matrix), "
        "of demand where it was seen, else of wire. Gray: what counting alone makes of "
        "it. Dotted lines: change points, at which the level of the shares changed "
        "(5% false alarms); orange: from here on it is stable." + thinned(step),
        columns=("iteration", "value (dimensionless)"),
        choices=("layer", "of", "measure"),
        views=tuple(views),
    )


def _view(
    at: npt.NDArray[np.int64],
    course: Trajectory,
    measure: str,
    words: str,
    step: int,
    name: tuple[str, ...],
) -> View:
    x = packed(at[::step])
    values = np.asarray(getattr(course, measure), np.float64)[::step]
    traces = [line(x, packed(values), measure, colors(1)[0])]
    floor = getattr(course, f"{measure}_floor", None)
    if floor is not None:
        traces.append(
            line(
                x,
                packed(np.asarray(floor, np.float64)[::step]),
                "counting alone",
                FAINT,
                width=2.0,
                dash="dash",
                meta="floor",
            )
        )
    changes: list[int] = course.changed_at.tolist()
    # no words beside them: changes may be close to each other, and are told below
    marks = [upright(float(change), "")[0] for change in changes]
    if course.settled_at >= 0 and course.converged:
        shape, _ = upright(float(course.settled_at), "", colors(2)[1])
        marks.append({**shape, "line": {**shape["line"], "dash": "solid", "width": 2}})
    aside = course.why[:1].upper() + course.why[1:]
    return View(
        name=name,
        traces=tuple(traces),
        layout={
            **axes("iteration", words, y_rangemode="tozero"),
            "shapes": marks,
        },
        smooth=len(values) // SMOOTHED,
        aside=aside.rstrip(".")
        + "."
        + (f" Changes at {', '.join(map(str, changes))}." if changes else ""),
    )

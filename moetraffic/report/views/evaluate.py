"""Chart of policies: ratio to the lower bound, also by age and delay."""

from __future__ import annotations

from typing import Any

import numpy as np

from moetraffic.policies.scores import CONTROLS, NONE
from moetraffic.report.chart import Axis, Chart, Panel, Series, line_colors
from moetraffic.result import Result

CURVES = {
    "age": ("age of the plan [iterations]", False),
    "delay_s": ("reconfiguration delay [s]", True),
    "circuits_of_port": ("circuits of a port", False),
}
"""Columns of which several values are drawn as lines: label, logarithmic axis."""


def chart(result: Result) -> Chart:
    """Draw the ratio of each policy to the lower bound, and along ages and delays.

    ``result``: of :func:`moetraffic.policies.evaluate.evaluate`; of several traces, the
    first is drawn.
    """
    frame = result.frame("scores")
    frame = frame[(frame.file == frame.file[0]) & (frame.forecaster != "shuffled")]
    several = frame.network.nunique() > 1
    kept = ["policy", *["network"] * several]
    frame["name"] = [
        ", ".join(
            [
                *map(str, row[kept]),
                *[row.forecaster] * (row.forecaster != NONE),
                *[f"age {row.age}"] * (frame.age.nunique() > 1),
            ]
        )
        for _, row in frame.iterrows()
    ]
    panels = [
        Panel(
            name=("all policies",),
            x=Axis(label="over bound", log=True),
            y=Axis(names=tuple(frame.name), reverse=True),
            series=(
                Series(
                    kind="points",
                    x=frame.over_bound.to_numpy(),
                    y=np.arange(len(frame)),
                    x_interval=_ends(frame),
                ),
            ),
        )
    ]
    deployed = frame[~frame.forecaster.isin(CONTROLS)]
    panels += [
        _panel(deployed, field, label, log)
        for field, (label, log) in CURVES.items()
        if deployed[field].dropna().replace(0, np.nan).nunique() > 1
    ]
    return Chart(
        key="policies",
        title=f"Scheduling policies on {result.data['runs'][0]['file']}",
        source=f"{result.head}. {result.captions['policies']}. With 95% intervals "
        "where there are enough iterations",
        panels=tuple(panels),
        columns=("x", "y"),
        choices=("quantity",),
        height=max(380, 26 * len(frame)),
        shared=False,
    )


def _ends(frame: Any) -> tuple[Any, Any]:
    return frame.over_bound_low.to_numpy(), frame.over_bound_high.to_numpy()


def _panel(frame: Any, field: str, label: str, log: bool) -> Panel:
    """Draw over bound along a column, a line for each policy and its forecast."""
    others = [name for name in CURVES if name != field]
    first = frame[others].iloc[0]
    fixed = frame[(frame[others].fillna(-1) == first.fillna(-1)).all(axis=1)]
    groups = list(fixed.groupby(["policy", "forecaster"], sort=False))
    lines = []
    for ((policy, forecaster), line), color in zip(
        groups, line_colors(len(groups)), strict=True
    ):
        line = line.dropna(subset=field).sort_values(field)
        lines.append(
            Series(
                x=line[field].to_numpy(),
                y=line.over_bound.to_numpy(),
                y_interval=_ends(line),
                name=policy if forecaster == NONE else f"{policy}, {forecaster}",
                color=color,
                marked=True,
            )
        )
    return Panel(
        name=(label.partition(" [")[0],),
        x=Axis(label=label, log=log),
        y=Axis(label="over bound", log=True),
        series=tuple(lines),
    )

"""Report the balance of the expert load over runs, side by side and by layer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from moetraffic.analysis import Analysis, Curve
from moetraffic.analysis.forecast.accuracy import mean_of_known as mean
from moetraffic.report.chart import Axis, Chart, Panel, Rule, Series, line_colors
from moetraffic.tables import Table

from .skew import subject_of

Curves = Mapping[int, Curve]
"""Normalized entropy of the expert load in every iteration, by layer."""


def uniformity(analysis: Analysis) -> Curves:
    """Extract the expert load's normalized entropy by layer, for the first group."""
    found = {
        e.layer: s.curves["normalized_entropy"]
        for e in reversed(analysis.exchanges)
        if (s := subject_of(e, "expert_load"))
    }
    return dict(sorted(found.items()))


def table(runs: Mapping[str, Curves]) -> Table:
    """Tabulate level, variation and convergence of the balance, by run and layer."""
    rows = []
    for name, layers in runs.items():
        for layer, one in layers.items():
            x, half = one.values, len(one.values) // 2
            parts = (x[:20], x[max(0, half - 10) : half + 10], x[-20:])
            changes = [float(np.nanstd(np.diff(part))) for part in (x[:half], x[half:])]
            rows.append(
                (
                    *(name, layer, *map(mean, parts)),
                    None if one.floor is None else mean(one.floor.mean),
                    *changes,
                    int(one.settling.step) if bool(one.settling.settled) else "no",
                )
            )
    means = ("first 20", "middle 20", "last 20", "noise floor")
    spreads = ("sd of changes, 1st half", "2nd half")
    return Table(
        columns={
            **{"run": "", "layer": ""},
            **dict.fromkeys((*means, *spreads), ".4f"),
            "converged at iteration": ">",
        },
        rows=rows,
    )


def figure(runs: Mapping[str, Curves], source: str, *, window: int = 10) -> Chart:
    """Draw normalized entropy of each layer, smoothed, with one panel per run.

    A vertical line marks the end of a layer's transient.
    """
    panels = []
    for name, layers in runs.items():
        colors = line_colors(len(layers))
        floors = [mean(c.floor.mean) for c in layers.values() if c.floor is not None]
        drawn = list(zip(layers.items(), colors, strict=True))
        rules = [
            Rule(x=float(one.settling.step), color=color)
            for (_, one), color in drawn
            if bool(one.settling.settled)
        ]
        panels.append(
            Panel(
                name=(name,),
                x=Axis(label="iteration"),
                y=Axis(label="normalized entropy of the expert load"),
                series=tuple(
                    Series(
                        x=np.arange(len(one.values)),
                        y=one.values,
                        name=f"layer {layer}",
                        color=color,
                    )
                    for (layer, one), color in drawn
                ),
                rules=(*rules, *([Rule(y=float(np.mean(floors)))] if floors else [])),
                smooth=window,
            )
        )
    return Chart(
        title="Balance of the expert load",
        source=f"{source}. Dotted: noise floor of a balanced router; vertical: "
        "transient ended",
        panels=tuple(panels),
        width=520 * len(runs),
        height=420,
        across=len(runs),
    )

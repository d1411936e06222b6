"""A comparison of two traces as tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from moetraffic.analysis.comparison import SCALES, Comparison, Distance
from moetraffic.analysis.resampling import LEVEL, Interval
from moetraffic.analysis.times.completion import TimeRatio
from moetraffic.units import amount, duration


def table(comparison: Comparison, beyond: Sequence[Distance] = ()) -> Group:
    """A row a distance; those above their threshold are marked.

    Parameters
    ----------
    comparison
        Of two traces.
    beyond
        Distances that are above a threshold.
    """
    out = Table(
        title=f"How far apart, with intervals of {LEVEL:.0%}, and how far the first "
        "run is from itself",
        caption="; ".join(
            f"{measure}: {SCALES[measure]}"
            for measure in dict.fromkeys(d.measure for d in comparison.distances)
        ),
        caption_justify="left",
        title_justify="left",
        box=None,
        header_style="bold",
        padding=(0, 1),
    )
    for name in ("layer", "of", "distance"):
        out.add_column(name)
    for name in ("first", "second", "apart", "interval", "itself", ""):
        out.add_column(name, justify="right")
    for d in comparison.distances:
        out.add_row(
            "all" if d.layer < 0 else str(d.layer),
            d.of,
            d.measure,
            amount(d.a, d.unit),
            amount(d.b, d.unit),
            _figure(d.value),
            f"{_figure(d.low)} to {_figure(d.high)}",
            _figure(d.floor),
            "above threshold" if d in beyond else "more" if d.beyond_chance else "",
        )
    notes = [Text(f"note: {note}", style="yellow") for note in comparison.notes]
    if not comparison.times:
        return Group(out, *notes)
    return Group(out, "", times(comparison.times), *notes)


def times(ratios: Sequence[TimeRatio]) -> Table:
    """How long the same calls took in both runs, a row each part of them."""
    out = Table(
        title="Times of the calls that both have, and the second's total over the "
        f"first's, with intervals of {LEVEL:.0%}",
        title_justify="left",
        box=None,
        header_style="bold",
        padding=(0, 1),
    )
    names = ("of", "time", "calls", "p50, 1st", "p50, 2nd", "p99, 1st", "p99, 2nd")
    for name in (*names, "ratio", "interval"):
        out.add_column(name, justify="left" if name in ("of", "time") else "right")
    for r in ratios:
        out.add_row(
            f"{r.by} {r.label}".strip(),
            r.measure,
            str(r.number),
            *(duration(value) for value in (r.a.p50, r.b.p50, r.a.p99, r.b.p99)),
            _figure(r.ratio.value),
            interval(r.ratio),
        )
    return out


def interval(of: Interval) -> str:
    """Both ends, or nothing where they are not known."""
    if not (np.isfinite(of.low) and np.isfinite(of.high)):
        return ""
    return f"{_figure(of.low)} to {_figure(of.high)}"


def _figure(value: float) -> str:
    return format(value, ".4g") if np.isfinite(value) else ""

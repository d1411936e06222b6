"""A comparison of two traces as tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from moetraffic.analysis.comparison import LEVEL, Comparison, Distance


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
            _figure(d.a),
            _figure(d.b),
            _figure(d.value),
            f"{_figure(d.low)} to {_figure(d.high)}",
            _figure(d.floor),
            "above threshold" if d in beyond else "more" if d.beyond_chance else "",
        )
    notes = [Text(f"note: {note}", style="yellow") for note in comparison.notes]
    return Group(out, *notes)


def _figure(value: float) -> str:
    return format(value, ".4g") if np.isfinite(value) else ""

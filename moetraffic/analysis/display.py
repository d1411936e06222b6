"""How a notebook shows statistics: the tables of ``analyze`` and ``compare``, short."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moetraffic.analysis.forecast.usefulness import sentence
from moetraffic.markup import html_table

if TYPE_CHECKING:
    from .comparison import Comparison
    from .engine import Analysis

MOST = 40
"""Rows of a table."""


def analysis_html(found: Analysis) -> str:
    """Every measure's first and last value beside its floor, and what follows.

    Values are means over the first and the last tenth of the iterations; the floor is
    what a perfectly balanced gate shows by chance.

    Returns
    -------
    str
        HTML.
    """
    rows, said = [], []
    for exchange in found.exchanges:
        where = (str(exchange.layer), len(exchange.ranks))
        for subject in exchange.subjects:
            for measure, curve in subject.curves.items():
                tenth = max(1, len(curve.values) // 10)
                rows.append(
                    (
                        *where,
                        subject.name,
                        measure,
                        _mean(curve.values[:tenth]),
                        _mean(curve.values[-tenth:]),
                        float("nan")
                        if curve.floor is None
                        else _mean(np.asarray(curve.floor.mean)),
                    )
                )
            if subject.forecasts is not None and subject.forecasts.verdicts:
                first = subject.forecasts.verdicts[0]
                if not first.reason:
                    said.append(
                        f"layer {exchange.layer}, {subject.name}: {sentence(first)}"
                    )
    header = ("layer", "ranks", "of", "measure", "first tenth", "last tenth", "floor")
    notes = [*said, *(f"note: {note}" for note in found.notes)]
    if len(rows) > MOST:
        notes.insert(0, f"{MOST} of {len(rows)} rows are shown")
    return html_table("analysis", rows[:MOST], header=header, notes=notes)


def comparison_html(found: Comparison) -> str:
    """A row a distance, with its interval and the first run's distance to itself.

    Returns
    -------
    str
        HTML.
    """
    rows = [
        (
            "all" if d.layer < 0 else str(d.layer),
            d.of,
            d.measure,
            d.value,
            f"{d.low:.4g} to {d.high:.4g}",
            d.floor,
            "more" if d.beyond_chance else "",
        )
        for d in found.distances
    ]
    header = ("layer", "of", "distance", "apart", "interval", "itself", "")
    notes = [f"note: {note}" for note in found.notes]
    if len(rows) > MOST:
        notes.insert(0, f"{MOST} of {len(rows)} rows are shown")
    return html_table("comparison", rows[:MOST], header=header, notes=notes)


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")

"""Report time breakdowns of training steps: compute, communication, overlap, idle."""

from __future__ import annotations

import numpy as np

from moetraffic.analysis.times.time_breakdown import TimeBreakdown
from moetraffic.report.chart import Axis, Chart, Missing, Panel, Series
from moetraffic.tables import Table

PARTS = (
    ("compute only", "#0072B2"),
    ("overlapped", "#009E73"),
    ("communication only", "#D55E00"),
    ("idle", "#BBBBBB"),
)
"""Parts of the step time in drawing order, with Okabe and Ito's colors."""

TITLE = "Time breakdown of a training step"

_ORDER = (0, 2, 1, 3)  # columns of TimeBreakdown.shares


def table(found: TimeBreakdown) -> Table:
    """Tabulate the time shares of each rank's training steps."""
    names = [*(name for name, _ in PARTS), "communication in total"]
    shares = zip(found.shares[:, _ORDER], found.communication_fraction, strict=True)
    return Table(
        title=TITLE,
        columns={"rank": ""} | dict.fromkeys(names, ".1%"),
        rows=[(rank, *row, total) for rank, (row, total) in enumerate(shares)],
    )


def figure(
    found: TimeBreakdown | None, source: str = "", *, reason: str = ""
) -> Chart | Missing:
    """Draw the time shares of each rank's training steps as stacked bars.

    Parameters
    ----------
    found
        Time breakdown of any trace.
    source
        Description of the underlying data.
    reason
        Reason why there is none, if known.
    """
    if found is None or not found.known.any():
        why = reason or "the times of calls are not recorded"
        return Missing(title=TITLE, reason=why)
    shares = 100 * np.nan_to_num(found.shares[:, _ORDER])
    ranks = np.arange(len(shares))
    length_ms = found.total.sum(axis=0) / np.maximum(found.known.sum(axis=0), 1) / 1e6
    base = np.cumsum(shares, axis=1) - shares
    how = "compute inferred from gaps between collectives (no profile)"
    about = (
        f"{len(found.iteration)} training steps of "
        f"{np.mean(length_ms):.3g} ms on average, all collectives; communication "
        f"{np.mean(found.communication_fraction):.1%}; "
        + (how if found.inferred else "compute from kernels")
    )
    return Chart(
        key="occupation",
        title=TITLE,
        source=f"{source}; {about}" if source else f"{about}.",
        columns=("share of the time [%]", "rank"),
        panels=(
            Panel(
                x=Axis(
                    label="share of the time of training steps [%]", limits=(0, 100)
                ),
                y=Axis(label="rank", reverse=True),
                series=tuple(
                    Series(
                        kind="bars",
                        x=shares[:, part],
                        y=ranks,
                        base=base[:, part],
                        name=name,
                        color=color,
                        width=0.78,
                        hover=f"rank %{{y}}, {name}: %{{x:.1f}} %<extra></extra>",
                    )
                    for part, (name, color) in enumerate(PARTS)
                ),
            ),
        ),
        height=int(np.clip(150 + 24 * len(ranks), 240, 560)),
    )

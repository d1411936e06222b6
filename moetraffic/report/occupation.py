"""What ranks' time went into, as a picture and a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.table import Table

from moetraffic.analysis.times.time_breakdown import TimeBreakdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = (
    ("compute only", "#0072B2"),
    ("overlapped", "#009E73"),
    ("communication only", "#D55E00"),
    ("idle", "#BBBBBB"),
)
"""In the order in which they are drawn, with Okabe and Ito's colors."""

_ORDER = (0, 2, 1, 3)  # of TimeBreakdown.shares


def table(found: TimeBreakdown) -> Table:
    """A row a rank, in percent of its steps."""
    made = Table(
        title="What the time of a step goes into", title_justify="left", box=box.SIMPLE
    )
    made.add_column("rank", justify="right")
    for name, _ in PARTS:
        made.add_column(name, justify="right")
    made.add_column("communication in all", justify="right")
    for rank, shares in enumerate(found.shares[:, _ORDER]):
        fraction = found.communication_fraction[rank]
        made.add_row(
            str(rank), *(f"{share:.1%}" for share in shares), f"{fraction:.1%}"
        )
    return made


def figure(found: TimeBreakdown, source: str = "") -> Figure:
    """A bar a rank, parted by what its steps went into.

    Parameters
    ----------
    found
        Of any trace.
    source
        What it was computed from, in words.
    """
    # a table alone needs no matplotlib, which takes half a second to load
    from matplotlib.figure import Figure

    from .figures import headline

    shares = np.nan_to_num(found.shares[:, _ORDER])
    ranks = len(shares)
    length_ms = found.total.sum(axis=0) / np.maximum(found.known.sum(axis=0), 1) / 1e6
    high = min(1.5 + 0.32 * ranks, 9.0)
    fig = Figure(figsize=(9.0, high), layout="constrained")
    axes = fig.subplots()
    left = np.zeros(ranks)
    for part, (name, color) in enumerate(PARTS):
        axes.barh(
            np.arange(ranks),
            100 * shares[:, part],
            left=100 * left,
            height=0.78,
            color=color,
            label=name,
        )
        left += shares[:, part]
    if ranks <= 24:
        for rank, fraction in enumerate(found.communication_fraction.tolist()):
            told = f"communication {fraction:.1%}, step {length_ms[rank]:.3g} ms"
            axes.annotate(told, (101, rank), va="center", fontsize=8)
    axes.set_xlim(0, 135 if ranks <= 24 else 100)
    axes.set_xticks(range(0, 101, 20))
    axes.set_ylim(ranks - 0.5, -0.5)
    axes.set_yticks(np.arange(ranks) if ranks <= 24 else np.arange(0, ranks, 8))
    axes.set_ylabel("rank")
    axes.set_xlabel("share of the time of training steps [%]")
    axes.spines[["top", "right"]].set_visible(False)
    fig.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    how = "compute told from calls" if found.inferred else "compute from kernels"
    steps = f"{len(found.iteration)} steps; {how}"
    headline(
        fig,
        "What the time of a step goes into",
        f"{source}; {steps}" if source else steps,
    )
    return fig

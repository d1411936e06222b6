"""The complexity map: traces between structure in time and structure in pairs.

The picture of Avin, Ghobadi, Griner, Schmid (SIGMETRICS 2020), figure 1: non-temporal
complexity to the right, temporal complexity upwards, area as the product of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from moetraffic.analysis.network.complexity import Complexity
from moetraffic.errors import AnalysisError

from .figures import headline, line_colors

AREA = 1500.0
"""Of the disc of a trace without any structure, in square points."""

LEVELS = (0.1, 0.25, 0.5, 0.75)
"""Products that are drawn as curves."""

MOST_LABELED = 24

APART = 0.036
"""Labels stand so far from each other, upwards."""

CORNERS = (
    (0.0, 0.0, "bursty and skewed", "left", "bottom"),
    (1.0, 0.0, "bursty", "right", "bottom"),
    (0.0, 1.12, "skewed", "left", "top"),
    (1.0, 1.12, "even and random", "right", "top"),
)


def complexity_map(
    found: Mapping[str, Complexity],
    *,
    kinds: Sequence[str] | None = None,
    title: str = "How complex the traffic is",
    source: str = "",
) -> Figure:
    """Draw the complexity of several traces, layers or phases.

    Each is a disc at (NT, T) with the area of Psi; the cross over it is the 95 %
    interval from the windows, the small dot below T corrected for the compressor.

    Parameters
    ----------
    found
        By name, such as "layer 1, dispatch".
    kinds
        A word for each, in the same order: those of one kind have one color and a
        line in the legend.  None: each has its own color, and no legend.
    title, source
        Headline, and what the figure was computed from.

    Returns
    -------
    Figure

    Raises
    ------
    AnalysisError
        If nothing of it is known, or there is not one kind for each.
    """
    if kinds is not None and len(kinds) != len(found):
        raise AnalysisError(
            f"each trace on the map has one kind, but there are {len(found)} traces "
            f"and {len(kinds)} kinds: give one for each, or None"
        )
    of = dict(zip(found, kinds or found, strict=True))
    known = {n: c for n, c in found.items() if np.isfinite(c.product)}
    if not known:
        raise AnalysisError(
            f"a complexity map needs a trace whose complexity is known, but of "
            f"{len(found)} none is: measure traces with packets between ranks"
        )
    every = list(dict.fromkeys(of.values()))
    colors = dict(zip(every, line_colors(len(every)), strict=True))
    figure = Figure(figsize=(9.0, 6.6), layout="constrained")
    axes = figure.subplots()
    _background(axes)
    # the largest first, so that no disc is wholly covered
    for name in sorted(known, key=lambda n: -known[n].product):
        one, color = known[name], colors[of[name]]
        x, y = one.non_temporal, one.temporal
        axes.scatter(
            [x],
            [y],
            s=AREA * one.product,
            facecolor=to_rgba(color, 0.45),
            edgecolor=to_rgba(color),
            linewidths=1.2,
            clip_on=False,
            zorder=3,
        )
        for low, high, across in (
            (*one.non_temporal_interval, True),
            (*one.temporal_interval, False),
        ):
            if np.isfinite([low, high]).all():
                ends = ([low, high], [y, y]) if across else ([x, x], [low, high])
                axes.plot(*ends, color="black", linewidth=1.0, clip_on=False, zorder=4)
        if np.isfinite(one.temporal_corrected):
            axes.plot(
                [x, x],
                [y, one.temporal_corrected],
                color=color,
                linewidth=0.8,
                linestyle=":",
                zorder=2,
            )
            axes.plot([x], [one.temporal_corrected], ".", color=color, zorder=5)
    if len(known) <= MOST_LABELED:
        _label(axes, known)
    if kinds is not None:
        for kind in every:
            axes.scatter([], [], s=60, color=colors[kind], alpha=0.6, label=kind)
        figure.legend(
            loc="outside lower center",
            ncols=min(len(every), 5),
            frameon=False,
            fontsize=9,
        )
    note = (
        "disc: T over NT, area as Psi = T NT; cross: 95 % over windows; dot: T "
        "corrected for the compressor; gray: equal Psi"
    )
    headline(figure, title, f"{source}; {note}" if source else note)
    return figure


def _background(axes: Axes) -> None:
    """The unit square, its corners named, and curves of equal product."""
    axes.set_xlim(0.0, 1.06)
    axes.set_ylim(0.0, 1.12)
    axes.set_xlabel("non-temporal complexity NT\n(1 = all pairs alike)")
    axes.set_ylabel("temporal complexity T\n(1 = no order in time)")
    for level in LEVELS:
        x = np.linspace(level, 1.0, 200)
        axes.plot(x, level / x, color="#D5D5D5", linewidth=0.8, zorder=1)
        axes.annotate(
            f"{level:g}",
            (1.0, level),
            xytext=(3, 0),
            textcoords="offset points",
            color="#777777",
            fontsize=7.5,
            va="center",
        )
    for right, top, text, across, up in CORNERS:
        axes.annotate(
            text,
            (right, top),
            xytext=(6 if across == "left" else -6, 4 if up == "bottom" else -4),
            textcoords="offset points",
            color="#777777",
            fontsize=8.5,
            style="italic",
            ha=across,
            va=up,
        )
    for side in ("right", "top"):
        axes.spines[side].set_visible(False)


def _label(axes: Axes, known: Mapping[str, Complexity]) -> None:
    """Names in a column beside the discs, as high as these where there is room."""
    names = sorted(known, key=lambda n: known[n].temporal)
    want = np.array([known[n].temporal for n in names])
    steps = APART * np.arange(len(names))
    # least squares under "at least so far apart": pools of equal heights
    high = _increasing(want - steps) + steps
    high = high - max(0.0, high[-1] - 1.04)
    high = high + max(0.0, 0.07 - high[0])
    across = [known[n].non_temporal for n in names]
    left = min(across) > 1 - max(across)  # more room there
    side = min(across) - 0.1 if left else max(across) + 0.1
    for name, y in zip(names, high, strict=True):
        one = known[name]
        axes.annotate(
            name,
            (one.non_temporal, one.temporal),
            xytext=(side, y),
            fontsize=8.5,
            ha="right" if left else "left",
            va="center",
            arrowprops={
                "arrowstyle": "-",
                "color": "#999999",
                "linewidth": 0.6,
                "shrinkA": 2,
                "shrinkB": 0,
                "relpos": (1.0 if left else 0.0, 0.5),
            },
            zorder=6,
        )


def _increasing(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The nearest values that do not fall (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in values.tolist():
        mean, size = value, 1
        while pools and pools[-1][0] > mean:
            before, members = pools.pop()
            mean = (mean * size + before * members) / (size + members)
            size += members
        pools.append((mean, size))
    return np.repeat([m for m, _ in pools], [n for _, n in pools])

"""Figures: arrays in, a matplotlib ``Figure`` out.

Nothing here computes a statistic or keeps a state of pyplot.  Colors can be told apart
with any color vision: viridis for amounts, Okabe and Ito's palette for kinds.  Each
figure has a headline, and below it in small letters the ``source``: what it was
computed from, in the caller's words.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from moetraffic.errors import AnalysisError

Float64 = npt.NDArray[np.float64]

PHASE_COLORS = {
    "dispatch": "#0072B2",
    "combine": "#E69F00",
    "combine_grad": "#CC79A7",
    "dispatch_grad": "#009E73",
}
"""Okabe and Ito's blue, orange, purple and green, in the phases' time order."""

OTHER_COLOR = "#8C8C8C"

LINE_COLORS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)

AMOUNTS = "viridis"

MOST_NAMED = 18
"""Of more lines than these, every n-th has a name in the legend."""

LEGEND_LETTERS = 130
"""So many fit beside each other below a figure of 9 inches."""

MOST_WRITTEN = 128
"""A heatmap of at most so many cells has its values written into them."""


def save(figure: Figure, path: str | Path, *, dpi: int = 150) -> Path:
    """Write a figure as PNG; the same figure gives the same bytes.

    Parameters
    ----------
    figure
        One of this module's, or any other.
    path
        The file; it is overwritten.
    dpi
        Pixels an inch; the figures are 9 to 12 inches wide.

    Returns
    -------
    Path
        The file.
    """
    target = Path(path)
    FigureCanvasAgg(figure)
    figure.savefig(target, format="png", dpi=dpi, metadata={"Software": None})
    return target


def demand_heatmaps(
    matrices: npt.ArrayLike,
    names: Sequence[str],
    *,
    title: str = "Who sends how much to which expert",
    source: str = "",
    unit: str = "token copies",
    row: str = "sending rank",
    column: str = "expert",
    experts_per_rank: int | None = None,
) -> Figure:
    """Draw demand matrices side by side on one color scale from 0 on.

    Parameters
    ----------
    matrices
        ``[S, W, E]``: one matrix a panel, such as the means of the early, the middle
        and the late third.
    names
        S headlines of the panels, such as "early: iterations 0-66".
    title, source
        Headline, and what the figure was computed from.
    unit
        Of the cells.
    row, column
        What a row and a column is.
    experts_per_rank
        Lines part the experts of different ranks, 16 at most; None draws none.

    Returns
    -------
    Figure

    Raises
    ------
    AnalysisError
        If there is no matrix, or not one name a matrix.
    """
    cells = np.asarray(matrices, dtype=np.float64)
    if cells.ndim != 3 or not cells.size or len(names) != len(cells):
        raise AnalysisError(
            f"heatmaps are drawn of matrices [S, W, E] with S names, but the shape is "
            f"{cells.shape} and there are {len(names)} names: give one name a matrix"
        )
    panels, rows, columns = cells.shape
    # Cells are square up to a point, and a panel wide enough for the values in them.
    width = float(np.clip(0.42 * columns, 2.6, 4.6))
    height = float(np.clip(width * rows / columns, 1.2, 4.8))
    figure = Figure(
        figsize=(max(9.0, panels * (width + 0.35) + 1.3), height + 1.1),
        layout="constrained",
    )
    known = cells[np.isfinite(cells)]
    top = float(known.max()) if known.size and known.max() > 0 else 1.0
    scale = Normalize(0.0, top)
    axes = figure.subplots(1, panels, squeeze=False, sharey=True)[0]
    image = None
    for panel, name, matrix in zip(axes, names, cells, strict=True):
        image = panel.imshow(
            matrix, cmap=AMOUNTS, norm=scale, aspect="auto", interpolation="nearest"
        )
        panel.set_title(name, fontsize=10)
        panel.set_xlabel(column)
        panel.xaxis.set_major_locator(_whole(columns))
        panel.yaxis.set_major_locator(_whole(rows))
        if experts_per_rank and columns <= 16 * experts_per_rank:
            for edge in range(experts_per_rank, columns, experts_per_rank):
                panel.axvline(edge - 0.5, color="white", linewidth=0.8)
        if rows * columns <= MOST_WRITTEN and columns <= 16:
            _write(panel, matrix, scale)
    axes[0].set_ylabel(row)
    for panel in axes[1:]:
        panel.tick_params(axis="y", left=False)
    if image is not None:
        bar = figure.colorbar(image, ax=list(axes), pad=0.015, fraction=0.04)
        bar.set_label(unit)
        even = float(known.mean()) if known.size else 0.0
        bar.ax.axhline(even, color="white", linewidth=2.4)
        bar.ax.axhline(even, color="black", linewidth=1.0)
    mean = "the bar's line: mean of all cells"
    headline(figure, title, f"{source}; {mean}" if source else mean)
    return figure


def _whole(number: int) -> MaxNLocator:
    """Ticks at whole numbers, all of them where they fit."""
    return MaxNLocator(
        nbins=number if number <= 16 else 8, integer=True, steps=[1, 2, 4, 8, 10]
    )


def _write(panel: Axes, matrix: Float64, scale: Normalize) -> None:
    """Write each cell's value into it, dark on light and light on dark."""
    size = 7.5 if matrix.shape[1] <= 8 else 6.0
    colors = colormaps[AMOUNTS]
    for (row, column), value in np.ndenumerate(matrix):
        if np.isfinite(value):
            text = f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.2g}"
            red, green, blue, _ = colors(scale(float(value)))
            light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
            panel.text(
                column,
                row,
                text,
                ha="center",
                va="center",
                fontsize=size,
                color="black" if light else "white",
            )


def timeline(
    start: npt.ArrayLike,
    end: npt.ArrayLike,
    row: npt.ArrayLike,
    phase: Sequence[str],
    *,
    row_names: Sequence[str],
    marks: npt.ArrayLike = (),
    mark_names: Sequence[str] = (),
    title: str = "When the all-to-alls are on",
    source: str = "",
) -> Figure:
    """Draw events as bars over time, colored by phase.

    Parameters
    ----------
    start, end
        ``[n]`` int64 ns, all of one clock.
    row
        ``[n]`` index into ``row_names``: the rank, or the phase, of each event.
    phase
        n names; those not in :data:`PHASE_COLORS` are gray.
    row_names
        What the rows are, top to bottom.
    marks
        ``[m]`` int64 ns: where iterations begin.
    mark_names
        A name a mark, such as "iteration 150"; none: the marks have no names.
    title, source
        Headline, and what the figure was computed from.

    Returns
    -------
    Figure

    Raises
    ------
    AnalysisError
        If there is no event, or the arrays differ in length.
    """
    first, last = np.asarray(start, np.int64), np.asarray(end, np.int64)
    rows = np.asarray(row, np.int64)
    lines = np.asarray(marks, np.int64)
    if not first.size or not first.shape == last.shape == rows.shape == (len(phase),):
        raise AnalysisError(
            f"a timeline needs one start, end, row and phase an event, but there are "
            f"{first.size}, {last.size}, {rows.size} and {len(phase)}: choose "
            f"iterations in which all-to-alls were seen"
        )
    origin = int(min(first.min(), lines.min() if lines.size else first.min()))
    reach = int(max(last.max(), lines.max() if lines.size else last.max()))
    unit, scale = _time_unit(reach - origin)
    figure = Figure(figsize=(12.0, 1.2 + 0.36 * len(row_names)), layout="constrained")
    axes = figure.subplots()
    seen = [name for name in PHASE_COLORS if name in phase]
    seen += sorted(set(phase) - set(seen))
    names = np.asarray(phase, dtype=object)
    for name in seen:
        color = PHASE_COLORS.get(name, OTHER_COLOR)
        for at in np.unique(rows[names == name]):
            mine = (names == name) & (rows == at)
            begin = (first[mine] - origin) / scale
            length = (last[mine] - first[mine]) / scale
            axes.broken_barh(
                list(zip(begin.tolist(), length.tolist(), strict=True)),
                (float(at) - 0.36, 0.72),
                facecolor=color,
                edgecolor=color,
                linewidth=0.3,  # what is shorter than a pixel must not vanish
            )
    for line in lines:
        axes.axvline((line - origin) / scale, color="black", linewidth=0.8, zorder=0)
    for line, name in zip(lines, mark_names, strict=False):
        axes.annotate(
            name,
            ((line - origin) / scale, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(2, 2),
            textcoords="offset points",
            fontsize=8,
        )
    axes.set_ylim(len(row_names) - 0.45, -0.55)
    axes.set_yticks(range(len(row_names)), list(row_names))
    axes.tick_params(axis="y", length=0)
    margin = 0.005 * (reach - origin) / scale
    axes.set_xlim(-margin, (reach - origin) / scale + margin)
    axes.set_xlabel(f"time [{unit}]")
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    figure.legend(
        handles=[
            Patch(color=PHASE_COLORS.get(n, OTHER_COLOR), label=n or "other")
            for n in seen
        ],
        loc="outside lower center",
        ncols=len(seen),
        frameon=False,
        fontsize=9,
    )
    headline(figure, title, source)
    return figure


def _time_unit(extent_ns: int) -> tuple[str, float]:
    """The unit in which an extent reads well, and its length in ns."""
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if extent_ns >= 10 * scale:
            return unit, scale
    return "ns", 1.0


def entropy_curve(
    iteration: npt.ArrayLike,
    entropy: npt.ArrayLike,
    max_over_mean: npt.ArrayLike,
    names: Sequence[str],
    *,
    entropy_floor: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    max_over_mean_floor: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    title: str = "How evenly the experts are used",
    source: str = "",
) -> Figure:
    """Draw normalized entropy over iterations, and max/mean below.

    Each curve is drawn as it is, faintly, and as a moving mean over one fortieth of the
    run.  The band is what a perfectly balanced gate shows by chance.

    Parameters
    ----------
    iteration
        ``[T]`` iteration numbers.
    entropy, max_over_mean
        ``[T, L]`` normalized entropy and max/mean, a column a layer; NaN are gaps.
    names
        L names, such as "layer 1".
    entropy_floor, max_over_mean_floor
        Mean and standard deviation under a balanced gate, each a number or ``[T]``;
        None: no band.
    title, source
        Headline, and what the figure was computed from.

    Returns
    -------
    Figure

    Raises
    ------
    AnalysisError
        If the shapes do not agree.
    """
    at = np.asarray(iteration)
    curves = [np.asarray(entropy, np.float64), np.asarray(max_over_mean, np.float64)]
    if not at.size or any(c.shape != (at.size, len(names)) for c in curves):
        raise AnalysisError(
            f"each curve has T iterations and L layers, but there are {at.size} "
            f"iterations, {len(names)} names and curves of shape {curves[0].shape} and "
            f"{curves[1].shape}: give arrays [T, L]"
        )
    figure = Figure(figsize=(9.0, 5.6), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    colors = line_colors(len(names))
    window = max(1, at.size // 40)
    every = -(-len(names) // MOST_NAMED)
    thick = 1.8 if len(names) <= len(LINE_COLORS) else 1.1
    for panel, values, floor in zip(
        panels, curves, (entropy_floor, max_over_mean_floor), strict=True
    ):
        for column, color in enumerate(colors):
            panel.plot(at, values[:, column], color=color, linewidth=0.7, alpha=0.35)
            panel.plot(
                at,
                _moving_mean(values[:, column], window),
                color=color,
                linewidth=thick,
                label=names[column] if column % every == 0 else None,
            )
        if floor is not None:
            mean, std = (
                np.broadcast_to(np.asarray(f, np.float64), at.shape) for f in floor
            )
            panel.fill_between(
                at,
                mean - 2 * std,
                mean + 2 * std,
                color="#BBBBBB",
                linewidth=0,
                zorder=0,
                label="balanced gate, mean ± 2 sd",
            )
        panel.margins(x=0.01)
        panel.grid(color="#E5E5E5", linewidth=0.6)
        panel.set_axisbelow(True)
        panel.ticklabel_format(axis="y", useOffset=False)
        for side in ("right", "top"):
            panel.spines[side].set_visible(False)
    panels[0].set_ylabel("normalized entropy\n(1 = even)")
    panels[1].set_ylabel("max / mean load\n(1 = even)")
    panels[1].set_xlabel("iteration")
    panels[1].xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=max(1, min(len(labels), LEGEND_LETTERS // (max(map(len, labels)) + 6))),
        frameon=False,
        fontsize=9,
    )
    smoothed = f"thick: mean of {window} iterations" if window > 1 else ""
    headline(figure, title, "; ".join(t for t in (source, smoothed) if t))
    return figure


def line_colors(number: int) -> list[tuple[float, float, float, float] | str]:
    """Distinct colors as long as there are; then one scale from first to last."""
    if number <= len(LINE_COLORS):
        return list(LINE_COLORS[:number])
    scale = colormaps[AMOUNTS]
    return [scale(i / (number - 1) * 0.92) for i in range(number)]


def _moving_mean(values: Float64, window: int) -> Float64:
    """Centered mean over a window, of what is known in it."""
    known = np.isfinite(values)
    ones = np.ones(window)
    count = np.convolve(known.astype(np.float64), ones, mode="same")[: len(values)]
    total = np.convolve(np.where(known, values, 0.0), ones, mode="same")[: len(values)]
    mean: Float64 = np.full(len(values), np.nan)
    np.divide(total, count, out=mean, where=known & (count > 0.5))
    return mean


def headline(figure: Figure, title: str, source: str) -> None:
    """Put the headline on top and the source under it, and keep the axes below them."""
    width, height = figure.get_size_inches()
    lines = textwrap.wrap(source, int(width * 14)) if source else []
    deep = 0.42 + 0.17 * len(lines)  # inches
    figure.set_size_inches(width, height + deep)
    whole = height + deep
    figure.text(
        0.1 / width,
        1 - 0.1 / whole,
        title,
        fontsize=13,
        fontweight="bold",
        ha="left",
        va="top",
    )
    figure.text(
        0.1 / width,
        1 - 0.38 / whole,
        "\n".join(lines),
        fontsize=9,
        color="#555555",
        ha="left",
        va="top",
    )
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.set(rect=(0, 0, 1, 1 - deep / whole))

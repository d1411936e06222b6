"""Render charts as PNG, PDF or SVG with matplotlib, without pyplot.

Each figure has a headline, and below it a description of the underlying data.
"""

from __future__ import annotations

import textwrap
from math import floor, log10
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps, rcParams
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from scipy.ndimage import uniform_filter1d

from moetraffic.errors import AnalysisError

from .chart import Chart, Panel, Series, picture_format
from .figure_axes import (
    NAMES,
    axis_label,
    broken_name,
    chosen_ticks,
    integer_ticks,
    letter_in,
    log_ticks,
    plain,
    set_axis,
    wrapped,
)
from .figure_style import SETTINGS, FigureStyle, color_of, points

PIXELS = 100
"""Pixels per inch of a chart's size."""

MOST_WRITTEN = 128
"""Maximum number of heatmap cells for which the values are written into the cells."""

DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
SYMBOLS = {"circle": "o", "diamond": "D", "tick": "|"}

LEAST_PANEL_IN = (2.2, 1.5)
"""Smallest width and height of a panel in a figure of a given width."""

MOST_ROWS = 16
"""Maximum number of rows that are all named."""

LEAST_HEATMAP_IN = 1.0
"""Smallest width of a heatmap, whose cells are then without values."""

HIGHEST_STACKED_IN = 1.7
"""Largest height of panels that are drawn below instead of beside each other."""

INSIDE = 0.7
"""Share of a panel's height that is inside its axes."""

SCALE = 12
"""Letters as wide as axis and color scale beside heatmaps that are side by side."""

NO_INTERVAL = "no interval: too few iterations"
"""Legend of points of a line whose interval is unknown."""

THIN: dict[str, Any] = {"linewidth": 0.7, "alpha": 0.35}
"""Style of a line under its moving mean."""

METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
}
"""Without times and versions equal charts give equal bytes."""


def save(chart: Chart, path: str | Path, style: FigureStyle | None = None) -> Path:
    """Write a chart as a PNG, PDF or SVG file, by the extension of its name.

    Without a width in ``style`` it is 9 to 12 inches wide. Equal charts give equal
    bytes, and an existing file is replaced.
    """
    target, style = Path(path), style or FigureStyle()
    kind = picture_format(target)
    with style.applied():
        draw(chart, style).savefig(target, format=kind, metadata=METADATA[kind])
    return target


def draw(chart: Chart, style: FigureStyle | None = None) -> Figure:
    """Draw all panels of a chart, with axes shared in rows and columns.

    Raises
    ------
    AnalysisError
        If the chart has no panels.
    """
    if not chart.panels:
        raise AnalysisError(
            f"a chart needs data, but there are none for {chart.title!r}: choose "
            "iterations or layers that the trace has"
        )
    style = style or FigureStyle()
    with style.applied():
        return _draw(chart, style)


def _draw(chart: Chart, style: FigureStyle) -> Figure:
    across, size = _layout(chart, style.width_in)
    lines = -(-len(chart.panels) // across)
    figure = Figure(figsize=(size[0], lines * size[1]), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(
        *(lines, across),
        squeeze=False,
        sharex="col" if chart.shared else False,
        sharey="row" if chart.shared else False,
    ).ravel()
    colors = _color_scale(chart)
    images = []
    beside = max(
        (
            len(line)
            for names in _names(chart, size[0] / across)
            for line in names.splitlines()
        ),
        default=0,
    )
    # four letters are as wide as numbers on the axis
    panel_in = (
        size[0] / across * 0.8 - max(0, beside - 4) * letter_in(),
        size[1] * INSIDE,
    )
    if _kinds(chart) == {"heatmap"} and across > 1:
        panel_in = ((size[0] - SCALE * letter_in()) / across * 0.9, panel_in[1])
    for number, (axes, panel) in enumerate(zip(grid, chart.panels, strict=False)):
        image = _panel(
            axes, panel, colors, several=len(chart.panels) > 1, size_in=panel_in
        )
        if image is not None:
            images.append((axes, image, panel.series[0].unit))
        # shared axes are labeled once, below the last panel of each column
        if chart.shared:
            below = axes.get_xlabel()
            axes.label_outer(remove_inner_ticks=number % across > 0)
            if number + across >= len(chart.panels):
                axes.set_xlabel(below)
                axes.tick_params(axis="x", bottom=True, labelbottom=True)
    for axes in grid[len(chart.panels) :]:
        axes.set_visible(False)
    if images:
        shown = [axes for axes, _, _ in images]
        # in a narrow column the panels have the whole width
        below = across == 1 and style.width_in is not None
        place: dict[str, Any] = {"location": "bottom", "aspect": 30} if below else {}
        bar = figure.colorbar(images[0][1], ax=shown, pad=0.015, fraction=0.04, **place)
        length_in = panel_in[0 if below else 1]
        if chart.log_color:
            along = bar.ax.xaxis if below else bar.ax.yaxis
            log_ticks(along, *bar.mappable.get_clim(), length_in)
        bar.set_label("\n".join(wrapped(plain(images[0][2]), length_in)))
    smooth = max(panel.smooth for panel in chart.panels)
    _legend(figure, grid[: len(chart.panels)], smooth)
    if style.title:
        headline(figure, chart.title, caption(chart))
    return figure


def caption(chart: Chart) -> str:
    """Describe the data of a chart, with the notes on its panels."""
    notes = dict.fromkeys(panel.note for panel in chart.panels)
    return ". ".join(t.rstrip(".") for t in (chart.source, *notes) if t)


def _layout(chart: Chart, width: float | None) -> tuple[int, tuple[float, float]]:
    """Return panels side by side, and width of all and height of one in inches."""
    own = (chart.width / PIXELS, chart.height / PIXELS)
    if width is None:
        return chart.across, own
    if _kinds(chart) == {"heatmap"}:
        letters = max(len(axis_label(panel.x)) for panel in chart.panels) + 2
        least = max(LEAST_HEATMAP_IN, letters * letter_in())
        fit = int((width - SCALE * letter_in()) / least)
    else:
        fit = int(width / max(LEAST_PANEL_IN[0], own[0] / chart.across / 2))
    across = max(1, min(chart.across, fit))
    number = len(chart.panels)
    if across < chart.across:  # lines of equal length, full if half as long will do
        full = max(n for n in range(1, across + 1) if number % n == 0)
        across = full if 2 * full >= across else -(-number // -(-number // across))
    shape = own[1] / (own[0] / chart.across)  # height over width of a panel
    height = max(LEAST_PANEL_IN[1], shape * width / across)
    most = 1.1 * own[1] if across == chart.across else HIGHEST_STACKED_IN
    written = [w for p in chart.panels for w in wrapped(axis_label(p.y), 0)]
    longest = max(map(len, written), default=0) * letter_in()
    names = _names(chart, width / across)
    rows = len(names) * max((name.count("\n") + 1 for name in names), default=0)
    line = rcParams["font.size"] / 72
    # title, ticks and label have six lines
    least_in = max(longest, 1.35 * line * rows) + 6 * line
    return across, (width, max(least_in, min(height, most)))


def _kinds(chart: Chart) -> set[str]:
    return {series.kind for panel in chart.panels for series in panel.series}


def _names(chart: Chart, width_in: float) -> list[str]:
    """Return the longest list of names of a panel's rows, broken into lines."""
    every = [panel.y.names or _rows(panel) for panel in chart.panels]
    letters = int(NAMES * width_in / letter_in())
    return [broken_name(name, letters) for name in max(every, key=len)[:MOST_ROWS]]


def _rows(panel: Panel) -> list[str]:
    return [
        row
        for s in panel.series
        if s.z is not None
        for row in s.y
        if isinstance(row, str)
    ]


def _color_scale(chart: Chart) -> Normalize:
    """Choose one color scale for all heatmaps, from 0 or, if log, the minimum."""
    cells = [np.ravel(s.z) for p in chart.panels for s in p.series if s.z is not None]
    known = np.concatenate([*cells, np.zeros(0)])
    known = known[np.isfinite(known) & (known > 0)]
    top = float(known.max(initial=0)) or 1.0
    if chart.log_color:
        least = float(known.min(initial=top))
        return LogNorm(least, max(top, least + 1))
    return Normalize(0.0, top)


def _panel(
    axes: Axes,
    panel: Panel,
    colors: Normalize,
    *,
    several: bool,
    size_in: tuple[float, float],
) -> AxesImage | None:
    image = None
    for series in panel.series:
        if series.kind == "heatmap":
            image = _heatmap(axes, series, colors, size_in)
        elif series.kind == "band":
            axes.fill_between(
                *(series.x, series.y, series.upper),
                color="#999999",
                linewidth=1.2,  # keeps bands thinner than a line visible
                zorder=1.5,  # above the grid
                label=_label(series),
            )
        elif series.kind == "bars":
            axes.barh(
                *(series.y, series.x, series.width),
                left=0 if series.base is None else series.base,
                color=color_of(series.color),
                edgecolor=color_of(series.color),
                linewidth=0.3,  # keeps bars shorter than a pixel visible
                label=_label(series),
            )
        else:
            _marks(axes, series, panel.smooth, min(1.0, size_in[0] / 5))
    for rule in panel.rules:
        style: dict[str, Any] = {
            "color": color_of(rule.color),
            "linewidth": rule.width,
            "linestyle": DASHES[rule.dash],
            "zorder": 0 if image is None else 2,
        }
        if rule.x is not None:
            axes.axvline(rule.x, **style)
        if rule.y is not None:
            axes.axhline(rule.y, **style)
        if rule.text and rule.x is not None:
            axes.annotate(
                plain(rule.text),
                (rule.x, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(2, 2),
                textcoords="offset points",
            )
    for label in panel.labels:
        axes.text(
            *(label.x, label.y, plain(label.text)),
            ha=label.across,
            va={"middle": "center"}.get(label.up, label.up),
            color=label.color,
        )
    name = ", ".join(panel.name)
    # a panel whose axis is named as it is needs no title
    same = any(axis.label.startswith(name) for axis in (panel.x, panel.y))
    if several and name and not same:
        letters = int(size_in[0] / letter_in())
        name = textwrap.fill(plain(name), letters, break_long_words=False)
        size = points(1.0, "axes.titlesize")
        pad = 16 if any(rule.text for rule in panel.rules) else None
        axes.set_title(name, loc="left", fontsize=size, pad=pad)
    set_axis(axes, "x", panel.x, size_in[0])
    set_axis(axes, "y", panel.y, size_in[1])
    if image is None:
        axes.grid(visible=True)
        axes.spines[["right", "top"]].set_visible(False)
    return image


def _marks(axes: Axes, series: Series, smooth: int, scale: float) -> None:
    """Draw a line with its moving mean, or points with their intervals."""
    style: dict[str, Any] = {
        "color": color_of(series.color),
        "linestyle": DASHES[series.dash],
        "marker": "o" if series.marked or np.size(series.x) == 1 else None,
    }
    thick = rcParams["lines.linewidth"] / SETTINGS["lines.linewidth"]
    label = _label(series)
    for name, ends in (("xerr", series.x_interval), ("yerr", series.y_interval)):
        if ends is not None:
            at = np.asarray(series.x if name == "xerr" else series.y, np.float64)
            reach = [at - np.asarray(ends[0]), np.asarray(ends[1]) - at]
            bars: dict[str, Any] = {name: np.nan_to_num(np.maximum(reach, 0))}
            color = "black" if np.ndim(series.size) else color_of(series.color)
            axes.errorbar(series.x, series.y, **bars, fmt="none", ecolor=color)
            if series.marked and (bare := ~np.isfinite(reach[0])).any():
                axes.plot(
                    *(np.asarray(series.x)[bare], np.asarray(series.y)[bare]),
                    "o",
                    color=color,
                    markerfacecolor="white",
                    zorder=3,
                    label=NO_INTERVAL,
                )
    if series.kind == "points":
        across = np.asarray(series.size, np.float64)
        axes.scatter(
            *(series.x, series.y),
            s=(0.75 * scale * across) ** 2,
            color=color_of(series.color),
            alpha=series.opacity,
            marker=SYMBOLS[series.symbol],
            label=label,
            zorder=3,
        )
    elif smooth > 1 and not series.reference:
        values = np.asarray(series.y, np.float64)
        known = np.where(np.isfinite(values), 1.0, np.nan)
        total, number = (
            uniform_filter1d(np.nan_to_num(of), smooth, mode="constant")
            for of in (values * known, known)
        )
        thin = THIN | {"linewidth": THIN["linewidth"] * thick}
        axes.plot(series.x, values, **style | thin)
        axes.plot(series.x, known * total / number, **style, label=label)
    else:
        width = series.width * thick
        axes.plot(series.x, series.y, **style, linewidth=width, label=label)


def _heatmap(
    axes: Axes, series: Series, colors: Normalize, size_in: tuple[float, float]
) -> AxesImage:
    cells = np.asarray(series.z, np.float64)
    if isinstance(colors, LogNorm):
        cells = np.where(cells > 0, cells, np.nan)
    rows, columns = cells.shape
    at = [0, columns - 1] if isinstance(series.x[0], str) else series.x
    step = (at[-1] - at[0]) / (columns - 1) if columns > 1 else 1
    image = axes.imshow(
        np.ma.masked_invalid(cells),
        cmap=rcParams["image.cmap"],
        norm=colors,
        aspect="auto",
        interpolation="nearest",
        extent=(at[0] - step / 2, at[-1] + step / 2, rows - 0.5, -0.5),
    )
    width_in, height_in = size_in
    line = rcParams["font.size"] / 72
    lines = int(height_in / (1.7 * line))
    if isinstance(series.y[0], str):  # _layout has space for all names of a few rows
        lines = int(max(height_in, height_in / INSIDE - 6 * line) / (1.3 * line))
    axes.set_yticks(*chosen_ticks(series.y, max(2, min(MOST_ROWS, lines))))
    if isinstance(series.x[0], str):
        axes.set_xticks(*chosen_ticks(series.x, 16 if width_in > 3 else 6))
    else:
        axes.xaxis.set_major_locator(integer_ticks(width_in, at[-1]))
    # one precision for all heatmaps of a scale: all have values, or none
    digits = f".{max(1, 1 - floor(log10(colors.vmax or 1.0)))}f"
    texts = [
        "" if np.isnan(v) else f"{v:.0f}" if v >= 10 or v % 1 == 0 else f"{v:{digits}}"
        for v in cells.flat
    ]
    # a space beside each value
    fits = width_in / columns > (max(map(len, texts)) + 1) * letter_in()
    fits = fits and height_in / rows > rcParams["font.size"] / 72
    if rows * columns <= MOST_WRITTEN and columns <= 16 and fits:
        for ((row, column), value), text in zip(
            np.ndenumerate(cells), texts, strict=True
        ):
            if text:
                red, green, blue, _ = colormaps[rcParams["image.cmap"]](
                    colors(float(value))
                )
                light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
                axes.text(
                    *(at[0] + column * step, row),
                    text,
                    ha="center",
                    va="center",
                    color="black" if light else "white",
                    in_layout=False,  # it is in its cell
                )
    return image


def _legend(figure: Figure, panels: npt.NDArray[Any], smooth: int) -> None:
    """Name all series below the panels, in rows of equal length, and enlarge."""
    found: dict[str, Any] = {}
    for axes in panels:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(name, handle)
    if smooth > 1:
        found["each iteration"] = Line2D([], [], color=rcParams["text.color"], **THIN)
        found[f"mean of {smooth}"] = Line2D([], [], color=rcParams["text.color"])
    if len(found) < 2 and not any("interval" in n or "balanced" in n for n in found):
        return
    if NO_INTERVAL in found:
        found[NO_INTERVAL] = found.pop(NO_INTERVAL)  # the last
    width, height = figure.get_size_inches()
    letters = int(width / letter_in()) - 6  # beside the handle
    found = {textwrap.fill(name, letters): handle for name, handle in found.items()}
    for rows in range(1, len(found) + 1):
        columns = -(-len(found) // rows)
        # matplotlib fills columns, a reader reads rows
        names = [name for n in range(columns) for name in list(found)[n::columns]]
        legend = figure.legend(
            [found[name] for name in names],
            names,
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            fontsize=points(1.0, "legend.fontsize"),
            handlelength=1.5,
            columnspacing=1.2,
        )
        for handle in legend.legend_handles:
            if isinstance(handle, PathCollection):
                handle.set_sizes([36.0])
        box = legend.get_window_extent(figure.canvas.get_renderer())  # type: ignore[attr-defined]
        if box.width <= width * figure.dpi or columns == 1:
            figure.set_size_inches(width, height + box.height / figure.dpi)
            return
        legend.remove()


def _label(series: Series) -> str | None:
    return plain(series.name) if series.legend and series.name else None


def headline(figure: Figure, title: str, source: str) -> None:
    """Place title and data description above the axes, and enlarge the figure."""
    width, height = figure.get_size_inches()
    scale = rcParams["font.size"] / 10
    heads = textwrap.wrap(plain(title), int((width / scale - 0.2) * 8.4)) or [""]
    lines = textwrap.wrap(plain(source), int(width * 14 / scale))
    deep = scale * (0.2 + 0.22 * len(heads) + 0.17 * len(lines))  # inches
    whole = height + deep
    figure.set_size_inches(width, whole)
    place: dict[str, Any] = {"ha": "left", "va": "top"}
    across, down = 0.1 * scale / width, 0.1 * scale / whole
    size = points(1.3, "figure.titlesize")
    head = "\n".join(heads)
    figure.text(across, 1 - down, head, fontsize=size, fontweight="bold", **place)
    below = 1 - (1.6 + 2.2 * len(heads)) * down
    text = "\n".join(lines)
    figure.text(across, below, text, fontsize=points(0.9), color="#555555", **place)
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(rect=(0, 0, 1, 1 - deep / whole))

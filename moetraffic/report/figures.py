"""Render charts as PNG with matplotlib, without pyplot.

Each figure has a headline, and below it a description of the underlying data.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from moetraffic.errors import AnalysisError
from moetraffic.text import visible

from .chart import Axis, Chart, Panel, Series

PIXELS = 100
"""Pixels per inch of a chart's size."""

LEGEND_LETTERS = 130
"""Characters of legend entries that fit side by side below a figure of 9 inches."""

MOST_WRITTEN = 128
"""Maximum number of heatmap cells for which the values are written into the cells."""

DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
SYMBOLS = {"circle": "o", "diamond": "D", "tick": "|"}


def save(chart: Chart, path: str | Path, *, dpi: int = 150) -> Path:
    """Write a chart as a PNG file of 9 to 12 inches; equal charts give equal bytes.

    An existing file is replaced; ``dpi`` is in pixels per inch.
    """
    target = Path(path)
    draw(chart).savefig(target, format="png", dpi=dpi, metadata={"Software": None})
    return target


def draw(chart: Chart) -> Figure:
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
    lines = -(-len(chart.panels) // chart.across)
    figure = Figure(
        figsize=(chart.width / PIXELS, lines * chart.height / PIXELS),
        layout="constrained",
    )
    FigureCanvasAgg(figure)
    grid = figure.subplots(
        lines, chart.across, squeeze=False, sharex="col", sharey="row"
    ).ravel()
    colors = _color_scale(chart)
    images = []
    for number, (axes, panel) in enumerate(zip(grid, chart.panels, strict=False)):
        image = _panel(axes, panel, colors, several=len(chart.panels) > 1)
        if image is not None:
            images.append((axes, image, panel.series[0].unit))
        # shared axes are labeled once
        axes.label_outer(remove_inner_ticks=number % chart.across > 0)
    for axes in grid[len(chart.panels) :]:
        axes.set_visible(False)
    if images:
        shown = [axes for axes, _, _ in images]
        bar = figure.colorbar(images[0][1], ax=shown, pad=0.015, fraction=0.04)
        bar.set_label(images[0][2])
    _legend(figure, grid[: len(chart.panels)])
    smooth = max(panel.smooth for panel in chart.panels)
    smoothed = f"thick: mean of {smooth} points" if smooth > 1 else ""
    notes = dict.fromkeys(panel.note for panel in chart.panels)
    texts = [t.rstrip(".") for t in (chart.source, *notes, smoothed) if t]
    headline(figure, chart.title, ". ".join(texts))
    return figure


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
    axes: Axes, panel: Panel, colors: Normalize, *, several: bool
) -> AxesImage | None:
    image = None
    for series in panel.series:
        if series.kind == "heatmap":
            image = _heatmap(axes, series, colors)
        elif series.kind == "band":
            axes.fill_between(
                *(series.x, series.y, series.upper),
                color="#BBBBBB",
                linewidth=0,
                zorder=0,
                label=_label(series),
            )
        elif series.kind == "bars":
            axes.barh(
                *(series.y, series.x, series.width),
                left=0 if series.base is None else series.base,
                color=series.color,
                edgecolor=series.color,
                linewidth=0.3,  # keeps bars shorter than a pixel visible
                label=_label(series),
            )
        else:
            _marks(axes, series, panel.smooth)
    for rule in panel.rules:
        style: dict[str, Any] = {
            "color": rule.color,
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
                _plain(rule.text),
                (rule.x, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(2, 2),
                textcoords="offset points",
                fontsize=8,
            )
    for label in panel.labels:
        axes.text(
            *(label.x, label.y, _plain(label.text)),
            ha=label.across,
            va={"middle": "center"}.get(label.up, label.up),
            color=label.color,
            fontsize=8,
        )
    if several and panel.name:
        name = _plain(", ".join(panel.name))
        axes.set_title(name, loc="left", fontsize=10, pad=16 if panel.rules else None)
    _axis(axes, "x", panel.x)
    _axis(axes, "y", panel.y)
    if image is None:
        axes.grid(color="#E5E5E5", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["right", "top"]].set_visible(False)
    return image


def _marks(axes: Axes, series: Series, smooth: int) -> None:
    """Draw a line with its moving mean, or points with their intervals."""
    style: dict[str, Any] = {
        "color": series.color,
        "linestyle": DASHES[series.dash],
        "marker": "o" if series.marked or np.size(series.x) == 1 else None,
        "markersize": 4,
    }
    label = _label(series)
    for name, ends in (("xerr", series.x_interval), ("yerr", series.y_interval)):
        if ends is not None:
            at = np.asarray(series.x if name == "xerr" else series.y, np.float64)
            reach = [at - np.asarray(ends[0]), np.asarray(ends[1]) - at]
            bars: dict[str, Any] = {name: np.nan_to_num(np.maximum(reach, 0))}
            color = "black" if np.ndim(series.size) else series.color
            axes.errorbar(
                series.x, series.y, **bars, fmt="none", ecolor=color, capsize=2
            )
    if series.kind == "points":
        points = np.asarray(series.size, np.float64)
        axes.scatter(
            *(series.x, series.y),
            s=(0.75 * points) ** 2,
            color=series.color,
            alpha=series.opacity,
            marker=SYMBOLS[series.symbol],
            label=label,
            zorder=3,
        )
    elif smooth > 1 and not series.reference:
        values = pd.Series(np.asarray(series.y, np.float64))
        mean = values.rolling(smooth, center=True, min_periods=1).mean()
        axes.plot(series.x, values, **style | {"linewidth": 0.7, "alpha": 0.35})
        axes.plot(series.x, mean.where(values.notna()), **style, label=label)
    else:
        axes.plot(series.x, series.y, **style, linewidth=series.width, label=label)


def _heatmap(axes: Axes, series: Series, colors: Normalize) -> AxesImage:
    cells = np.asarray(series.z, np.float64)
    if isinstance(colors, LogNorm):
        cells = np.where(cells > 0, cells, np.nan)
    rows, columns = cells.shape
    at = [0, columns - 1] if isinstance(series.x[0], str) else series.x
    step = (at[-1] - at[0]) / (columns - 1) if columns > 1 else 1
    image = axes.imshow(
        np.ma.masked_invalid(cells),
        cmap="viridis",
        norm=colors,
        aspect="auto",
        interpolation="nearest",
        extent=(at[0] - step / 2, at[-1] + step / 2, rows - 0.5, -0.5),
    )
    axes.set_yticks(*_ticks(series.y))
    if isinstance(series.x[0], str):
        axes.set_xticks(*_ticks(series.x))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if rows * columns <= MOST_WRITTEN and columns <= 16:
        for (row, column), value in np.ndenumerate(cells):
            if np.isfinite(value):
                red, green, blue, _ = colormaps["viridis"](colors(float(value)))
                light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
                axes.text(
                    *(at[0] + column * step, row),
                    f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.2g}",
                    ha="center",
                    va="center",
                    fontsize=7.5 if columns <= 8 else 6.0,
                    color="black" if light else "white",
                )
    return image


def _ticks(names: Any) -> tuple[list[int], list[str]]:
    """Choose positions and texts of at most 16 ticks."""
    step = -(-len(names) // 16)
    at = list(range(0, len(names), step))
    return at, [_plain(str(names[n])) for n in at]


def _axis(axes: Axes, side: str, axis: Axis) -> None:
    of = axes.xaxis if side == "x" else axes.yaxis
    of.set_label_text(_plain(axis.label))
    if axis.log:
        axes.set(**{f"{side}scale": "log"})
    if axis.names:
        of.set_ticks(range(len(axis.names)), [_plain(n) for n in axis.names])
        axes.set(**{f"{side}lim": (-0.5, len(axis.names) - 0.5)})
    elif axis.label in ("iteration", "rank"):
        of.set_major_locator(MaxNLocator(integer=True))
    if axis.limits:
        axes.set(**{f"{side}lim": axis.limits})
    elif axis.from_zero:
        axes.set(**{f"{side}lim": (0, None)})
    if axis.reverse and not of.get_inverted():
        of.set_inverted(True)


def _legend(figure: Figure, panels: npt.NDArray[Any]) -> None:
    found: dict[str, Any] = {}
    for axes in panels:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(name, handle)
    if len(found) > 1 or any("interval" in n or "balanced" in n for n in found):
        longest = max(map(len, found)) + 9
        legend = figure.legend(
            list(found.values()),
            list(found),
            loc="outside lower center",
            ncols=max(1, min(len(found), LEGEND_LETTERS // longest)),
            frameon=False,
            fontsize=9,
        )
        for handle in legend.legend_handles:
            if isinstance(handle, PathCollection):
                handle.set_sizes([36.0])


def _label(series: Series) -> str | None:
    return _plain(series.name) if series.legend and series.name else None


def _plain(text: str) -> str:
    """Escape text so that matplotlib does not interpret dollar signs as mathematics."""
    return visible(text, lines=True).replace("$", r"\$")


def headline(figure: Figure, title: str, source: str) -> None:
    """Place title and data description above the axes, and enlarge the figure."""
    width, height = figure.get_size_inches()
    lines = textwrap.wrap(_plain(source), int(width * 14))
    deep = 0.42 + 0.17 * len(lines)  # inches
    whole = height + deep
    figure.set_size_inches(width, whole)
    place: dict[str, Any] = {"ha": "left", "va": "top"}
    across, down = 0.1 / width, 0.1 / whole
    figure.text(
        across, 1 - down, _plain(title), fontsize=13, fontweight="bold", **place
    )
    figure.text(
        across, 1 - 3.8 * down, "\n".join(lines), fontsize=9, color="#555555", **place
    )
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(rect=(0, 0, 1, 1 - deep / whole))

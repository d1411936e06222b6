"""A chart as a value: panels with axes, series, reference lines and labels.

:mod:`.figures` renders it with matplotlib as PNG, :mod:`.page.plotly` for the HTML
report.  Colors can be told apart with any color vision: Okabe and Ito's palette for
kinds, viridis for amounts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LINE_COLORS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)

PHASE_COLORS = {
    "dispatch": "#0072B2",
    "combine": "#E69F00",
    "combine_grad": "#CC79A7",
    "dispatch_grad": "#009E73",
}
"""Okabe and Ito's blue, orange, purple and green, in the phases' time order."""

OTHER_COLOR = "#8C8C8C"

DASHES = ("solid", "dash", "dot", "dashdot")

MOST_NAMED = 18
"""Of more lines than these, every n-th has a name in the legend."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis of a panel."""

    label: str = ""  # with the unit in brackets
    log: bool = False
    limits: tuple[float, float] | None = None  # None: from the data
    from_zero: bool = False
    reverse: bool = False  # increasing downwards, or to the left
    names: tuple[str, ...] = ()  # of the positions 0, 1, ...


@dataclass(frozen=True, kw_only=True)
class Series:
    """Marks that belong together: a line, points, bars, a band or a heatmap.

    Values that are not finite are gaps.  Positions may be text: categories.
    """

    kind: str = "line"  # "line", "points", "bars" (horizontal), "band", "heatmap"
    x: Any  # [n]; of bars their lengths; of a heatmap [columns]
    y: Any  # [n]; of a band its lower edge; of a heatmap [rows]
    name: str = ""
    color: str = LINE_COLORS[0]
    legend: bool = True
    width: float = 1.6  # of a line; of bars their thickness in units of y
    dash: str = "solid"  # one of DASHES
    symbol: str = "circle"  # of points; "circle", "diamond", "square", "cross", "tick"
    marked: bool = False  # a line with points on it
    size: Any = 6.0  # diameter of points in pixels, one or [n]
    opacity: float = 1.0
    upper: Any = None  # [n] upper edge of a band
    base: Any = None  # [n] where bars begin; None: 0
    z: Any = None  # [rows, columns] of a heatmap
    unit: str = ""  # of z
    x_interval: tuple[Any, Any] | None = None  # low and high ends, [n] each
    y_interval: tuple[Any, Any] | None = None
    hover: str = ""  # Plotly's template
    reference: bool = False  # no measurement: not smoothed


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A straight line across a panel."""

    x: float | None = None  # of a vertical line
    y: float | None = None  # of a horizontal line
    text: str = ""
    color: str = "#000000"
    width: float = 1.0
    dash: str = "dot"


@dataclass(frozen=True, kw_only=True)
class Label:
    """Text at a point of a panel."""

    x: float
    y: float
    text: str
    across: str = "left"  # "left", "center" or "right" of the text is at x
    up: str = "middle"  # "top", "middle" or "bottom" of the text is at y
    color: str = OTHER_COLOR


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A pair of axes and what is drawn into it; one state of a chart of the report."""

    name: tuple[str, ...] = ()  # a part for each choice of the chart
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    rules: tuple[Rule, ...] = ()
    labels: tuple[Label, ...] = ()
    smooth: int = 0  # points of a moving mean that is drawn over lines; 0: none
    note: str = ""  # on this panel alone


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart of one or more panels: beside each other as PNG, by choice in HTML."""

    key: str = ""  # of its element and its download in HTML
    title: str
    source: str  # what it was computed from
    panels: tuple[Panel, ...]
    columns: tuple[str, ...] = ()  # x, y (and z) with their units, of the download
    choices: tuple[str, ...] = ()  # what the parts of panels' names are
    height: int = 380  # pixels of a panel
    width: int = 900  # pixels of all panels
    across: int = 1  # panels beside each other
    log_color: bool = False  # of heatmaps


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A chart or table that cannot be made, and why."""

    title: str
    reason: str


def line_colors(number: int) -> list[str]:
    """Colors that can be told apart; of many, a scale from first to last."""
    if number <= len(LINE_COLORS):
        return list(LINE_COLORS[:number])
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    scale = colormaps["viridis"]
    return [to_hex(scale(i / (number - 1) * 0.92)) for i in range(number)]


def in_legend(number: int, most: int = MOST_NAMED) -> Sequence[bool]:
    """Which of so many lines are named in the legend."""
    step = max(1, -(-number // most))
    return [n % step == 0 for n in range(number)]

"""Chart data model: panels with axes, series, reference lines and labels.

:mod:`.figures` renders it with matplotlib as PNG, :mod:`.page.plotly` for the HTML
report.  Colors are distinguishable with any color vision: Okabe and Ito's palette for
categories, viridis for amounts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moetraffic.errors import MoetrafficError

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

FILE_FORMATS = ("png", "pdf", "svg")
"""File extensions of pictures."""

DASHES = ("solid", "dash", "dot", "dashdot")

MOST_NAMED = 18
"""Above this number of lines, only every n-th is named in the legend."""

COUNTED = ("iteration", "iterations ahead", "rank", "expert")
"""Labels of axes of whole numbers, whose ticks are whole, too."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Label, scale and limits of one axis of a panel."""

    label: str = ""  # with the unit in brackets
    log: bool = False
    limits: tuple[float, float] | None = None  # None: from the data
    from_zero: bool = False
    reverse: bool = False  # increasing downwards, or to the left
    names: tuple[str, ...] = ()  # of the positions 0, 1, ...

    @property
    def whole(self) -> bool:
        """Whether values are whole numbers, and so the ticks."""
        return self.label in COUNTED or self.label.endswith("[iterations]")


@dataclass(frozen=True, kw_only=True)
class Series:
    """Marks that belong together: a line, points, bars, a band or a heatmap.

    Non-finite values are gaps.  Positions may be text: categories.
    """

    kind: str = "line"  # "line", "points", "bars" (horizontal), "band", "heatmap"
    x: Any  # [n]; of bars their lengths; of a heatmap [columns]
    y: Any  # [n]; of a band its lower edge; of a heatmap [rows]
    name: str = ""
    color: str = LINE_COLORS[0]
    legend: bool = True
    width: float = 1.6  # of a line; of bars their thickness in units of y
    dash: str = "solid"  # one of DASHES
    symbol: str = "circle"  # of points; "circle", "diamond" or "tick"
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
    reference: bool = False  # not a measurement: never smoothed


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Straight reference line across a panel."""

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
    """Pair of axes with its series; one selectable view of a chart of the report."""

    name: tuple[str, ...] = ()  # one part per selector of the chart
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    rules: tuple[Rule, ...] = ()
    labels: tuple[Label, ...] = ()
    smooth: int = 0  # points of a moving mean that is drawn over lines; 0: none
    note: str = ""  # on this panel alone


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Chart of one or more panels: side by side as PNG, selectable in HTML."""

    key: str = ""  # of its element and its download in HTML
    title: str
    source: str  # description of the underlying data
    panels: tuple[Panel, ...]
    columns: tuple[str, ...] = ()  # x, y (and z) with their units, of the download
    choices: tuple[str, ...] = ()  # meaning of the parts of panel names
    height: int = 380  # pixels of a panel
    width: int = 900  # pixels of all panels
    across: int = 1  # panels side by side
    log_color: bool = False  # of heatmaps
    shared: bool = True  # whether panels in a row or column have one axis


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Chart or table that cannot be computed, and the reason."""

    title: str
    reason: str


def picture_format(path: Path) -> str:
    """Return the format of a picture, by its file extension.

    Raises
    ------
    MoetrafficError
        If it is none of :data:`FILE_FORMATS`.
    """
    kind = path.suffix.lower().lstrip(".")
    if kind not in FILE_FORMATS:
        raise MoetrafficError(
            f"pictures are PNG, PDF or SVG files, but {path.name!r} has another file "
            f"extension: name it {path.stem or 'picture'}.png"
        )
    return kind


def line_colors(number: int) -> list[str]:
    """Choose distinguishable line colors; for many lines, a continuous scale."""
    if number <= len(LINE_COLORS):
        return list(LINE_COLORS[:number])
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    scale = colormaps["viridis"]
    return [to_hex(scale(i / (number - 1) * 0.92)) for i in range(number)]


def in_legend(number: int) -> Sequence[bool]:
    """Select the lines to name in the legend: every n-th of more than MOST_NAMED."""
    step = max(1, -(-number // MOST_NAMED))
    return [n % step == 0 for n in range(number)]

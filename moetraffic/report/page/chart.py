"""Charts of a page: what Plotly draws, what it was computed from, its columns.

A chart has *views*, one of which is shown at a time; the page has a choice for each
part of a view's name.  A chart's data stand once in the page, in the traces: the
download is written from these by the browser.  Numbers are packed as Plotly's typed
arrays, base64 of little-endian values.

References
----------
plotly.js, ``src/lib/array.js``, ``decodeTypedArraySpec``: ``dtype``, ``bdata``,
``shape``.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.colors import to_hex

from moetraffic.report.figures import AMOUNTS, line_colors

Drawn = Mapping[str, Any]

FAINT = "#8C8C8C"
BAND = "rgba(140,140,140,0.30)"
SCALE = AMOUNTS.capitalize()

LONGEST = 1000
"""Points of a line; of longer ones, points at equal distances are drawn."""

MOST_POINTS = 250_000
"""Of all lines of a chart: more, and lines are thinned further."""

MOST_NAMED = 12
"""Lines with a name in the legend."""

PLAIN = 64
"""Fewer numbers than these stand in the page as text."""


@dataclass(frozen=True, kw_only=True)
class View:
    """One state of a chart."""

    name: tuple[str, ...] = ()  # a part for each choice
    traces: tuple[Drawn, ...]  # Plotly's
    layout: Drawn  # Plotly's, of what differs from the page's own
    smooth: int = 0  # points of a moving mean that is drawn over lines; 0: none
    aside: str = ""  # what is to be said of this view alone


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A figure of the page."""

    key: str  # of its element and its download
    title: str
    source: str  # what it was computed from, in words
    columns: tuple[str, ...]  # x, y (and z) with their units
    views: tuple[View, ...]
    choices: tuple[str, ...] = ()  # what the parts of views' names are
    height: int = 380  # pixels
    wide: bool = True  # over both columns


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A figure that there is not, and why."""

    title: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A table in words and figures."""

    key: str
    title: str
    source: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page."""

    key: str
    title: str
    about: str  # how to read it
    parts: tuple[Any, ...] = field(default=())  # Chart, Missing, Listed or Matrices


def packed(values: npt.ArrayLike, *, dtype: str = "") -> Any:
    """Numbers as Plotly takes them; what is not known is a gap.

    Parameters
    ----------
    values
        ``[n]`` or ``[rows, columns]``.
    dtype
        Of Plotly's, "i1" to "u4", "f4", "f8"; "": f4, or i4 of integers that fit.
    """
    array = np.asarray(values)
    if array.ndim == 1 and len(array) < PLAIN:
        return [_plain(v) for v in array.tolist()]
    kind = dtype
    if not kind:
        whole = array.dtype.kind in "iu" and np.abs(array).max(initial=0) < 1 << 31
        kind = "i4" if whole else "f8" if array.dtype.kind in "iu" else "f4"
    told: dict[str, Any] = {
        "dtype": kind,
        "bdata": base64.b64encode(
            np.ascontiguousarray(array, np.dtype(kind).newbyteorder("<")).tobytes()
        ).decode(),
    }
    if array.ndim > 1:
        told["shape"] = ", ".join(map(str, array.shape))
    return told


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value


def every(length: int, curves: int = 1) -> int:
    """Take every n-th point of so many curves of a length."""
    fit = max(16, min(LONGEST, MOST_POINTS // max(1, curves)))
    return max(1, -(-length // fit))


def thinned(step: int) -> str:
    """What is said of curves of which every n-th point is drawn."""
    return f" Every {ordinal(step)} iteration is drawn." if step > 1 else ""


def ordinal(number: int) -> str:
    """A number as a place.

    Examples
    --------
    >>> ordinal(2), ordinal(11), ordinal(23)
    ('2nd', '11th', '23rd')
    """
    ends = {1: "st", 2: "nd", 3: "rd"}
    end = "th" if number % 100 in (11, 12, 13) else ends.get(number % 10, "th")
    return f"{number}{end}"


def colors(number: int) -> list[str]:
    """So many colors that can be told apart with any color vision."""
    return [to_hex(color) for color in line_colors(number)]


def line(
    x: Any,
    y: Any,
    name: str,
    color: str,
    *,
    width: float = 1.6,
    dash: str = "solid",
    named: bool = True,
    **more: Any,
) -> dict[str, Any]:
    """A line of a chart."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "name": name,
        "showlegend": named,
        "line": {"color": color, "width": width, "dash": dash},
        **more,
    }


def band(x: Any, low: Any, high: Any, name: str) -> list[dict[str, Any]]:
    """A gray band between two lines."""
    # a band may be thinner than a pixel: its edges are drawn
    edge = {
        "mode": "lines",
        "type": "scatter",
        "x": x,
        "line": {"width": 1, "color": FAINT},
        "meta": "floor",
    }
    return [
        {**edge, "y": low, "name": f"{name}, low", "showlegend": False},
        {**edge, "y": high, "name": name, "fill": "tonexty", "fillcolor": BAND},
    ]


def axes(x: str, y: str, **more: Any) -> dict[str, Any]:
    """The titles of both axes; ``x_`` and ``y_`` before what else is said of them."""
    told: dict[str, Any] = {
        "xaxis": {"title": {"text": x}},
        "yaxis": {"title": {"text": y}},
    }
    for name, value in more.items():
        side, _, rest = name.partition("_")
        if side in ("x", "y") and rest:
            told[f"{side}axis"][rest] = value
        else:
            told[name] = value
    return told


def upright(x: float, text: str, color: str = "#000000") -> tuple[Drawn, Drawn]:
    """A vertical line over all of a chart, and its words."""
    shape = {
        "type": "line",
        "xref": "x",
        "yref": "paper",
        **{"x0": x, "x1": x, "y0": 0, "y1": 1},
        "line": {"color": color, "width": 1, "dash": "dot"},
    }
    words = {
        **{"x": x, "y": 1, "xref": "x", "yref": "paper", "text": text},
        **{"showarrow": False, "xanchor": "left", "yanchor": "top", "textangle": 90},
        "font": {"size": 10, "color": color},
        "bgcolor": "rgba(255,255,255,0.8)",  # read over lines, too
        "borderpad": 0,
    }
    return shape, words


def interval(
    low: npt.ArrayLike, high: npt.ArrayLike, y: Sequence[str], name: str, color: str
) -> dict[str, Any]:
    """Horizontal bars from low to high, a row each."""
    ends = np.stack([low, high, np.full(len(y), np.nan)], axis=1).reshape(-1)
    rows = [each for text in y for each in (text, text, None)]
    return {
        "type": "scatter",
        "mode": "lines+markers",  # with ends, which keep off the frame
        "name": name,
        "x": [_plain(v) for v in ends.tolist()],
        "y": rows,
        "line": {"color": color, "width": 2},
        "marker": {"symbol": "line-ns-open", "size": 8, "color": color},
        "hoverinfo": "skip",
    }


def bar_title(text: str) -> dict[str, Any]:
    """The title of a heatmap's color bar."""
    return {"title": {"text": text, "side": "right", "font": {"size": 12}}}


def names_shown(number: int) -> Sequence[bool]:
    """Which of so many lines have a name in the legend."""
    step = -(-number // MOST_NAMED)
    return [n % max(1, step) == 0 for n in range(number)]


def shorter(text: str, most: int = 34) -> str:
    """A text that fits beside an axis; its middle is left out."""
    keep = (most - 1) // 2
    return text if len(text) <= most else f"{text[:keep]}…{text[-keep:]}"

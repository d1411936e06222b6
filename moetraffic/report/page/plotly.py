"""Convert charts to plotly.js figures for the HTML report.

A chart of several panels shows one at a time; the page has a selector for each part of
a panel's name.  The page contains a chart's data once: the browser writes downloads
from these.  Numbers are packed as Plotly's typed arrays, base64 of
little-endian values.

References
----------
plotly.js, ``src/lib/array.js``, ``decodeTypedArraySpec``: ``dtype``, ``bdata``,
``shape``.
"""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.report.chart import OTHER_COLOR, Axis, Chart, Panel, Series
from moetraffic.text import visible

BAND = "rgba(140,140,140,0.30)"

PLAIN = 64
"""Arrays with fewer numbers than this are written as text."""

ROWS = ("rank", "expert")

MOST_TICKS = 12
"""Ranks with a tick: about so many."""

LONGEST = 48
"""Letters of a line in the legend: so many fit on a phone."""

SYMBOLS = {"tick": "line-ns-open"}


def as_dict(chart: Chart) -> dict[str, Any]:
    """Convert a chart to the data that the page's script reads.

    ``views`` are the panels, each with Plotly traces and layout.
    """
    return {
        "key": chart.key,
        "columns": chart.columns,
        "choices": chart.choices,
        "views": [
            {
                "name": panel.name,
                "traces": [trace for s in panel.series for trace in _traces(s)],
                "layout": _layout(panel),
                "smooth": panel.smooth,
                "aside": panel.note,
            }
            for panel in chart.panels
        ],
    }


def packed(values: npt.ArrayLike, *, dtype: str = "") -> Any:
    """Encode numbers as Plotly's typed arrays; non-finite values are gaps.

    Parameters
    ----------
    values
        ``[n]`` or ``[rows, columns]``; texts remain a list.
    dtype
        Plotly's "i1" to "u4", "f4" or "f8"; "": f4, or i4 or f8 for integers.
    """
    array = np.asarray(values)
    if array.dtype.kind == "U":
        return [_shown(text) for text in array.tolist()]
    if array.ndim == 1 and len(array) < PLAIN:
        return [_plain(v) for v in array.tolist()]
    kind = dtype
    if not kind:
        whole = array.dtype.kind in "iu" and np.abs(array).max(initial=0) < 1 << 31
        kind = "i4" if whole else "f8" if array.dtype.kind in "iu" else "f4"
    data = np.ascontiguousarray(array, np.dtype(kind).newbyteorder("<")).tobytes()
    found = {"dtype": kind, "bdata": base64.b64encode(data).decode()}
    if array.ndim > 1:
        found["shape"] = ", ".join(map(str, array.shape))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value


def _shown(text: str) -> str:
    """Escape text so that Plotly interprets no tags in it."""
    return visible(text).replace("<", "&lt;")


def _lines(name: str) -> str:
    """Break a name between words: the legend does not break lines by itself.

    A space for each break restores it in the data that the page saves.
    """
    return textwrap.fill(
        name, LONGEST, break_long_words=False, break_on_hyphens=False
    ).replace("\n", "<br>")


def _traces(of: Series) -> Iterator[dict[str, Any]]:
    x, y = packed(of.x), packed(of.y)
    common = {
        "x": x,
        "y": y,
        "name": _lines(_shown(of.name)),
        "showlegend": of.legend and bool(of.name),
        **({"hovertemplate": of.hover} if of.hover else {}),
        **({"meta": "floor"} if of.reference else {}),
    }
    line = {"color": of.color, "width": of.width, "dash": of.dash}
    if of.kind == "band":
        # edges keep bands thinner than a pixel visible
        edge = {
            "type": "scatter",
            "mode": "lines",
            "x": x,
            "line": {"width": 1, "color": OTHER_COLOR},
            "meta": "floor",
        }
        name = common["name"]
        yield {**edge, "y": y, "name": f"{name}, low", "showlegend": False}
        upper = packed(of.upper)
        yield {**edge, "y": upper, "name": name, "fill": "tonexty", "fillcolor": BAND}
    elif of.kind == "heatmap":
        finite = np.asarray(of.z)[np.isfinite(of.z)]
        yield {
            **common,
            "type": "heatmap",
            "z": packed(of.z),
            "zmin": 0,
            "zmax": float(finite.max(initial=0)) or 1.0,
            "colorscale": "Viridis",
            "colorbar": {
                "title": {"text": of.unit, "side": "right", "font": {"size": 12}}
            },
        }
    elif of.kind == "bars":
        yield {
            **common,
            "type": "bar",
            "orientation": "h",
            **({} if of.base is None else {"base": packed(of.base, dtype="f8")}),
            "width": of.width,
            # keeps bars shorter than a pixel visible
            "marker": {"color": of.color, "line": {"color": of.color, "width": 0.5}},
        }
    else:
        marks = "markers" if of.kind == "points" else "lines"
        yield {
            **common,
            "type": "scatter",
            "mode": "lines+markers" if of.marked else marks,
            "line": line,
            "marker": {
                "symbol": SYMBOLS.get(of.symbol, of.symbol),
                "size": packed(of.size) if np.ndim(of.size) else of.size,
                "color": of.color,
                "opacity": of.opacity,
            },
            **_interval("error_x", of.x, of.x_interval),
            **_interval("error_y", of.y, of.y_interval),
        }


def _interval(name: str, at: Any, ends: tuple[Any, Any] | None) -> dict[str, Any]:
    if ends is None:
        return {}
    low, high = (np.asarray(end, np.float64) for end in ends)
    return {
        name: {
            "type": "data",
            "symmetric": False,
            "array": packed(high - np.asarray(at)),
            "arrayminus": packed(np.asarray(at) - low),
            "thickness": 1.5,
        }
    }


def _layout(panel: Panel) -> dict[str, Any]:
    shapes, words = [], []
    for rule in panel.rules:
        upright = rule.x is not None
        at, along = ("x", "y") if upright else ("y", "x")
        place = rule.x if upright else rule.y
        shapes.append(
            {
                "type": "line",
                **{f"{at}ref": at, f"{along}ref": "paper"},
                **{f"{at}0": place, f"{at}1": place, f"{along}0": 0, f"{along}1": 1},
                "line": {"color": rule.color, "width": rule.width, "dash": rule.dash},
            }
        )
        if rule.text and upright:
            words.append(
                {
                    **{"x": place, "y": 1, "xref": "x", "yref": "paper"},
                    **{"text": _shown(rule.text), "showarrow": False},
                    **{"xanchor": "left", "yanchor": "bottom"},
                    "font": {"size": 10, "color": rule.color},
                }
            )
    words += [
        {
            **{"x": label.x, "y": label.y, "text": f"<i>{_shown(label.text)}</i>"},
            **{"xanchor": label.across, "yanchor": label.up, "showarrow": False},
            "font": {"color": label.color, "size": 11},
        }
        for label in panel.labels
    ]
    layout: dict[str, Any] = {
        "xaxis": _axis(panel.x, panel.series, "x"),
        "yaxis": _axis(panel.y, panel.series, "y"),
    }
    if shapes or words:
        layout |= {"shapes": shapes, "annotations": words}
    if any(s.kind == "bars" for s in panel.series):
        layout["barmode"] = "overlay"
    if any(rule.text for rule in panel.rules):
        # rule labels are between the panel and the legend
        top = {"yref": "container", "y": 0.99, "yanchor": "top"}
        layout |= {"margin": {"t": 64}, "legend": top}
    return layout


def _axis(axis: Axis, series: tuple[Series, ...], side: str) -> dict[str, Any]:
    found: dict[str, Any] = {"title": {"text": _shown(axis.label)}}
    if axis.log:
        found |= {"type": "log", "tickformat": "~s"}  # 20, not the digit 2 alone
    elif any(np.asarray(getattr(s, side)).dtype.kind == "U" for s in series):
        found["type"] = "category"
    if axis.names or axis.label in ROWS:
        found["zeroline"] = False  # the first row is no origin
    if axis.names:
        found |= {"tickvals": list(range(len(axis.names)))}
        found |= {"ticktext": [_shown(name) for name in axis.names]}
    elif axis.whole and "type" not in found:
        at = np.concatenate([[], *(np.ravel(getattr(s, side)) for s in series)])
        at = at[np.isfinite(at)]
        step = max(1, int(np.ptp(at)) // MOST_TICKS if at.size else 0)
        if step == 1 or axis.label == "rank":  # longer axes have whole ticks anyway
            found |= {"tick0": 0, "dtick": step}
    if axis.limits:
        ends = np.log10(axis.limits) if axis.log else axis.limits
        found["range"] = [float(end) for end in ends]
    elif axis.from_zero:
        found["rangemode"] = "tozero"
    if axis.reverse:
        found["autorange"] = "reversed"
    return found

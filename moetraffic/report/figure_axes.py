"""Label the axes of matplotlib figures: ticks, units, and texts that fit."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.ticker import (
    EngFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    StrMethodFormatter,
)

from moetraffic.text import visible

from .chart import Axis

MOST_PLAIN = 1e4
"""Largest value of a logarithmic axis without powers of ten."""

FEW_DECADES = 2.0
"""Decades of a logarithmic axis below which 2 and 5 of each are labeled, too."""

NAMES = 0.4
"""Largest share of a panel's width for the names of its rows."""

LINE = 1.2
"""Height of a line of text, relative to the font size."""

LETTER = 0.58
"""Mean width of a letter, relative to the font size."""


def set_axis(axes: Axes, side: str, axis: Axis, length_in: float) -> None:
    """Label an axis of a panel and set its scale, ticks and limits."""
    of = axes.xaxis if side == "x" else axes.yaxis
    figure: Any = axes.get_figure()
    place: Any = axes.get_subplotspec()
    width_in = figure.get_figwidth() / place.get_gridspec().ncols
    letters = int(NAMES * width_in / letter_in())
    of.set_label_text("\n".join(wrapped(axis_label(axis), length_in)))
    if axis.log:
        axes.set(**{f"{side}scale": "log"})
        log_ticks(of, *of.get_view_interval(), length_in)
        if axis.label.endswith("[s]"):
            of.set_major_formatter(EngFormatter("s"))
    if axis.names:
        names = [broken_name(name, letters) for name in axis.names]
        of.set_ticks(range(len(axis.names)), names)
        axes.set(**{f"{side}lim": (-0.5, len(axis.names) - 0.5)})
    elif axis.whole:
        tens = "iteration" in axis.label
        rows = side == "y"
        top = max(of.get_view_interval())
        of.set_major_locator(integer_ticks(length_in, top, tens=tens, rows=rows))
    if axis.limits:
        axes.set(**{f"{side}lim": axis.limits})
    elif axis.from_zero:
        axes.set(**{f"{side}lim": (0, 1.1 * of.get_view_interval()[1])})  # marks fit
    if axis.reverse and not of.get_inverted():
        of.set_inverted(True)


def log_ticks(of: XAxis | YAxis, least: float, most: float, length_in: float) -> None:
    """Label a logarithmic axis of few decades at 1, 2 and 5 where these fit, and small
    values without powers of ten."""
    decades = float(np.log10(most / least))
    if decades < 1:  # 1, 2 and 5 may be one of these
        of.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
        of.set_minor_formatter(NullFormatter())
    elif decades < FEW_DECADES and length_in / decades > 18 * letter_in():
        of.set_major_locator(LogLocator(subs=(1, 2, 5)))
        of.set_minor_formatter(NullFormatter())
    if most <= MOST_PLAIN:
        of.set_major_formatter(StrMethodFormatter("{x:g}"))


def axis_label(axis: Axis) -> str:
    """Return the label of an axis as it is written: the ticks of times have units."""
    text = plain(axis.label)
    return f"{text.removesuffix(' [s]')} (log)" if axis.log else text


def wrapped(text: str, length_in: float) -> list[str]:
    """Break a label into at most two lines, but not within parentheses."""
    whole = re.sub(
        r"[(\[][^)\]]*[)\]]", lambda m: m[0].replace(" ", "\N{NO-BREAK SPACE}"), text
    )
    letters = max(1, int(length_in / letter_in()))
    while len(lines := textwrap.wrap(whole, letters, break_long_words=False)) > 2:
        letters += 1
    return lines


def broken_name(name: str, letters: int) -> str:
    """Break a name after commas and colons alone."""
    whole = re.sub(r"(?<![,:]) ", "\N{NO-BREAK SPACE}", plain(name))
    return textwrap.fill(whole, letters, break_long_words=False, break_on_hyphens=False)


def chosen_ticks(names: Any, most: int) -> tuple[list[int], list[str]]:
    """Choose positions and texts of at most ``most`` ticks."""
    step = -(-len(names) // most)
    at = list(range(0, len(names), step))
    return at, [plain(str(names[n])) for n in at]


def integer_ticks(
    length_in: float, top: float, *, tens: bool = False, rows: bool = False
) -> MaxNLocator:
    """Place few enough ticks that numbers up to ``top`` have space between them.

    Steps divide tens if ``tens``, as of iterations; else powers of 2 are among them.
    The numbers of ``rows`` are below each other, those of columns side by side.
    """
    if rows:
        most = max(1, int(length_in / (LINE * rcParams["font.size"] / 72)))
    else:
        letters = 5 if tens else len(f"{top:.0f}") + 1
        most = max(1, min(9 if tens else 16, int(length_in / (letters * letter_in()))))
    steps = [1, 2, 2.5, 5, 10] if tens else [1, 2, 4, 5, 8, 10]
    return MaxNLocator(most, integer=True, steps=steps, min_n_ticks=1)


def letter_in() -> float:
    """Return the mean width of a letter, inches."""
    return float(LETTER * rcParams["font.size"] / 72)


def plain(text: str) -> str:
    """Escape text so that matplotlib does not interpret dollar signs as mathematics."""
    return visible(text, lines=True).replace("$", r"\$")

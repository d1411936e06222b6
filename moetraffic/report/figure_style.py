"""Width, fonts and colors of matplotlib figures, under the user's own rcParams.

The settings of this library apply where ``matplotlibrc`` and the style that was asked
for leave matplotlib's defaults unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.style

from moetraffic.errors import MoetrafficError

from .chart import LINE_COLORS

SETTINGS: dict[str, Any] = {
    "axes.axisbelow": True,
    "grid.color": "#E5E5E5",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.0,
    "errorbar.capsize": 2.0,
    "savefig.dpi": 150,
    "pdf.fonttype": 42,  # publishers reject Type 3 fonts
    "svg.hashsalt": "moetraffic",  # equal charts give equal bytes
}

# their stubs have the literal names of all settings
SET: Any = mpl.rcParams
DEFAULTS: Any = mpl.rcParamsDefault

NARROW_IN = 6.0
"""Width in inches below which the default font size is :data:`NARROW_POINTS`."""

NARROW_POINTS = 8.0

LEAST_IN, MOST_IN = 2.0, 60.0

UNITS_IN = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72.27}
"""Inches by unit; pt are those of TeX's ``\\columnwidth``."""


def inches(text: str) -> float:
    """Parse a width such as ``3.4in``, ``86mm`` or ``252pt``.

    Raises
    ------
    MoetrafficError
        If it is none, or not from 2 to 60 inches.
    """
    number, unit = text.strip()[:-2], text.strip()[-2:]
    try:
        width = float(number) * UNITS_IN[unit]
    except (ValueError, KeyError):
        width = -1.0
    if not LEAST_IN <= width <= MOST_IN:
        raise MoetrafficError(
            f"a width is a number with {', '.join(UNITS_IN)}, from {LEAST_IN:g} to "
            f"{MOST_IN:g} inches, not {text!r}: give for example 3.4in"
        )
    return width


@dataclass(frozen=True, kw_only=True)
class FigureStyle:
    """How a chart is drawn: the width, whether it has its title, and a style."""

    width_in: float | None = None  # None: that of the chart
    title: bool = True  # headline and description of the data
    style: str = ""  # name of a style of matplotlib's, or a .mplstyle file

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Set matplotlib's rcParams; the previous ones are restored.

        Raises
        ------
        MoetrafficError
            If there is no such style.
        """
        with mpl.rc_context():
            if self.style:
                _use(self.style)
            narrow = self.width_in is not None and self.width_in < NARROW_IN
            small = {"font.size": NARROW_POINTS} if narrow else {}
            for name, value in {**small, **SETTINGS}.items():
                if is_default(name):
                    SET[name] = value
            yield


def is_default(name: str) -> bool:
    """Whether a setting has the value that matplotlib ships."""
    return bool(SET[name] == DEFAULTS[name])


def points(relative: float, name: str = "") -> float | str:
    """Return a font size relative to ``font.size``, or the user's setting ``name``."""
    if name and not is_default(name):
        return str(SET[name])
    return float(relative * SET["font.size"])


def color_of(color: str) -> str:
    """Return the color of the user's ``axes.prop_cycle`` in place of a line's color."""
    if color not in LINE_COLORS or is_default("axes.prop_cycle"):
        return color
    own = SET["axes.prop_cycle"].by_key().get("color", LINE_COLORS)
    return str(own[LINE_COLORS.index(color) % len(own)])


def _use(style: str) -> None:
    known = style in matplotlib.style.library or Path(style).is_file()
    try:
        if not known:
            raise OSError("there is neither")
        matplotlib.style.use(style)
    except (OSError, ValueError) as error:
        raise MoetrafficError(
            f"a style is a name of matplotlib's, such as "
            f"{', '.join(sorted(matplotlib.style.available)[1:4])}, or a .mplstyle "
            f"file, not {style!r} ({error}): choose one"
        ) from None

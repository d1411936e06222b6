"""Heatmaps of matrices side by side, on one color scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .chart import Axis, Chart, Panel, Rule, Series


def matrix_chart(
    matrices: dict[str, np.ndarray],
    *,
    title: str,
    source: str,
    unit: str,
    column: str,
    rules: tuple[Rule, ...] = (),
    row: str = "sending rank",
    rows: Sequence[Any] = (),
    across: int = 0,
    log_color: bool = False,
) -> Chart:
    """Draw matrices side by side as heatmaps on one color scale.

    ``column`` and ``row`` are the labels of both axes and ``unit`` that of the cells;
    ``rows`` are the names of the rows (empty: their numbers). ``rules`` are lines
    across each matrix, ``across`` is the number of panels side by side (0: all). With
    ``log_color``, zeros are blank.
    """
    height, columns = next(iter(matrices.values())).shape
    beside = across or len(matrices)
    # square cells within limits, and panels wide enough for the values in the cells
    width = float(np.clip(42 * columns, 260, 460))
    return Chart(
        title=title,
        source=source,
        panels=tuple(
            Panel(
                name=(name,),
                x=Axis(label=column),
                y=Axis(label=row),
                series=(
                    Series(
                        kind="heatmap",
                        x=np.arange(columns),
                        y=rows or np.arange(height),
                        z=cells,
                        unit=unit,
                    ),
                ),
                rules=rules,
            )
            for name, cells in matrices.items()
        ),
        width=int(max(900, beside * (width + 35) + 130)),
        height=int(np.clip(width * height / columns, 120, 480)) + 90,
        across=beside,
        log_color=log_color,
    )


def byte_unit(most: float) -> tuple[float, str]:
    """Choose the unit of an amount of bytes, and how many bytes it is."""
    units = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    return next((unit for unit in units if most >= unit[0]), units[-1])

"""A computed pattern for people: its calls, its traffic by kind, its heatmaps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from rich.table import Table

from moetraffic.patterns.pattern import Pattern
from moetraffic.units import byte_size, rank_span

from .figures import AMOUNTS, headline

Int64 = npt.NDArray[np.int64]

MOST_COLUMNS = 4
"""Panels beside each other."""

SHOWN_GROUPS = 4


def calls_table(pattern: Pattern) -> Table:
    """A row for calls that differ in layer and micro-batch alone."""
    table = Table(box=None, header_style="bold", padding=(0, 1))
    for name in ("traffic", "group", "collective", "of", "pass", "stages"):
        table.add_column(name)
    for name in ("payload", "times", "of a rank"):
        table.add_column(name, justify="right")
    stages = pattern.grid.pp
    for call, held, times in pattern.rows():
        what = call.phase or call.label
        if call.operation == "send_recv" and not call.shift:
            what = f"stage {call.peers[0]} to {call.peers[1]}"
        about = "" if call.exact else "about "
        table.add_row(
            call.traffic,
            call.group,
            call.operation,
            what,
            call.direction,
            "all" if len(held) == stages else rank_span(held),
            about + byte_size(call.size),
            str(times),
            about + byte_size(call.size * times),
        )
    return table


def groups_table(pattern: Pattern) -> Table:
    """The groups that communicate, a row a kind."""
    table = Table(box=None, header_style="bold", padding=(0, 1))
    table.add_column("group")
    table.add_column("groups", justify="right")
    table.add_column("ranks", justify="right")
    table.add_column("world ranks of the first ones")
    for kind in pattern.kinds:
        groups = pattern.grid.groups(kind)
        first = "; ".join(rank_span(g) for g in groups[:SHOWN_GROUPS])
        more = "; ..." if len(groups) > SHOWN_GROUPS else ""
        table.add_row(kind, str(len(groups)), str(len(groups[0])), first + more)
    return table


def traffic_table(matrices: Mapping[str, Int64]) -> Table:
    """What crosses the network in an iteration, a row a kind of traffic."""
    table = Table(box=None, header_style="bold", padding=(0, 1))
    table.add_column("traffic")
    for name in ("between ranks", "share", "pairs", "largest pair", "busiest rank"):
        table.add_column(name, justify="right")
    for kind, one in traffic_figures(matrices).items():
        table.add_row(
            kind,
            byte_size(one["bytes"]),
            f"{one['share']:.1%}",
            str(one["pairs"]),
            byte_size(one["largest_pair_bytes"]),
            byte_size(one["busiest_rank_bytes"]),
        )
    return table


def traffic_figures(matrices: Mapping[str, Int64]) -> dict[str, dict[str, Any]]:
    """Sums of each kind's matrix ``[R, R]`` of bytes, by kind."""
    whole = sum(int(m.sum()) for m in matrices.values())
    return {
        kind: {
            "bytes": int(m.sum()),
            "share": int(m.sum()) / whole if whole else 0.0,
            "pairs": int((m > 0).sum()),
            "largest_pair_bytes": int(m.max(initial=0)),
            "busiest_rank_bytes": int(m.sum(axis=1).max(initial=0)),
        }
        for kind, m in matrices.items()
    }


def as_dict(pattern: Pattern, matrices: Mapping[str, Int64]) -> dict[str, Any]:
    """A pattern as plain data: calls, groups, traffic by kind and its matrices."""
    return {
        "model": pattern.name,
        "world": pattern.grid.world,
        "groups": {kind: pattern.grid.groups(kind) for kind in pattern.kinds},
        "calls": [
            {**asdict(call), "stages": stages, "times": times}
            for call, stages, times in pattern.rows()
        ],
        "traffic": {
            kind: {**one, "matrix_bytes": matrices[kind].tolist()}
            for kind, one in traffic_figures(matrices).items()
        },
    }


def heatmaps(
    matrices: Mapping[str, Int64], *, title: str, source: str = "", stage: int = 0
) -> Figure:
    """All traffic and that of each kind, on one logarithmic scale; none is white.

    Parameters
    ----------
    matrices
        ``[R, R]`` bytes by kind; row sends, column receives.
    title, source
        Headline, and what the figure was computed from.
    stage
        Consecutive ranks of a pipeline stage, between which lines part; 0: no lines.
    """
    shown: dict[str, Int64] = {
        kind: m for kind, m in matrices.items() if kind != "control" and m.any()
    }
    whole = sum(shown.values(), np.zeros_like(next(iter(matrices.values()))))
    if len(shown) != 1:
        shown = {"all": np.asarray(whole, np.int64), **shown}
    columns = max(1, len(shown))
    if columns > MOST_COLUMNS:  # two full rows rather than one and a rest
        columns = min(MOST_COLUMNS, ceil(columns / 2))
    lines = ceil(len(shown) / columns)
    figure = Figure(
        figsize=(max(6.4, 3.1 * columns + 1.0), 3.1 * lines + 1.1),
        layout="constrained",
    )
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    least = min((int(m[m > 0].min()) for m in shown.values() if m.any()), default=1)
    top = max(int(whole.max(initial=0)), least + 1)
    scale = LogNorm(least, top)
    colors = colormaps[AMOUNTS].with_extremes(bad="white")
    image = None
    for at, (panel, (kind, matrix)) in enumerate(
        zip(axes, shown.items(), strict=False)
    ):
        cells = np.ma.masked_equal(matrix, 0)
        image = panel.imshow(cells, cmap=colors, norm=scale, interpolation="nearest")
        panel.set_title(f"{kind}: {byte_size(int(matrix.sum()))}", fontsize=10)
        for edge in range(stage, len(matrix), stage) if stage else ():
            panel.axhline(edge - 0.5, color="0.8", linewidth=0.6, zorder=0)
            panel.axvline(edge - 0.5, color="0.8", linewidth=0.6, zorder=0)
        if at % columns == 0:
            panel.set_ylabel("sending rank")
        if at + columns >= len(shown):
            panel.set_xlabel("receiving rank")
    for panel in axes[len(shown) :]:
        panel.set_visible(False)
    if image is not None:
        bar = figure.colorbar(image, ax=list(axes), pad=0.015, fraction=0.04)
        bar.set_label("bytes in an iteration")
    headline(figure, title, source)
    return figure

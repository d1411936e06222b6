"""A verdict on a synthetic run as a table, a picture and plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Group
from rich.table import Table
from rich.text import Text

from moetraffic.validation.acceptance import LEVEL, Acceptance, Trial
from moetraffic.validation.classifier import NAME

from .figures import LINE_COLORS, OTHER_COLOR, headline

GOOD, BAD = LINE_COLORS[0], LINE_COLORS[1]

FURTHEST = 30.0
"""Times the usual distance, at which what is further away is drawn."""


def as_dict(found: Acceptance) -> dict[str, Any]:
    """What the battery says, as plain data."""
    return {
        **{k: v for k, v in asdict(found).items() if k != "tests"},
        "passed": found.passed,
        "classifier": NAME,
        "level": LEVEL,
        "tests": [asdict(t) | {"passed": t.passed} for t in found.tests],
    }


def verdict(found: Acceptance) -> str:
    """The verdict in a sentence."""
    if found.passed:
        return (
            f"passed: none of {len(found.tests)} tests tells the synthetic run from "
            f"real ones at the {1 - LEVEL:.0%} level, and the classifier's AUC is "
            f"{found.auc:.3f}"
        )
    failed = len(found.failures)
    parts = []
    if failed:
        parts.append(f"{failed} of {len(found.tests)} tests tell it from real runs")
    if found.recognized:
        parts.append(f"the classifier's AUC is {found.auc:.3f}")
    return f"failed: {' and '.join(parts)}"


def table(found: Acceptance) -> Group:
    """A row a test, the classifier below, and the verdict."""
    against = "each other" if found.way == "seeds" else "its twin"
    out = Table(
        title=f"{found.synthetic} against {len(found.real)} real "
        f"run{'s' * (len(found.real) != 1)}, by {found.way}",
        title_justify="left",
        box=None,
        header_style="bold",
        padding=(0, 1),
    )
    for name in ("layer", "test", "distance"):
        out.add_column(name)
    for name in ("synthetic", "usual", "limit", "p", "Holm", ""):
        out.add_column(name, justify="right")
    for t in found.tests:
        out.add_row(
            "all" if t.layer < 0 else str(t.layer),
            t.name,
            t.measure,
            _figure(t.distance),
            _figure(t.usual),
            _figure(t.limit),
            f"{t.p:.2g}",
            f"{t.adjusted:.2g}",
            "" if t.passed else "FAILED",
        )
    out.add_row(
        "all",
        "classifier",
        "AUC",
        _figure(found.auc),
        _figure(found.auc_usual),
        "",
        "",
        "",
        "FAILED" if found.recognized else "",
    )
    notes = [Text(f"note: {note}", style="yellow") for note in found.notes]
    meaning = (
        f"usual: how far real runs are from {against}; "
        f"limit: at p = {LEVEL:g} of one test"
        if found.way == "seeds"
        else f"p: by swapping time blocks with {against}"
        if found.way == "time blocks"
        else "p: twins beside the runs that they were fitted to, against the others"
    )
    return Group(out, Text(meaning), *notes, Text(verdict(found), style="bold"))


def _figure(value: float) -> str:
    return "" if np.isnan(value) else format(value, ".4g")


def figure(found: Acceptance) -> Figure:
    """The synthetic run among the real ones, a line a test.

    With seeds: distance to the real runs over what is usual between these; real runs
    gray, limits as strokes.  With time blocks: the adjusted p-values.
    """
    rows: dict[tuple[str, str], list[Trial]] = {}
    for test in found.tests:
        rows.setdefault((test.name, test.measure), []).append(test)
    seeds = found.way == "seeds"
    fig = Figure(figsize=(9.5, 1.2 + 0.42 * len(rows)), layout="constrained")
    FigureCanvasAgg(fig)
    axes = fig.add_subplot()
    for line, tests in enumerate(rows.values()):
        lift = np.linspace(-0.27, 0.27, len(tests)) if len(tests) > 1 else [0.0]
        for test, shift in zip(tests, lift, strict=True):
            at = line + float(shift)
            color = GOOD if test.passed else BAD
            if not seeds:
                axes.plot(test.adjusted, at, "o", color=color, markersize=5)
                continue
            unit = test.usual if test.usual > 0 else 1.0
            axes.plot(
                np.clip(np.array(test.own) / unit, 1 / FURTHEST, FURTHEST),
                np.full(len(test.own), at),
                ".",
                color=OTHER_COLOR,
                markersize=4,
            )
            if np.isfinite(test.limit):
                axes.plot(test.limit / unit, at, "|", color="black", markersize=6)
            far = min(test.distance / unit, FURTHEST)
            mark = ">" if test.distance / unit > FURTHEST else "o"
            axes.plot(max(far, 1 / FURTHEST), at, mark, color=color, markersize=5)
    axes.set_yticks(
        range(len(rows)), [f"{name} ({_short(measure)})" for name, measure in rows]
    )
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xscale("log")
    if seeds:
        axes.axvline(1.0, color="#CCCCCC", linewidth=0.8, zorder=0)
        axes.set_xlabel("distance to the real runs / usual distance between real runs")
    else:
        axes.axvline(LEVEL, color="black", linewidth=0.8, zorder=0)
        axes.set_xlabel("adjusted p-value")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="y", color="#EEEEEE", linewidth=6, zorder=0)
    axes.set_axisbelow(True)
    legend = (
        "gray: real runs; stroke: limit of one test; " if seeds else ""
    ) + "blue: passed; orange: failed; one mark a layer"
    headline(
        fig,
        f"Synthetic run {'passed' if found.passed else 'failed'}",
        f"{verdict(found)}. {legend}",
    )
    return fig


def _short(measure: str) -> str:
    return measure.split(",")[0].replace("Kolmogorov-Smirnov", "KS")

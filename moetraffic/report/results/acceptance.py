"""Report two-sample tests of a synthetic trace: table, chart and plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from moetraffic.report.chart import (
    LINE_COLORS,
    OTHER_COLOR,
    Axis,
    Chart,
    Panel,
    Rule,
    Series,
)
from moetraffic.tables import Table
from moetraffic.validation.acceptance import LEVEL, Acceptance, Trial
from moetraffic.validation.classifier import NAME

GOOD, BAD = LINE_COLORS[0], LINE_COLORS[1]

SHOWN_FAILURES = 4
"""Number of failed tests that the summary names."""

FURTHEST = 30.0
"""Upper limit of drawn distances, in units of the distance between real runs."""


def as_dict(found: Acceptance) -> dict[str, Any]:
    """Convert the verdict and all two-sample tests to plain data."""
    return {
        **{k: v for k, v in asdict(found).items() if k != "tests"},
        "passed": found.passed,
        "classifier": NAME,
        "level": LEVEL,
        "tests": [asdict(t) | {"passed": t.passed} for t in found.tests],
    }


def verdict(found: Acceptance) -> str:
    """Describe the verdict of the two-sample tests in one sentence."""
    auc = f"classifier AUC {found.auc:.3f}"
    number = len(found.tests)
    if found.passed:
        return (
            f"passed: 0 of {number} tests reject that the synthetic trace and the real "
            f"runs have one distribution, at the {LEVEL:.0%} significance level; {auc}"
        )
    failed = f"{len(found.failures)} of {number} tests reject the synthetic trace"
    parts = [failed] * bool(found.failures) + [auc] * found.recognized
    return f"failed: {'; '.join(parts)}"


def sentences(found: Acceptance) -> list[str]:
    """Summarize the two-sample tests: the verdict, the most significant tests, notes.

    A test fails if its Holm-adjusted p-value is below the level.
    """
    lines = [f"{_title(found)}: {verdict(found)}."]
    first = sorted(found.tests, key=lambda t: t.adjusted)
    if found.failures:
        some = [t for t in first if not t.passed][:SHOWN_FAILURES]
        more = len(found.failures) - len(some)
        lines += [f"failed test: {_described(t)}" for t in some]
        lines += [f"and {more} more failed tests"] * bool(more)
    elif first:
        lines.append(f"closest to rejection: {_described(first[0])}")
    return [*lines, *(f"note: {note}" for note in found.notes)]


def _title(found: Acceptance) -> str:
    several = "s" * (len(found.real) != 1)
    return (
        f"{found.synthetic} and {len(found.real)} real run{several}, tested by "
        f"{found.way}"
    )


def _described(test: Trial) -> str:
    where = "all layers" if test.layer < 0 else f"layer {test.layer}"
    usual = f" ({test.usual:.3g} between real runs)" if np.isfinite(test.usual) else ""
    return (
        f"{test.name} of {where}, {test.measure} {test.distance:.3g}{usual}, "
        f"Holm-adjusted p = {test.adjusted:.2g}"
    )


def table(found: Acceptance) -> Table:
    """Tabulate the two-sample tests, with the classifier in the last row."""
    against = "each other" if found.way == "seeds" else "the synthetic trace"
    meaning = {
        "seeds": f"between real runs: distance of real runs to {against}; limit: at "
        f"p = {LEVEL:g} of one test",
        "time blocks": f"p-value: by swapping time blocks with {against}",
    }
    default = "p-value: synthetic traces with the runs they were fitted to, or others"
    rows: list[tuple[object, ...]] = [
        (
            *("all" if t.layer < 0 else t.layer, t.name, t.measure, t.distance),
            *(t.usual, t.limit, t.p, t.adjusted, "" if t.passed else "FAILED"),
        )
        for t in found.tests
    ]
    failed = "FAILED" if found.recognized else ""
    auc = (found.auc, found.auc_usual)
    rows.append(("all", "classifier", "AUC", *auc, None, None, None, failed))
    return Table(
        title=_title(found),
        columns={
            **{"layer": "<", "test": "", "metric": ""},
            **dict.fromkeys(("distance", "between real runs", "limit"), ".4g"),
            **{"p-value": ".2g", "Holm-adjusted": ".2g", "": ">"},
        },
        rows=rows,
        notes=[
            meaning.get(found.way, default),
            *(f"note: {note}" for note in found.notes),
            verdict(found),
        ],
        styles={"FAILED": "bold red"},
    )


def figure(found: Acceptance) -> Chart:
    """Draw distances or p-values of the two-sample tests, a row for each test.

    With seeds: distance to the real runs relative to the distance between these; with
    time blocks: adjusted p-values.  There is one mark per layer.
    """
    seeds = found.way == "seeds"
    names = [f"{t.name} ({_short(t.measure)})" for t in found.tests]
    rows = list(dict.fromkeys(names))
    series = []
    for number, (test, name) in enumerate(zip(found.tests, names, strict=True)):
        layers = names.count(name)
        shift = np.linspace(-0.27, 0.27, layers)[names[:number].count(name)]
        at = rows.index(name) + (float(shift) if layers > 1 else 0.0)
        good = test.passed
        unit = test.usual if test.usual > 0 else 1.0
        value = test.adjusted
        if seeds:
            real = np.clip(np.array(test.own) / unit, 1 / FURTHEST, FURTHEST)
            limit = np.array([test.limit / unit])
            value = float(np.clip(test.distance / unit, 1 / FURTHEST, FURTHEST))
            for x, label, color, symbol in (
                (real, "real runs", OTHER_COLOR, "circle"),
                (limit, "rejection threshold of a single test", "#000000", "tick"),
            ):
                if np.isfinite(x).all():
                    series.append(
                        Series(
                            kind="points",
                            x=x,
                            y=np.full(len(x), at),
                            name=label,
                            color=color,
                            symbol=symbol,
                        )
                    )
        series.append(
            Series(
                kind="points",
                x=[value],
                y=[at],
                name="synthetic, passed" if good else "synthetic, failed",
                color=GOOD if good else BAD,
                size=8,
            )
        )
    axis = (
        "distance to the real runs / distance between real runs"
        if seeds
        else "adjusted p-value"
    )
    return Chart(
        title=f"Synthetic trace {'passed' if found.passed else 'failed'}",
        source=f"{verdict(found)}. One mark a layer",
        panels=(
            Panel(
                x=Axis(label=axis, log=True),
                y=Axis(names=tuple(rows), reverse=True),
                series=tuple(series),
                rules=(Rule(x=1.0 if seeds else LEVEL, dash="solid"),),
            ),
        ),
        width=950,
        height=150 + 42 * len(rows),
    )


def _short(measure: str) -> str:
    return measure.split(",")[0].replace("Kolmogorov-Smirnov", "KS")

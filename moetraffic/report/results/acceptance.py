"""Report tests of synthetic traces: summary, tables, chart and plain data."""

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
from moetraffic.tables import Table, tables_of
from moetraffic.validation.acceptance import FEWEST, Acceptance, Power
from moetraffic.validation.classifier import AucTest
from moetraffic.validation.figures import LEVEL, FigureTest

GOOD, BAD = LINE_COLORS[0], LINE_COLORS[1]

SHOWN_FAILURES = 3
"""Number of failed figures that the summary describes."""

FURTHEST = 30.0
"""Upper limit of drawn distances, in units of the limit."""


def as_dict(found: Acceptance) -> dict[str, Any]:
    """Convert the verdict and all tests to plain data."""
    told = asdict(found)
    for each, test in zip(told["figures"], found.figures, strict=True):
        each["passed"] = test.passed
    if found.classifier is not None:
        told["classifier"]["passed"] = found.classifier.passed
    return {
        "outcome": found.outcome,
        "passed": found.passed,
        "level": LEVEL,
        "together": found.together,
        "differs": found.differs,
        "recognized": found.recognized,
        **told,
    }


def verdict(found: Acceptance) -> str:
    """Describe the verdict in one sentence, without its period."""
    number, test = len(found.figures), found.classifier
    if found.resized:
        sizes = ", ".join(found.mismatches)
        return f"cannot be judged: the real runs are of another size ({sizes})"
    if found.mismatches:
        return f"failed: {', '.join(found.mismatches)}"
    if found.outcome == "failed":
        parts = []
        if found.failures:
            parts.append(f"{len(found.failures)} of {number} figures differ")
        elif found.together < LEVEL:
            parts.append(f"{number} figures together differ, p = {found.together:.2g}")
        if test is not None and found.recognized:
            parts.append(f"classifier AUC {test.auc:.2f}, limit {test.limit:.2f}")
        return f"failed: {'; '.join(parts)}"
    if found.outcome == "passed":
        compared, whole = found.lengths
        part = (
            f" for the first {compared} of {whole} iterations, the others are not "
            "compared"
        ) * (compared < whole)
        same = f"0 of {number} figures differ, and no classifier recognizes it"
        return f"passed{part}: {same}"
    units = "fits" if found.way == "fits" else "real runs"
    return f"cannot be judged: too few {units} ({_needs(found)})"


def _needs(found: Acceptance) -> str:
    needed, has = found.power.needed, len(found.real)
    return (
        f"needs {needed}, has {has}"
        if needed
        else f"has {has}; these differ so much that no practical number is enough"
    )


def sentences(found: Acceptance) -> list[str]:
    """Summarize the tests: verdict, failed figures with sizes, classifier, power."""
    lines = [f"{_title(found)}: {verdict(found)}."]
    if found.mismatches:
        return [*lines, "Sizes differ, so nothing else is compared."]
    failed = found.failures
    lines += [described(t) for t in failed[:SHOWN_FAILURES]]
    more = [t.name for t in failed[SHOWN_FAILURES:]]
    if more:
        lines.append(f"also different: {', '.join(more)}")
    elif not failed and found.together < LEVEL:
        lines += [described(t) for t in found.figures[:SHOWN_FAILURES]]
    elif found.figures and not failed:
        lines.append(f"closest to rejection: {described(found.figures[0])}")
    if found.classifier is not None:
        lines.append(_classifier(found.classifier))
    if found.figures:
        lines.append(power(found.power))
    if found.way == "runs" and len(found.real) == FEWEST and found.outcome != "failed":
        lines.append(
            "a fourth real run finds smaller differences: give a further rerun, or the "
            "run that the generator was fitted to"
        )
    return [*lines, *(f"note: {note}" for note in found.notes)]


def _title(found: Acceptance) -> str:
    if found.way == "fits":
        return (
            f"{len(found.synthetic)} synthetic traces against the runs that they were "
            "fitted to"
        )
    several = "s" * (len(found.real) != 1)
    return f"{found.synthetic[0]} against {len(found.real)} real run{several}"


def described(test: FigureTest) -> str:
    """Describe the size of a figure's difference, and its significance."""
    mean = float(np.mean(test.real))
    span = f"{min(test.real):.3g} to {max(test.real):.3g}"
    share = (test.synthetic - mean) / abs(mean) if abs(mean) > 0.01 else float("nan")
    relative = f", {share:+.0%} from their mean" if np.isfinite(share) else ""
    return (
        f"{test.name}: {test.synthetic:.3g}, real runs {span}{relative}; "
        f"{test.distance:.1f} times the usual distance of a real run (limit "
        f"{test.limit:.1f}), adjusted p = {test.adjusted:.2g}"
    )


def _classifier(test: AucTest) -> str:
    low, high = test.interval
    usual = (
        f"; between real runs {min(test.real):.2f} to {max(test.real):.2f}"
        if test.real
        else ""
    )
    return (
        f"classifier AUC {test.auc:.2f} (95% interval {low:.2f} to {high:.2f}){usual}; "
        f"limit {test.limit:.2f}"
    )


def power(found: Power) -> str:
    """Describe which changes of max/mean the tests find."""
    cases = int(10 * found.probability)
    line = f"power: finds a {found.change:.0%} change of max over mean in {cases} of 10"
    line += " cases"
    if np.isfinite(found.detectable) and found.detectable != found.change:
        line += f", one of {found.detectable:.0%} in 9 of 10"
    return line


@tables_of.register
def tables(found: Acceptance) -> list[Table]:
    """Tabulate the figures and the classifiers."""
    figures = Table(
        title=_title(found),
        columns={
            "figure": "",
            **dict.fromkeys(("synthetic", "real runs, smallest", "largest"), ".4g"),
            **dict.fromkeys(("distance", "limit"), ".3g"),
            **{"p-value": ".2g", "Holm-adjusted": ".2g", "result": ""},
        },
        rows=[
            (
                *(t.name, t.synthetic, min(t.real), max(t.real), t.distance, t.limit),
                *(t.p, t.adjusted, "passed" if t.passed else "FAILED"),
            )
            for t in found.figures
        ],
        notes=[
            "means over sections of a run and layers; distance: 1 is usual for a real "
            f"run; limit: at p = {LEVEL:g} over the figures that do not fail (Holm)",
            *(f"note: {note}" for note in found.notes),
            verdict(found),
        ],
        styles={"FAILED": "bold red"},
    )
    test = found.classifier
    if test is None:
        return [figures]
    rows = [(name, auc, test.limit) for name, auc in test.by_classifier.items()]
    runs = [
        (f"the better one, {name}", auc, test.limit)
        for name, auc in zip(found.real, test.real, strict=False)
    ]
    return [
        figures,
        Table(
            title="Classifiers of windows of 10 iterations",
            columns={"classifier": "", "AUC": ".3f", "limit": ".3f"},
            rows=rows + runs,
            notes=[_classifier(test)],
        ),
    ]


def figure(found: Acceptance) -> Chart:
    """Draw the distance of each figure, and the AUC, in units of their limits."""
    names = [t.name for t in found.figures]
    values = [
        (t.distance / t.limit, np.array(t.own) / t.limit, t.passed)
        for t in found.figures
    ]
    test = found.classifier
    if test is not None:
        names.append("classifier AUC")
        values.append(
            (test.auc / test.limit, np.array(test.real) / test.limit, test.passed)
        )
    series = []
    for at, (synthetic, real, good) in enumerate(values):
        for x, name, color, size in (
            (real, "real runs", OTHER_COLOR, 6.0),
            (
                np.array([synthetic]),
                f"synthetic, {'passed' if good else 'failed'}",
                GOOD if good else BAD,
                8.0,
            ),
        ):
            series.append(
                Series(
                    kind="points",
                    x=np.clip(x, 1 / FURTHEST, FURTHEST),
                    y=np.full(len(x), at),
                    name=name,
                    color=color,
                    size=size,
                )
            )
    return Chart(
        title=f"Synthetic trace: {found.outcome}",
        source=f"{_title(found)}: {verdict(found)}",
        panels=(
            Panel(
                x=Axis(label="distance / limit", log=True),
                y=Axis(names=tuple(names), reverse=True),
                series=tuple(series),
                rules=(Rule(x=1.0, text="limit", dash="solid"),),
            ),
        ),
        width=950,
        height=150 + 32 * len(names),
    )

"""Tabulate the comparison of two traces."""

from __future__ import annotations

from collections.abc import Sequence

from moetraffic.analysis.claim import LEVEL as CLAIMED
from moetraffic.analysis.claim import Claim, Outcome
from moetraffic.analysis.comparison import SCALES, Comparison, Distance
from moetraffic.analysis.resampling import LEVEL
from moetraffic.analysis.times.completion import TimeRatio
from moetraffic.report.answer import figure_of
from moetraffic.tables import Table, tables_of
from moetraffic.units import amount


@tables_of.register
def tables(comparison: Comparison, above: Sequence[Distance] = ()) -> list[Table]:
    """Tabulate the distances between two traces, and the times of common calls.

    Parameters
    ----------
    comparison
        Comparison of two traces.
    above
        Distances above a threshold, which the table marks.
    """
    scales = {d.measure: SCALES[d.measure] for d in comparison.distances}
    distances = Table(
        title="Distances between the two runs",
        columns={
            "layer": "<",
            "quantity": "",
            "metric": "",
            "first": ">",
            "second": ">",
            "distance": ".4g",
            f"{LEVEL:.0%} interval": ".4g",
            "within-run noise (95th percentile)": ".4g",
            "": ">",
        },
        rows=[
            (
                "all" if d.layer < 0 else d.layer,
                *(d.of, d.measure, amount(d.a, d.unit), amount(d.b, d.unit)),
                *(d.value, (d.low, d.high), d.floor),
                "above threshold"
                if d in above
                else "exceeds noise"
                if d.beyond_chance
                else "",
            )
            for d in comparison.distances
        ],
        notes=[
            *(f"{measure}: {scale}" for measure, scale in scales.items()),
            *(f"note: {note}" for note in comparison.notes),
        ],
        styles={"above threshold": "bold red", "exceeds noise": "yellow"},
    )
    return [distances, *([times(comparison.times)] if comparison.times else [])]


def claims(first: Sequence[Claim], second: Sequence[Claim]) -> Table:
    """Tabulate the outcomes of the same claims about two traces, side by side."""
    runs = [{(c.about, c.name): c for c in found} for found in (first, second)]
    return Table(
        title="Claims of the two runs",
        columns=dict.fromkeys(("about", "claim", "first", "second"), "<"),
        rows=[
            (*key, *(_outcome(run[key]) if key in run else None for run in runs))
            for key in dict.fromkeys([*runs[0], *runs[1]])
        ],
        notes=[f"a claim is stated if p < {CLAIMED:g}"],
    )


def _outcome(claim: Claim) -> str:
    """Format the outcome of a claim, with its figure or what it needs."""
    detail = figure_of([claim]) if claim.stated else ""
    if claim.outcome is Outcome.NOT_ENOUGH_DATA:
        detail = f"needs {claim.needs:,}, has {claim.used:,}"
    return f"{claim.outcome.value}{f': {detail}' if detail else ''}"


def times(ratios: Sequence[TimeRatio], title: str = "Times of common calls") -> Table:
    """Tabulate the durations of common calls in both runs, by category of call."""
    quantiles = ("p50, first", "p50, second", "p99, first", "p99, second")
    return Table(
        title=title,
        columns={
            **{"part": "", "time": "", "calls": ""},
            **dict.fromkeys(quantiles, "s"),
            **{"ratio of totals": ".4g", f"{LEVEL:.0%} interval": ".4g"},
        },
        rows=[
            (
                "all calls" if r.by == "all" else f"{r.by} {r.label}".strip(),
                *(r.measure, r.number, r.a.p50, r.b.p50, r.a.p99, r.b.p99),
                *(r.ratio.value, (r.ratio.low, r.ratio.high)),
            )
            for r in ratios
        ],
    )

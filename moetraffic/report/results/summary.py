"""Tabulate an analysis for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from moetraffic.analysis import (
    Analysis,
    ExchangeAnalysis,
    Subject,
    Trajectory,
    stage_means,
)
from moetraffic.analysis.claim import Claim, Outcome
from moetraffic.analysis.forecast.accuracy import mean_of_known as mean
from moetraffic.analysis.forecast.usefulness import sentence
from moetraffic.tables import Table, tables_of
from moetraffic.units import byte_size, rank_span

from .experts import expert_tables
from .forecasts import bound_table, forecast_tables, lead_time_table
from .rhythm import statistics_tables, time_table

METRICS = {
    "normalized_entropy": 1,
    "max_over_mean": 1,
    "cv": 0,
    "gini": 0,
    "sparsity": 0,
}
"""Metrics of the table, and their values when perfectly balanced."""

SHOWN_LAYERS = 6
"""Maximum number of layers shown; of more layers, a sample at equal distances."""

TOLERANCE = 0.2
"""Relative error for which forecast verdicts are shown."""


@tables_of.register
def tables(analysis: Analysis) -> list[Table]:
    """Tabulate all statistics of an analysis.

    Of many layers a sample is shown; plain data and records contain all.
    """
    return [table for part in by_part(analysis).values() for table in part]


def by_part(analysis: Analysis) -> dict[str, list[Table]]:
    """Tabulate an analysis by part (:data:`moetraffic.analysis.PARTS`), then notes."""
    every = analysis.exchanges
    shown = list(every)
    if len(every) > SHOWN_LAYERS:
        at = np.linspace(0, len(every) - 1, SHOWN_LAYERS).round().astype(int)
        shown = [every[i] for i in at]
    spent = analysis.occupation
    found = {
        "claims": _claims(analysis),
        "skew": [_skew(shown), *expert_tables(shown), _network(shown)],
        "forecasts": forecast_tables(_subjects(shown)),
        "limits": [bound_table(_subjects(shown))],
        "convergence": [_convergence(shown)],
        "complexity": [_complexity(shown)],
        "rhythm": _rhythm(analysis),
        "within": [_within(analysis), lead_time_table(analysis)],
        "time-breakdown": [] if spent is None else [time_table(spent)],
    }
    notes = [f"note: {note}" for note in analysis.notes]
    if len(shown) < len(every):
        notes.append(
            f"{len(shown)} of {len(every)} layers and groups are shown: --json and -o "
            "have them all"
        )
    found["notes"] = [Table(rows=[], notes=notes)]
    return {
        # a table of notes alone has no title
        part: [t for t in tables if t.rows or (t.notes and not t.title)]
        for part, tables in found.items()
    }


def settled(course: Trajectory) -> str:
    """Name the first step of a trajectory's stable part, or why there is none."""
    if course.converged:
        return str(course.settled_at) if course.settled_at >= 0 else "level throughout"
    few = course.converged is None
    return str((Outcome.NOT_ENOUGH_DATA if few else Outcome.NO_EVIDENCE).value)


def _claims(analysis: Analysis) -> list[Table]:
    """Tabulate the claims of each subject, then null hypotheses and limits (*)."""
    rows: dict[str, list[tuple[object, ...]]] = {}
    for claim in analysis.claims:
        subject, _, end = claim.about.rpartition(", ")
        ahead = end.removesuffix("ahead").split()[0] if end.endswith(" ahead") else ""
        rows.setdefault(subject if ahead else claim.about, []).append(
            (
                *(claim.name, ahead, claim.result + "*" * bool(claim.flags)),
                *_estimate(claim),
                "<0.001" if claim.p < 0.001 else claim.p,
                *(claim.used, claim.left_out or None),
                claim.needs if claim.outcome is Outcome.NOT_ENOUGH_DATA else None,
            )
        )
    nulls = (
        f"{claim.name}: null hypothesis: {claim.null}"
        + (f"; figure: {of}" if (of := claim.measure or claim.unit) else "")
        for claim in analysis.claims
    )
    limits = (
        f"* {claim.name} of {claim.about}: {flag}"
        for claim in analysis.claims
        for flag in claim.flags
    )
    columns = {
        **{"claim": "<", "ahead": ">", "outcome": "<", "figure": ".4g"},
        **{"95% interval": ".4g", "p-value": ".2g"},
        **{"used": "", "left out": "", "needs": ""},
    }
    return [
        *(Table(title=name, columns=columns, rows=each) for name, each in rows.items()),
        Table(rows=[], notes=list(dict.fromkeys([*nulls, *limits]))),
    ]


def _estimate(claim: Claim) -> tuple[object, object]:
    """Return figure and interval; an excess over noise that is clipped has neither."""
    if claim.figure == 0 < claim.high and "CV" in claim.measure:
        return "not above noise", f"at most {claim.high:.4g}"
    return claim.figure, (claim.low, claim.high)


def _rhythm(analysis: Analysis) -> list[Table]:
    every = analysis.beats.found
    if not every:
        return []
    made = statistics_tables(analysis, most=len(every))
    return [table for table in made if isinstance(table, Table)]


def _within(analysis: Analysis) -> Table:
    return Table(
        rows=[],
        notes=[
            f"From the first dispatch: {sentence(sight.verdict, tolerance=TOLERANCE)}"
            for sight in analysis.sights[:SHOWN_LAYERS]
        ],
    )


def _subjects(
    exchanges: list[ExchangeAnalysis],
) -> Iterator[tuple[tuple[object, ...], Subject]]:
    """Yield each subject with the layer, ranks and quantity of its rows."""
    for exchange in exchanges:
        where = (exchange.layer, rank_span(exchange.ranks))
        for subject in exchange.subjects:
            yield (*where, subject.name.replace("_", " ")), subject


def _skew(exchanges: list[ExchangeAnalysis]) -> Table:
    rows = []
    for where, subject in _subjects(exchanges):
        for metric, balanced in METRICS.items():
            curve = subject.curves.get(metric)
            if curve is None or (metric == "sparsity" and not curve.values.any()):
                continue
            floor = curve.floor
            rows.append(
                (
                    *(*where, f"{metric.replace('_', ' ')} ({balanced})"),
                    *stage_means(curve.values).tolist(),
                    None if floor is None else mean(floor.mean),
                )
            )
    return Table(
        title="Load skew, and the noise floor of a balanced router",
        columns={
            **{"layer": "<", "ranks": "", "quantity": ""},
            "metric (value when perfectly balanced)": "",
            **dict.fromkeys(("early", "middle", "late", "noise floor"), ".4f"),
        },
        rows=rows,
    )


def _convergence(exchanges: list[ExchangeAnalysis]) -> Table:
    rows = []
    for exchange in exchanges:
        both = exchange.convergence
        if both is None:
            continue
        for name, course, hot in (
            ("load", both.load, both.hot_experts),
            ("matrix", both.cells, both.hot_cells),
        ):
            changed = course.changed_at.tolist()
            rows.append(
                (
                    *(exchange.layer, name),
                    settled(course),
                    ", ".join(map(str, changed[:4])) + ("..." if changed[4:] else ""),
                    # an approach to a level, if there is one that is reached
                    float(course.half_life) if course.faded else None,
                    course.beyond_counting,
                    float(hot.overlap[0]) if len(hot.overlap) else None,
                    *(hot.random_overlap, hot.counting_overlap),
                )
            )
    shares = ("hot-expert retention after 1 iteration", "expected if random")
    return Table(
        title="Convergence and hot-expert retention",
        columns={
            **{"layer": "<", "quantity": "", "converged at iteration": ">"},
            **{"change points": ">", "half-life of the transient, it.": ".1f"},
            "change relative to sampling noise": ".2f",
            **dict.fromkeys((*shares, "expected from sampling noise"), ".1%"),
        },
        rows=rows,
    )


def _network(exchanges: list[ExchangeAnalysis]) -> Table:
    rows = [
        (
            *(exchange.layer, rank_span(exchange.ranks)),
            *(mean(net.line_efficiency), mean(net.bottleneck_bytes)),
            *(_with(mean(net.inter_host), net.inter_host_uniform), net.nic_flows),
            net.largest_flows_byte_share,
        )
        for exchange in exchanges
        if (net := exchange.network) is not None
    ]
    return Table(
        title="Network statistics: means over the iterations",
        columns={
            **{"layer": "<", "ranks": "", "line efficiency": ".3f"},
            **{"bottleneck port": "bytes"},
            **{"inter-host share (if uniform)": ">", "flows per NIC": ".1f"},
            "byte share of the top 10% of flows": ".1%",
        },
        rows=rows,
    )


def _complexity(exchanges: list[ExchangeAnalysis]) -> Table:
    rows = [
        (e.layer, rank_span(e.ranks), of.temporal, of.non_temporal, of.trace_complexity)
        for e in exchanges
        if (of := e.complexity) is not None
    ]
    return Table(
        title="Trace complexity of the packets between ranks, 1 = no structure",
        columns={"layer": "<", "ranks": ""}
        | dict.fromkeys(("temporal T", "non-temporal NT", "T x NT"), ".3f"),
        rows=rows,
    )


def _with(share: float, uniform: float) -> str:
    """Format a share and, in brackets, a second one; blank where unknown."""
    beside = f" ({uniform:.1%})" if np.isfinite(uniform) else ""
    return f"{share:.1%}{beside}" if np.isfinite(share) else ""


def replay_sentence(found: Mapping[str, Any]) -> str:
    """State all-to-alls, bytes and busbw of a replay from its plain data."""
    every = found["fidelity"]["parts"]
    parts = {part["label"]: part for part in every if part["by"] == "operation"}
    part = parts.pop("all_to_all", None)
    if part is None:
        return "Replay: no all-to-all."
    beside = "; ".join(
        f"{other['number']:,} {name}, {byte_size(other['total_bytes'])}"
        for name, other in parts.items()
    )
    busbw = part["busbw_gbs"]
    rate = "" if busbw is None else f"; busbw {busbw:.3g} GB/s by transfer time"
    checked = "every size and byte verified" if found["verified"] else "not verified"
    return (
        f"Replay: {part['number']:,} all-to-alls, {byte_size(part['total_bytes'])}, "
        f"{byte_size(part['network_bytes'])} of it between {found['ranks']} ranks, "
        f"{found['backend']}, {checked}"
        + rate
        + (f"; beside {beside}" if beside else "")
        + "."
    )

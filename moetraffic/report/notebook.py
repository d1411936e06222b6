"""Tables that notebooks show for traces, analyses and comparisons.

Importing this module registers them with :func:`moetraffic.tables.tables_of`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from moetraffic.analysis import Analysis, Comparison
from moetraffic.analysis.forecast.usefulness import sentence
from moetraffic.tables import Table, tables_of
from moetraffic.trace import Trace

from .plain_data import mean

MOST = 40
"""Rows of a table."""


@tables_of.register
def trace_tables(trace: Trace) -> list[Table]:
    """Tabulate a trace's origin, ranks and steps, and its call sites, without bytes."""
    meta = trace.meta
    counts = np.bincount(trace.occurrences.site, minlength=len(trace.sites)).tolist()
    operations: Counter[str] = Counter()
    rows = []
    for site, count in zip(trace.sites, counts, strict=True):
        operations[site.operation] += count
        name = site.phase or site.label or site.operation
        kind = trace.groups[site.group].kind
        layer = str(site.layer) if site.layer >= 0 else ""
        rows.append((layer, name, site.operation, kind, count))
    facts = {
        "origin": meta.origin,
        "model": meta.model or "unknown",
        "router": (meta.router or "unknown") + f", k={meta.k}" * bool(meta.k),
        "ranks": f"{meta.world} (ep {meta.ep}, dp {meta.dp}, tp {meta.tp})",
        "MoE layers": ", ".join(map(str, trace.layers)) or "unknown",
        "steps": f"{len(trace.steps.iteration)}, training {len(trace.iterations)}",
        "calls": ", ".join(f"{n} {name}" for name, n in operations.most_common() if n),
        "made by": f"moetraffic {meta.moetraffic}, torch {meta.torch}, {meta.created}",
    }
    columns = ("layer", "call", "operation", "group", "count")
    notes = [] if meta.complete else [f"missing: {meta.missing}"]
    return [
        Table(title=trace.name, rows=list(facts.items())),
        _short("call sites", columns, rows, notes),
    ]


@tables_of.register
def analysis_tables(found: Analysis) -> list[Table]:
    """Tabulate every metric at the start and end of the run, with its noise floor.

    Values are means over the first and the last tenth of the iterations.
    """
    rows, said = [], []
    for exchange in found.exchanges:
        for subject in exchange.subjects:
            for measure, curve in subject.curves.items():
                tenth = max(1, len(curve.values) // 10)
                floor = np.nan if curve.floor is None else mean(curve.floor.mean)
                rows.append(
                    (
                        *(str(exchange.layer), len(exchange.ranks), subject.name),
                        *(measure, mean(curve.values[:tenth])),
                        *(mean(curve.values[-tenth:]), floor),
                    )
                )
            if subject.forecasts is not None and subject.forecasts.verdicts:
                first = subject.forecasts.verdicts[0]
                if not first.reason:
                    said.append(
                        f"layer {exchange.layer}, {subject.name}: {sentence(first)}"
                    )
    columns = (
        *("layer", "ranks", "quantity", "metric"),
        *("first tenth", "last tenth", "noise floor"),
    )
    notes = [*said, *(f"note: {note}" for note in found.notes)]
    return [_short("analysis", columns, rows, notes)]


@tables_of.register
def comparison_tables(found: Comparison) -> list[Table]:
    """Tabulate distances with their intervals and the within-run noise."""
    rows = [
        (
            *("all" if d.layer < 0 else str(d.layer), d.of, d.measure),
            *(d.value, (d.low, d.high), d.floor),
            "exceeds noise" if d.beyond_chance else "",
        )
        for d in found.distances
    ]
    columns = (
        *("layer", "quantity", "metric", "distance", "interval"),
        *("within-run noise (95th percentile)", ""),
    )
    notes = [f"note: {note}" for note in found.notes]
    return [_short("comparison", columns, rows, notes)]


def _short(
    title: str,
    columns: tuple[str, ...],
    rows: Sequence[Sequence[object]],
    notes: list[str],
) -> Table:
    if len(rows) > MOST:
        notes.insert(0, f"{MOST} of {len(rows)} rows are shown")
    return Table(title=title, columns=columns, rows=rows[:MOST], notes=notes)

"""Register the tables that notebooks show for results.

Importing this module registers them with :func:`moetraffic.tables.tables_of`.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from moetraffic.tables import Table, tables_of
from moetraffic.trace import Trace

from .results import comparison, fabric, summary

__all__ = ["comparison", "fabric", "summary", "trace_tables"]

MOST = 12
"""Maximum number of call sites shown."""


@tables_of.register
def trace_tables(trace: Trace) -> list[Table]:
    """Tabulate a trace's origin, ranks, steps and call sites, without bytes."""
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
    if len(rows) > MOST:
        notes.insert(0, f"{MOST} of {len(rows)} call sites are shown")
    return [
        Table(title=trace.name, rows=list(facts.items())),
        Table(title="call sites", columns=columns, rows=rows[:MOST], notes=notes),
    ]

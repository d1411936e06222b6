"""How a notebook shows a trace."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from moetraffic.tables import Table

if TYPE_CHECKING:
    from .trace import Trace

MOST_SITES = 12


def html(trace: Trace) -> str:
    """A trace's origin, ranks and steps, and its call sites; reads no matrix.

    Returns
    -------
    str
        HTML.
    """
    meta = trace.meta
    facts = [
        ("origin", meta.origin),
        ("model", meta.model or "not told"),
        ("router", f"{meta.router or 'not told'}" + (f", k={meta.k}" * bool(meta.k))),
        ("ranks", f"{meta.world} (ep {meta.ep}, dp {meta.dp}, tp {meta.tp})"),
        ("MoE layers", ", ".join(map(str, trace.layers)) or "not told"),
        ("steps", f"{len(trace.steps.iteration)}, training {len(trace.iterations)}"),
        ("operations", _operations(trace)),
        ("made", f"moetraffic {meta.moetraffic}, torch {meta.torch}, {meta.created}"),
    ]
    counts = np.bincount(trace.occurrences.site, minlength=len(trace.sites))
    rows = [
        (
            str(site.layer) if site.layer >= 0 else "",
            site.phase or site.label or site.operation,
            site.operation,
            trace.groups[site.group].kind,
            int(count),
        )
        for site, count in zip(trace.sites, counts, strict=True)
    ]
    columns = ("layer", "call", "operation", "group", "times")
    notes = [] if meta.complete else [f"missing: {meta.missing}"]
    if len(rows) > MOST_SITES:
        notes.append(f"{MOST_SITES} of {len(rows)} call sites are shown")
    calls = Table(title="calls", columns=columns, rows=rows[:MOST_SITES], notes=notes)
    return Table(title=trace.name, rows=facts).to_html() + calls.to_html()


def _operations(trace: Trace) -> str:
    """How many of each operation, the most frequent first."""
    kinds: Counter[str] = Counter()
    counts = np.bincount(trace.occurrences.site, minlength=len(trace.sites))
    for site, count in zip(trace.sites, counts.tolist(), strict=True):
        kinds[site.operation] += count
    return ", ".join(f"{n} {name}" for name, n in kinds.most_common() if n)

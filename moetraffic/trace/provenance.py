"""Count how the layers, phases, directions and steps of a trace were determined."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .model import ALL_TO_ALL, ROUTING, Source

if TYPE_CHECKING:
    from .trace import Trace

SOURCES = tuple(source.name.lower() for source in reversed(Source))
"""Names of sources, strongest first."""


def source_counts(trace: Trace) -> dict[str, dict[str, int]]:
    """Count "calls" (all-to-alls and routings) and "steps" by the source of what names
    them: layer, phase and direction; boundaries and kind.

    The weakest of a call's attributes counts; a call without a layer is "unknown".
    """
    sites = trace.sites
    calls = np.bincount(trace.occurrences.site, minlength=len(sites))
    counts = {name: dict.fromkeys(SOURCES, 0) for name in ("calls", "steps")}
    for site, count in zip(sites, calls.tolist(), strict=True):
        if site.operation in (ALL_TO_ALL, ROUTING):
            known = site.layer >= 0 or bool(site.label)
            source = site.source if known else Source.UNKNOWN
            counts["calls"][source.name.lower()] += count
    for source in trace.steps.source.tolist():
        counts["steps"][Source(source).name.lower()] += 1
    return counts


def source_clause(trace: Trace) -> str:
    """Give the sources of what is partly inferred or unknown; "" if nothing is."""
    parts = []
    for what, counts in source_counts(trace).items():
        weak = {n: counts[n] for n in ("inferred", "unknown") if counts[n]}
        total = sum(counts.values())
        parts += [f"{what} {n} ({c:,} of {total:,})" for n, c in weak.items()]
    return ", ".join(parts)

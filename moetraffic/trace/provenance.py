"""Count how the layers, phases, directions and steps of a trace were determined."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from moetraffic.arrays import Bool, Int64, UInt8

from .model import ALL_TO_ALL, ROUTING, ROWS_DIFFER, Site, Source
from .reading import TraceContents

UNRECORDED = "not recorded"
SOURCES = ("annotated", "linked", "inferred", "unknown", UNRECORDED)
"""Sources in tables, strongest first; "not recorded": of a value that is known."""


def source_name(source: int) -> str:
    """Return the name of a source as text."""
    return Source(source).name.lower()


def source_counts(trace: TraceContents) -> dict[str, dict[str, int]]:
    """Count calls and steps by the source of their attributes.

    For "layers" (of all-to-alls and routings), "phases" (of all-to-alls; a label counts
    as well), "directions" (of all calls), "steps" (boundaries) and "kinds of steps":
    the number of calls or steps by name in ``SOURCES``.  A call is "unknown" where the
    attribute itself is, and "not recorded" where the attribute is known, but not how it
    was determined.
    """
    sites = trace.sites
    calls = np.bincount(trace.occurrences.site, minlength=len(sites)).astype(np.int64)
    exchange = _mask(s.operation == ALL_TO_ALL for s in sites)
    routed = _mask(s.operation == ROUTING for s in sites)
    attributes = {
        "layers": (
            calls * (exchange | routed),
            _mask(s.layer >= 0 for s in sites),
            _sources(s.layer_source for s in sites),
        ),
        "phases": (
            calls * exchange,
            _mask(bool(s.phase or s.label) for s in sites),
            _sources(s.phase_source for s in sites),
        ),
        "directions": (
            calls,
            _mask(bool(s.direction) for s in sites),
            _sources(s.direction_source for s in sites),
        ),
        "steps": (*_every(trace.steps.source), trace.steps.source),
        "kinds of steps": (*_every(trace.steps.kind_source), trace.steps.kind_source),
    }
    return {name: _counted(*parts) for name, parts in attributes.items()}


def recorded(counts: dict[str, dict[str, int]]) -> bool:
    """Return whether the trace states any source; files before 1.1 state none."""
    return any(n[name] for n in counts.values() for name in SOURCES[:3])


def source_clause(trace: TraceContents) -> str:
    """Give the sources of what is partly inferred or unknown; "" if nothing is."""
    counts = source_counts(trace)
    if not recorded(counts):
        return ""
    found: dict[str, list[str]] = {}
    for what, n in counts.items():
        if n["inferred"] or n["unknown"]:
            whole = sum(n.values())
            parts = [
                name + f" ({n[name]:,} of {whole:,})" * (n[name] < whole)
                for name in SOURCES
                if n[name]
            ]
            found.setdefault(" and ".join(parts), []).append(what)
    return "; ".join(f"{', '.join(of)} {how}" for how, of in found.items())


def schedule_remarks(schedule: str) -> list[str]:
    """List what was inferred; of rows that contradict the routing, the first layer's.

    With the number of such layers, and the range of the shares that they lack.
    """
    parts = schedule.split("; ") if schedule else []
    first, *more = [part for part in parts if ROWS_DIFFER in part] or [""]
    fewer = sorted(re.findall(r"\(([\d.]+)% fewer\)", schedule), key=float)
    ends = dict.fromkeys(fewer[:1] + fewer[-1:])
    span = f": {' to '.join(ends)}% fewer" if fewer else ""
    stated = f"{first} ({1 + len(more)} layers in all{span})" if more else first
    return [stated if part == first else part for part in parts if part not in more]


def site_sources(site: Site) -> dict[str, str]:
    """Return the names of a site's sources by field, for tables and files."""
    return {
        "layer_source": source_name(site.layer_source),
        "phase_source": source_name(site.phase_source),
        "direction_source": source_name(site.direction_source),
    }


def step_sources(trace: TraceContents, iterations: Int64) -> UInt8:
    """Return the source of the boundaries of iterations ``[n]``; UNKNOWN if absent."""
    known, out = trace.steps.iteration, np.zeros(len(iterations), np.uint8)
    if len(known):
        at = np.minimum(np.searchsorted(known, iterations), len(known) - 1)
        out[:] = np.where(known[at] == iterations, trace.steps.source[at], 0)
    return out


def _every(values: UInt8) -> tuple[Int64, Bool]:
    return np.ones(len(values), np.int64), np.ones(len(values), bool)


def _mask(values: Iterable[bool]) -> Bool:
    return np.fromiter(values, bool)


def _sources(values: Iterable[Source]) -> UInt8:
    return np.fromiter(values, np.uint8)


def _counted(count: Int64, known: Bool, source: UInt8) -> dict[str, int]:
    """Sum the ``[n]`` counts by source."""
    stated = {
        source_name(s): int(count[source == s].sum())
        for s in (Source.ANNOTATED, Source.LINKED, Source.INFERRED)
    }
    left = source == Source.UNKNOWN
    return stated | {
        "unknown": int(count[left & ~known].sum()),
        UNRECORDED: int(count[left & known].sum()),
    }

"""Compute the statistics of a trace, as tables and at most five sentences.

Trace -> exchanges -> rows (arrays, one row per iteration) -> tables -> Result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.errors import AnalysisError
from moetraffic.result import Result
from moetraffic.trace import DroppedForm, Trace
from moetraffic.trace.iterations import (
    iteration_range,
    layer_numbers,
    names,
    numbers,
    regular_stretch,
)

from .claims import Claim
from .evenness import curves, evenness_claims, measure_rows, stage_rows
from .exchange import Exchange, exchanges, own_iterations, training_steps, windows
from .rows import Mapper, rows
from .verdict import caption, headline, overview, sentences

PARTS = (
    "evenness",
    "forecasts",
    "experts",
    "rhythm",
    "times",
    "within",
    "complexity",
    "network",
)
"""Names of the parts of an analysis."""

SCREEN = ("evenness", "forecasts", "experts", "rhythm", "times")
"""Parts that the first screen is made of."""

ALL_CALLS = ("rhythm", "times")
"""Parts that need the records of all calls of the analyzed iterations."""

Tick = Callable[[int, str], None]


def analyze(
    trace: Trace | str | Path,
    *,
    layers: Sequence[int] | str | int | None = None,
    phase: str = "dispatch",
    iterations: range | str | None = None,
    parts: Sequence[str] | str = PARTS,
    horizons: Sequence[int] | str | int | None = None,
    rhythm_by: Sequence[str] = ("phase", "layer", "rank"),
    threads: int = 2,
    mapper: Mapper | None = None,
    tick: Tick | None = None,
) -> Result:
    """Compute evenness, forecasts, rhythm, times and complexity of a trace.

    Micro-batches of a step are summed.  Demand is the token copies that the router
    assigned; wire is the bytes sent between different ranks in one phase.

    Parameters
    ----------
    trace
        Captured, imported, generated or replayed; or the path of its file.
    layers
        MoE layers to analyze, such as ``[1, 3]`` or ``"1,3:6"``; all if None.
    phase
        Phase of the bytes: one of :data:`moetraffic.trace.PHASES`.
    iterations
        Training iterations to analyze, a range or ``"10:20"``; all if None.
    parts
        Some of :data:`PARTS`.
    horizons
        Forecast horizons, iterations; None: those that the run is long enough for.
    rhythm_by
        Sources of on-off statistics: phase, layer, exchange, rank, link.
    threads
        Number of threads that read matrices; results do not depend on it.
    mapper
        Function that computes the rows of windows; None: threads of this process.
    tick
        Progress callback: number of steps done (of :func:`effort`), and the present.

    Returns
    -------
    Result
        Its tables are described on the page of columns (``docs/columns.md``).

    Raises
    ------
    AnalysisError
        If the trace has no such layer, phase or part, or none of the iterations.
    TraceError
        If the file is damaged.

    Examples
    --------
    >>> from moetraffic.data import path
    >>> result = analyze(path("golden.h5"), parts=["evenness"])
    >>> list(result.frame("stages").columns[:3])
    ['layer', 'group', 'measure']
    """
    trace, parts = Trace.open(trace), names(parts)
    ahead = numbers(horizons, "horizons")
    if unknown := sorted(set(parts) - set(PARTS)):
        raise AnalysisError(
            f"parts are {', '.join(PARTS)}, not {', '.join(unknown)}: choose among them"
        )
    chosen: dict[str, Any] = {
        "layers": layer_numbers(layers),
        "iterations": iteration_range(iterations),
    }
    notes = _demand_notes(trace)
    located = exchanges(trace, notes, phase=phase, **chosen)
    notes += _gaps(located)
    chosen["iterations"] = own_iterations(trace, chosen["iterations"], [])
    if omitted := trace.meta.omitted:  # what depends on the times of all calls
        lost = [part for part in ALL_CALLS if part in parts]
        notes += [
            f"no {' and '.join(lost)}: ranks could not record {omitted:,} calls"
        ] * bool(lost)
        parts = tuple(part for part in parts if part not in ALL_CALLS)
    if (
        "rhythm" in parts
        and regular_stretch(training_steps(trace, trace.iterations))[1] > 1
    ):
        notes.append("no rhythm: it needs consecutive iterations")
        parts = tuple(part for part in parts if part != "rhythm")

    tables: dict[str, Any] = defaultdict(list)
    claims: list[Claim] = []
    done = 0

    def step(name: str = "") -> None:
        nonlocal done
        done += 1
        if tick is not None:
            tick(done, name)

    def add(more: dict[str, Any]) -> None:
        for name, added in more.items():
            if callable(added):  # made when it is asked for
                tables[name] = added
            else:
                tables[name] += added

    if {"forecasts", "within"} & set(parts):
        from .forecast import forecast_tables
        from .within import lead_time_rows, within_tables
    loads, same = [], []
    for exchange in located:
        name = f"layer {exchange.layer}, group {exchange.group}"
        table = rows(
            trace,
            exchange,
            mapper=mapper,
            threads=threads,
            report=lambda name=name: step(name),  # type: ignore[misc]
        )
        if table.load is not None and table.tokens is None:
            notes.append("no balanced router, for the trace has no top-k")
            if trace.meta.origin == "imported":
                notes[-1] += ": import again with --k K"
        if len(exchange.sent) and table.sent is None:
            notes.append(f"{name}: no wire, for a single rank sends to no other")
        if "evenness" in parts:
            measured = list(curves(exchange, table, trace.meta))
            tables["stages"] += stage_rows(exchange, measured)
            tables["measures"] += measure_rows(exchange, measured)
            claims += evenness_claims(exchange, table, trace.meta)
        step(f"{name}, forecasts")
        if "forecasts" in parts:
            scores, helps = forecast_tables(exchange, table, horizons=ahead)
            tables["forecasts"] += scores
            claims += helps
        if "experts" in parts:
            from .load import expert_tables
            from .tokens import token_tables

            add(expert_tables(trace, exchange, table))
            add(token_tables(trace, exchange))
        if "network" in parts:
            from .network import network_tables

            add(network_tables(exchange, table))
        step(f"{name}, complexity")
        if "complexity" in parts:
            from .complexity import complexity_tables

            add(complexity_tables(trace, exchange, notes))
        loads.append((exchange, table))
        same.append(table.unchanging())
    if "within" in parts:
        add(within_tables(loads))
        tables["lead_times"] += lead_time_rows(trace, chosen["iterations"])
    step("rhythm")
    if "rhythm" in parts:
        from .rhythm import rhythm_tables

        made, regular = rhythm_tables(trace, by=rhythm_by, notes=notes, **chosen)
        add(made)
        claims += regular
    step("times")
    if "times" in parts:
        from .times.tables import time_tables

        add(time_tables(trace, iterations=chosen["iterations"], notes=notes))
    tables["claims"] = [claim.row() for claim in claims]
    facts = {
        "file": trace.name,
        "origin": trace.meta.origin,
        "ranks": trace.meta.world,
        "experts": max((e.experts for e in located), default=0),
        "k": trace.meta.k,
        "layers": sorted({e.layer for e in located}),
        "iterations": max((len(e.iterations) for e in located), default=0),
        "left_out": max((e.left_out for e in located), default=0),
        "unchanging": sorted(set.intersection(*same)) if same else [],
        "contradiction": trace.meta.contradiction,
    }
    first = {"overview": overview(tables)}
    return Result(
        verb="analyze",
        head=headline(facts, tables),
        tables=first | dict(tables),
        screen=("overview",),
        captions={"overview": caption(tables)},
        verdict=sentences(facts, tables),
        notes=tuple(dict.fromkeys(notes)),
        data=facts,
    )


def effort(
    trace: Trace, *, layers: Any = None, phase: str = "dispatch", iterations: Any = None
) -> int:
    """Count the steps that :func:`analyze` reports to its progress callback."""
    located = exchanges(
        trace,
        [],
        layers=layer_numbers(layers),
        phase=phase,
        iterations=iteration_range(iterations),
    )
    return sum(len(windows(exchange)) + 2 for exchange in located) + 2


def _demand_notes(trace: Trace) -> list[str]:
    """State where rows contradict the routing, and where drops are unknown."""
    uncounted = (s for s in trace.sites if s.dropped == DroppedForm.UNCOUNTED)
    layers = sorted({site.layer for site in uncounted})
    notes = [trace.meta.contradiction] if trace.meta.contradiction else []
    if layers:
        notes.append(
            f"layer{'s' * (len(layers) > 1)} {', '.join(map(str, layers))}: copies "
            "dropped before a router's output are unknown, the demand is what was sent"
        )
    return notes


def _gaps(located: Sequence[Exchange]) -> list[str]:
    """Note which iterations statistics over time are of, where some are missing."""
    notes = []
    for exchange in located:
        stretch, spacing = exchange.regular
        missing = (np.ptp(exchange.steps) // spacing + 1) - len(exchange.steps)
        if len(exchange.iterations[stretch]) < len(exchange.iterations):
            notes.append(
                f"iterations missing in between: {missing:,}; forecasts are of "
                "pairs that are exactly as far apart as stated"
            )
        if spacing > 1:
            notes.append(
                f"one of {spacing} iterations is recorded: the shortest forecast is "
                f"{spacing} iterations ahead"
            )
    return list(dict.fromkeys(notes))

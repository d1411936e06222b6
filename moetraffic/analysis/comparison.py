"""Compare two runs: their load, bytes between ranks, and the times of common calls.

Values of two runs always differ, and so do two halves of one run.  A difference is
stated where the means of blocks of iterations differ by more than within the runs
(:func:`moetraffic.analysis.claims.differ`); :mod:`.distances` has the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import AnalysisError
from moetraffic.result import Result
from moetraffic.trace import Trace
from moetraffic.trace.iterations import iteration_range, layer_numbers
from moetraffic.units import rank_span

from .claims import LEAST, differ
from .compare_verdict import caption, overview, sentences, settings, times
from .distances import distance_row, distance_rows, mean, noise
from .exchange import Exchange, exchanges, read, windows
from .measures import entropy, max_mean, means_of_known
from .rows import Rows, rows
from .times.breakdown import breakdown
from .times.completion import completion
from .times.ratios import compare_times
from .times.tables import MOST_TIMES, step_curves

RUN = {"layer": -1, "group": -1}
"""Place of what is of the whole run."""


def compare(
    first: Trace | str | Path,
    second: Trace | str | Path,
    *,
    layers: Sequence[int] | str | int | None = None,
    phase: str = "dispatch",
    iterations: range | str | None = None,
    threads: int = 2,
    tick: Callable[[int, str], None] | None = None,
) -> Result:
    """Compare the traffic of two traces in the iterations that both have.

    Layers are matched by number, and their groups by order.

    Parameters
    ----------
    first, second
        Traces, such as runs of two settings, a run and its replay, or two replays.
    layers, phase, iterations, threads
        As of :func:`moetraffic.analysis.analyze`.
    tick
        Progress callback: number of windows read, and the layer.

    Returns
    -------
    Result
        Tables ``differences``, ``distances``, ``time_ratios`` and ``settings``.
        ``data["identical"]``: whether all matrices are equal in each iteration.

    Raises
    ------
    AnalysisError
        If the two have neither a layer nor a call in common.

    Examples
    --------
    >>> from moetraffic.data import path
    >>> compare(path("golden.h5"), path("golden.h5")).data["identical"]
    True
    """
    a, b = traces = Trace.open(first), Trace.open(second)
    span = iteration_range(iterations)
    chosen: dict[str, Any] = {"layers": layer_numbers(layers), "iterations": span}
    notes: list[str] = []
    located = []
    for name, trace in zip(("first", "second"), traces, strict=True):
        own: list[str] = []
        located.append(exchanges(trace, own, phase=phase, **chosen))
        notes += [f"{name} run: {text}" for text in own]
    origins = [trace.meta.origin for trace in traces]
    if len(set(origins)) > 1 and "replayed" in origins:
        notes.append(
            "a replay repeats no computation: compare its calls, not its iterations"
        )
    pairs = list(matched(traces, located, notes))
    differences: list[dict[str, Any]] = []
    distances: list[dict[str, Any]] = []
    done = 0

    def report(layer: int) -> None:
        nonlocal done
        done += 1
        if tick is not None:
            tick(done, f"layer {layer}")

    for pair in pairs:
        layer, key = pair[0].layer, pair[0].key
        one, other = (
            rows(t, e, threads=threads, report=lambda layer=layer: report(layer))  # type: ignore[misc]
            for t, e in zip(traces, pair, strict=True)
        )
        differences += difference_rows(key, series(one), series(other))
        distances += distance_rows(key, one, other)
    # the matrices are read again only where no distance is above zero
    same = bool(distances) and not any(row["distance"] for row in distances)
    identical = same and all(_equal(traces, pair) for pair in pairs)
    common = np.intersect1d(a.iterations, b.iterations)
    used = [common if len(common) else trace.iterations for trace in traces]
    both = [time_series(t, span, own) for t, own in zip(traces, used, strict=True)]
    differences += difference_rows(RUN, *both)
    if not a.meta.origin == b.meta.origin == "replayed":
        # noise within a run is not that between runs of a replay
        took = [durations(t, span, own) for t, own in zip(traces, used, strict=True)]
        distances += [
            distance_row(RUN, name, "duration", values, took[1][name])
            for name, values in took[0].items()
            if name in took[1]
        ]
    time_ratios = compare_times(a, b, iterations=span)
    if not (distances or time_ratios):
        raise AnalysisError(
            f"two traces are compared in what both have, but {a.name} and {b.name} "
            f"share nothing ({'; '.join(dict.fromkeys(notes)) or 'no exchange'}): give "
            "two runs of one model"
        )
    tables = {
        "differences": differences,
        "distances": distances,
        "time_ratios": time_ratios,
        "settings": settings(a, b),
    }
    facts = {
        "first": a.name,
        "second": b.name,
        "origins": [trace.meta.origin for trace in traces],
        "sources": [trace.meta.source for trace in traces],
        "phase": phase,
        "layers": sorted({pair[0].layer for pair in pairs}),
        "iterations": max((len(pair[0].iterations) for pair in pairs), default=0),
        "needs": LEAST,
        "identical": identical,
    }
    shown = [] if identical else overview(differences)
    return Result(
        verb="compare",
        head=f"first: {a.name}, second: {b.name}",
        tables={
            "overview": shown,
            "times": times(time_ratios),
            **tables,
        },
        screen=("settings", "overview", "times"),
        captions={"overview": caption(shown)},
        verdict=sentences(facts, tables),
        notes=tuple(dict.fromkeys(notes)),
        data=facts,
    )


# ---- what is compared ----------------------------------------------------------------


def matched(
    traces: Sequence[Trace], located: Sequence[Sequence[Exchange]], notes: list[str]
) -> Iterator[tuple[Exchange, Exchange]]:
    """Pair the exchanges of two traces, in the iterations that both have."""
    layers = [{exchange.layer for exchange in own} for own in located]
    for name, alone in (
        ("first", layers[0] - layers[1]),
        ("second", layers[1] - layers[0]),
    ):
        if alone:
            text = ", ".join(map(str, sorted(alone)))
            notes.append(
                f"the {name} run alone had layer{'s' * (len(alone) > 1)} {text}"
            )
    unlike: dict[tuple[str, int, int], list[int]] = {}
    for layer in sorted(layers[0] & layers[1]):
        groups = [[e for e in own if e.layer == layer] for own in located]
        for what, (one, other) in {
            "groups": [len(own) for own in groups],
            "ranks": [len(own[0].ranks) for own in groups],
            "experts": [own[0].experts for own in groups],
        }.items():
            if one != other and one and other:
                unlike.setdefault((what, one, other), []).append(layer)
        for pair in zip(*groups, strict=False):
            yield _in_common(traces, pair, notes)
    for (what, one, other), numbers in unlike.items():
        notes.append(
            f"layer{'s' * (len(numbers) > 1)} {rank_span(numbers)} had {one} {what} in "
            f"the first run and {other} in the second: "
            + (
                f"the first {min(one, other)} were compared"
                if what == "groups"
                else "these were not compared one by one"
            )
        )


def _in_common(
    traces: Sequence[Trace], pair: Sequence[Exchange], notes: list[str]
) -> tuple[Exchange, Exchange]:
    """Restrict two exchanges to the iterations that both have, if there are any."""
    one, other = pair
    if np.array_equal(one.iterations, other.iterations):
        return one, other
    common = np.intersect1d(one.iterations, other.iterations)
    lengths = f"{len(one.iterations)} and {len(other.iterations)} iterations"
    if not len(common):
        notes.append(f"the runs had no iteration in common: {lengths} were compared")
        return one, other
    notes.append(
        f"the runs had {lengths}: the {len(common)} in common, {common[0]} to "
        f"{common[-1]}, were compared"
    )
    first, second = (
        replace(
            exchange,
            iterations=common,
            steps=exchange.steps[np.isin(exchange.iterations, common)],
            routed=_within(trace, exchange.routed, common),
            sent=_within(trace, exchange.sent, common),
        )
        for trace, exchange in zip(traces, pair, strict=True)
    )
    return first, second


def _within(trace: Trace, calls: Int64, iterations: Int64) -> Int64:
    """Select the calls of some iterations."""
    selected: Int64 = calls[np.isin(trace.occurrences.iteration[calls], iterations)]
    return selected


def _equal(traces: Sequence[Trace], pair: Sequence[Exchange]) -> bool:
    """Return whether the matrices that both runs have are equal in each iteration."""
    if not np.array_equal(pair[0].iterations, pair[1].iterations):
        return False
    for window in windows(pair[0]):
        x, y = (read(t, e, window) for t, e in zip(traces, pair, strict=True))
        for one, other in ((x.demand, y.demand), (x.wire, y.wire)):
            unit = (x.row_bytes, y.row_bytes) if one is x.wire else (1, 1)
            if one is None or other is None:
                continue
            if not np.array_equal(one * unit[0], other * unit[1]):
                return False
    return True


def series(table: Rows) -> dict[str, Float64]:
    """Compute the values ``[T]`` whose means are compared, by measure."""
    values = {}
    load, _ = table.balance
    if load is not None and load.shape[1] > 1:
        values["entropy"] = entropy(load)
    if table.load is not None:
        values["busiest_expert"] = max_mean(table.load)
    if table.sent is not None and table.received is not None:
        values["busiest_receiver"] = max_mean(table.received)
        total = table.sent.sum(axis=1).astype(np.float64)
        values["bytes_between_ranks_per_iteration"] = total
    return values


def time_series(
    trace: Trace, span: range | None, iterations: Int64
) -> dict[str, Float64]:
    """Compute step time, s, and its shares of transfer and waiting, ``[T]``.

    They are those of the analysis; empty where steps have no times.
    """
    calls = len(trace.find(iterations=span, kind=None))
    if trace.meta.virtual or calls * trace.meta.world > MOST_TIMES:
        return {}
    try:
        measured = breakdown(trace, span)
    except AnalysisError:
        return {}
    used = np.isin(measured.iteration, iterations)
    return {name: values[used] for name, values in step_curves(trace, measured).items()}


def durations(
    trace: Trace, span: range | None, iterations: Int64
) -> dict[str, Float64]:
    """List the transfer times of all-to-alls, s, by phase; "": of those without."""
    calls = completion(trace, span)
    calls = calls[trace.square[calls["site"]]]
    calls = calls[np.isin(calls["iteration"], iterations)]
    phase = np.array([site.phase for site in trace.sites], str)[calls["site"]]
    return {
        name: calls["transfer_s"][phase == name]
        for name in dict.fromkeys(phase.tolist())
    }


def difference_rows(
    place: Mapping[str, int], x: Mapping[str, Float64], y: Mapping[str, Float64]
) -> Iterator[dict[str, Any]]:
    """Test the differences of the means of values ``[T]`` of two runs, by measure."""
    for measure, values in x.items():
        if measure not in y:
            continue
        claim = differ(values, y[measure])
        one, other = (float(means_of_known(run[measure])) for run in (x, y))
        yield {
            **place,
            "measure": measure,
            "first": one,
            "second": other,
            "difference": other - one,
            "difference_low": claim.low,
            "difference_high": claim.high,
            "noise": noise(values, y[measure], mean),
            "p": claim.p,
            "outcome": claim.outcome.value,
            "iterations": claim.iterations,
        }

r"""Bursts, gaps, period and step times of the traffic of each source.

Training alternates between computation and communication, so its traffic is a sequence
of bursts that recurs in each step.  Overlapping events merge into one *burst*; the time
between two bursts is a *gap*.  The observed span lasts from the first burst's begin to
the last burst's begin: whole cycles of a burst and a gap.  What was not observed, such
as an evaluation between two steps, is neither on nor off.

A *cycle* is a step, where a rank's step starts are known.  Else each burst begins one,
if bursts keep their phase: with x the time from a burst to the fourth next one, in
median cycles, the resultant length :math:`|\overline{e^{2 \pi i x}}|` is at least 1/e
and significant by Rayleigh's test (K. V. Mardia, P. E. Jupp, "Directional Statistics",
2000, section 6.3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.claims import Claim, regular
from moetraffic.analysis.measures import quantiles
from moetraffic.analysis.sources import (
    Key,
    Source,
    check_kinds,
    list_keys,
    middle_calls,
    on_off_series,
    read_sources,
    time_on,
)
from moetraffic.analysis.spectrum import spectra
from moetraffic.analysis.times.calls import (
    covered_ns,
    merge_intervals,
    observed_steps,
    on_the_wire,
    sized,
    step_ns,
    training_steps,
)
from moetraffic.arrays import Float64, Int64
from moetraffic.trace import UNKNOWN_TIME, Trace
from moetraffic.trace.clock import error_ns

BINS_A_STEP = 32
"""Bins per step of the on-off series."""

MOST_BINS = 1 << 20

PARTS = 64
"""Equal parts of a step that its on-off profile consists of."""

USUAL = (0.5, 1.5)
"""Range of usual cycle lengths in medians; others are pauses."""

FEWEST_STEPS = 16
"""Steps from which on their median length is the period."""

FEWEST_BURSTS = 32
"""Bursts from which on a period is looked for where no steps are known."""

AFTER = 4
"""Cycles after which the phase must still be known, where no steps are."""

LEVEL = 0.01
"""Significance of a period, where no steps are known."""

SPECTRA = 4
"""Number of ranks with a spectrum, those with the most bytes."""

NAMELESS = {
    "phase": "the trace records no phase of its all-to-alls",
    "layer": "the trace records no layer of its all-to-alls",
    "exchange": "the trace records no layer and phase of its all-to-alls",
    "link": "no rank sent bytes to another at a known time",
}

Bursts = tuple[Int64, Int64]
Row = dict[str, Any]
Table = list[Row] | Callable[[], dict[str, npt.NDArray[Any]]]


def rhythm_tables(
    trace: Trace,
    *,
    by: Sequence[str] = ("phase", "layer", "rank"),
    layers: Sequence[int] | None = None,
    iterations: range | None = None,
    notes: list[str],
) -> tuple[dict[str, Table], list[Claim]]:
    """Compute statistics of bursts and steps of each traffic source of a trace.

    The records of all ranks must be complete, and iterations consecutive.

    Parameters
    ----------
    by
        Some of :data:`moetraffic.analysis.sources.KINDS`.
    layers, iterations
        MoE layers and training iterations; all if None.
    notes
        Receives what is missing, and why.

    Returns
    -------
    tables
        "bursts" by source and "steps" by rank, as rows; "spectrum" of phases and ranks,
        as a function that returns columns.  None without times.
    claims
        "regular", of the first rank: all ranks communicate at the same times but for
        waiting.

    Raises
    ------
    AnalysisError
        If there is no such source.
    """
    check_kinds(by)
    sources = _sources(trace, by, layers, iterations, notes)
    if not sources:
        return {}, []
    _, starts, _ = training_steps(trace, iterations)
    error = error_ns(trace.clocks)
    rows, steps, claims = list[Row](), list[Row](), list[Claim]()
    bursts: dict[str, Bursts] = {}
    for source in sources:
        rank, name = source.ranks[0], source.name
        marks = np.sort(starts[starts[:, rank] != UNKNOWN_TIME, rank])
        marks = marks if len(marks) > 2 else marks[:0]
        observed = observed_steps(trace, rank, iterations)
        merged = bursts[name] = merge_intervals(source.begin, source.end)
        if source.by == "rank":
            begin, end = step_spans(marks, merged, observed)
            steps += [step_row(rank, end - begin)] if len(begin) else []
            if not claims:
                claim = regular(profiles(merged, begin, end))
                claims.append(replace(claim, subject=name))
        if source.by not in by:
            continue
        bin_ns = step_ns(trace, rank) / BINS_A_STEP
        row = burst_row(*merged, marks=marks, observed=observed, bin_ns=bin_ns)
        clock_error = 0 if source.one_clock else error
        if 2 * clock_error > row["burst_p50_ns"]:
            notes.append(
                f"{name}: half of the bursts are shorter than twice the clock error "
                f"of {clock_error:,} ns: burst lengths and duty cycle are uncertain"
            )
        row["events"] = len(source.begin)
        row["bytes_between_ranks"] = (
            None if source.sent is None else int(source.sent.sum())
        )
        row["clock_error_ns"] = clock_error
        rows.append({"source": name, "by": source.by} | row)
    shown = {s.name: bursts[s.name] for s in sources if s.by == "phase"}
    busiest = sorted(
        (s for s in sources if s.by == "rank"),
        key=lambda s: 0 if s.sent is None else -int(s.sent.sum()),
    )
    shown |= {s.name: bursts[s.name] for s in busiest[:SPECTRA]}
    step = step_ns(trace, 0)
    spectrum = partial(spectra, shown, step)
    return {"bursts": rows, "steps": steps, "spectrum": spectrum}, claims


def _sources(
    trace: Trace,
    by: Sequence[str],
    layers: Sequence[int] | None,
    iterations: range | None,
    notes: list[str],
) -> list[Source]:
    """Read the events of traffic sources, and of the first rank in any case."""
    if trace.meta.virtual:
        notes.append("no rhythm: the trace is virtual: no time was measured")
        return []
    chosen = trace.layers if layers is None else tuple(layers)
    calls, _ = on_the_wire(trace, chosen, iterations)
    readable, reason = sized(trace, calls)
    if reason:
        number = len(calls) - len(readable)
        notes.append(f"{number:,} all-to-alls have no bytes: {reason}")
        calls = readable if "link" in by else calls
    known = not reason or "link" in by
    calls = middle_calls(trace, calls, notes)
    keys = list_keys(trace, calls, by, notes, with_bytes=known)
    groups = {trace.sites[s].group for s in trace.occurrences.site[calls].tolist()}
    first = min((r for g in groups for r in trace.groups[g].ranks), default=0)
    rank: Key = ("rank", f"rank {first}", (first,))
    every = keys if rank in keys else [*keys, rank]
    sources = read_sources(trace, calls, every, with_bytes=known)
    if not sources:
        notes.append("no rhythm: the trace has no all-to-all whose times are known")
        return []
    missing = [k for k in by if k in NAMELESS and all(key[0] != k for key in keys)]
    notes += [f"no rhythm by {kind}: {NAMELESS[kind]}" for kind in missing]
    return sources


def burst_row(
    begin: npt.ArrayLike,
    end: npt.ArrayLike,
    *,
    marks: npt.ArrayLike = (),
    observed: Bursts | None = None,
    bin_ns: float = float("nan"),
) -> Row:
    """Compute duty cycle, bursts, gaps, period and jitter of events; NaN: unknown.

    Parameters
    ----------
    begin, end
        ``[n]`` integers, ns, in any order, overlapping or not.
    marks
        ``[m]`` ns, where steps begin; none: unknown.
    observed
        Begins and ends ``[k]``, ns, of the times in which events would have been seen;
        None: always.
    bin_ns
        Width of the bins of the on-off series, of which the peak and the
        autocorrelation are.  NaN: a quarter of the median burst or gap, whichever is
        shorter.

    Returns
    -------
    dict
        Mean and CV (population standard deviation over mean) of bursts, gaps and
        cycles; ``jitter`` is the CV of all steps, ``acf`` the autocorrelation of the
        on-off series at the period.

    Examples
    --------
    >>> begin = np.arange(40) * 1000
    >>> row = burst_row(begin, begin + 250)
    >>> row["duty"], row["period_ns"], row["jitter"], row["cycles"]
    (0.25, 1000.0, 0.0, 39)
    """
    first, last = merge_intervals(begin, end)
    lengths, gaps = last - first, first[1:] - last[:-1]
    span = (int(first[0]), int(first[-1])) if len(first) > 1 else (0, 0)
    parts = np.array([span[0]]), np.array([span[1]])
    if observed is not None:
        parts = merge_intervals(*(np.clip(t, *span) for t in observed))
        gaps = gaps[covered_ns(parts, last[:-1], first[1:]) >= gaps]
    seen_ns = float((parts[1] - parts[0]).sum())
    on_ns = float(covered_ns((first, last), *parts).sum())
    if not bin_ns > 0:
        medians = [float(np.median(runs)) for runs in (lengths, gaps) if len(runs)]
        bin_ns = min(medians, default=4.0) / 4
        bin_ns = max(bin_ns, (span[1] - span[0]) / MOST_BINS, 1.0)
    series = on_off_series(first, last, bin_ns=bin_ns, span=span)
    hidden = on_off_series(*parts, bin_ns=bin_ns, span=span) < 1 - 1e-9
    seen, series = series[~hidden], np.where(hidden, np.nan, series)
    borders = np.unique(np.asarray(marks, np.int64))
    borders = borders if len(borders) else coherent_starts(first)
    begun, ended = step_spans(borders, (first, last), observed)
    times = ended - begun
    period_ns = float(np.median(times)) if len(times) >= FEWEST_STEPS else np.nan
    cycles = np.diff(borders)
    median = np.median(cycles) if len(cycles) else np.nan
    cycles = cycles[(cycles > USUAL[0] * median) & (cycles < USUAL[1] * median)]
    cycles = cycles if len(cycles) > 1 else cycles[:0]
    cycle_ns, _ = mean_cv(cycles)
    pace_ns = cycle_ns if np.isnan(period_ns) else period_ns
    burst_ns, burst_cv = mean_cv(lengths)
    gap_ns, gap_cv = mean_cv(gaps)
    p50, p99 = quantiles(lengths, (0.5, 0.99))
    return {
        "duty": on_ns / seen_ns if seen_ns else np.nan,
        "bursts": len(lengths),
        "burst_ns": burst_ns,
        "burst_cv": burst_cv,
        "burst_p50_ns": p50,
        "burst_p99_ns": p99,
        "gap_ns": gap_ns,
        "gap_cv": gap_cv,
        "period_ns": period_ns,
        "jitter": mean_cv(times)[1],
        "acf": correlation_at(series, pace_ns / bin_ns),
        "peak_to_mean": float(seen.max() / seen.mean()) if seen.any() else np.nan,
        "cycles": len(cycles),
        "cycle_ns": cycle_ns,
        "observed_ns": seen_ns if len(first) > 1 else np.nan,
    }


def step_row(rank: int, lengths: Int64) -> Row:
    """Compute quantiles and variation of a rank's step times ``[n]``, ns."""
    mean, cv = mean_cv(lengths)
    p50, p90, p99, longest = quantiles(lengths, (0.5, 0.9, 0.99, 1.0))
    return {
        "rank": rank,
        "steps": len(lengths),
        "step_ns": mean,
        "step_cv": cv,
        "step_p50_ns": p50,
        "step_p90_ns": p90,
        "step_p99_ns": p99,
        "step_max_ns": longest,
    }


def step_spans(marks: Int64, bursts: Bursts, observed: Bursts | None) -> Bursts:
    """List the steps between marks that were observed from begin to end.

    Parameters
    ----------
    marks
        ``[m]`` ns, where steps begin.
    bursts
        In time order; steps before the first and after the last are left out.
    observed
        Begins and ends, ns, of the observed times; None: all.  A step that reaches
        beyond, as before an evaluation, has no known length.

    Examples
    --------
    >>> marks, bursts = np.array([0, 10, 20, 90, 100]), (np.array([12]), np.array([95]))
    >>> observed = np.array([0, 90]), np.array([30, 110])
    >>> [steps.tolist() for steps in step_spans(marks, bursts, observed)]
    [[10, 90], [20, 100]]
    """
    borders = np.unique(marks)
    begin, end = borders[:-1], borders[1:]
    if not len(bursts[0]):
        return begin[:0], end[:0]
    keep = (end > bursts[0][0]) & (begin < bursts[1][-1])
    if observed is not None:
        keep &= covered_ns(merge_intervals(*observed), begin, end) == end - begin
    return begin[keep], end[keep]


def profiles(bursts: Bursts, begin: Int64, end: Int64) -> Float64:
    """Compute the share of each part of steps that is in bursts, ``[n, PARTS]``.

    ``begin``, ``end``: ``[n]`` ns, of the steps.
    """
    origin = int(begin[0]) if len(begin) else 0
    lengths = (end - begin)[:, None].astype(np.float64)
    edges = (begin[:, None] - origin) + lengths * np.arange(PARTS + 1) / PARTS
    on = np.diff(time_on(edges, *bursts, origin=origin), axis=1)
    return np.asarray(on / lengths * PARTS, np.float64)


def coherent_starts(begin: Int64) -> Int64:
    """Return begins of bursts ``[n]`` if each begins a cycle of one length; else none.

    They do if the phase is still known :data:`AFTER` cycles later.
    """
    lengths = np.diff(begin)
    number = len(lengths) // AFTER
    if len(begin) < FEWEST_BURSTS:
        return begin[:0]
    turns = lengths[: number * AFTER].reshape(number, AFTER).sum(axis=1)
    coherence = abs(np.exp(2j * np.pi * turns / np.median(lengths)).mean())
    kept = coherence >= np.exp(-1) and np.exp(-number * coherence**2) < LEVEL
    return begin if kept else begin[:0]


def correlation_at(series: Float64, lag: float) -> float:
    """Compute the autocorrelation of a series ``[T]`` at a lag, linear between bins.

    It is Pearson's coefficient of the two overlapping parts, so that a series that
    repeats itself exactly has exactly 1 at its period.  NaN: unknown bins are left out.
    """
    below = int(lag) if lag == lag else -1
    if not 0 <= below <= len(series) - 3:
        return float("nan")
    pair = []
    for shift in (below, below + 1):
        early, late = series[: len(series) - shift], series[shift:]
        both = np.isfinite(early) & np.isfinite(late)
        early, late = early[both], late[both]
        varies = len(early) > 1 and min(early.std(), late.std()) > 1e-9
        pair.append(np.corrcoef(early, late)[0, 1] if varies else np.nan)
    between = lag - below
    return float(pair[0] + between * (pair[1] - pair[0]) if between else pair[0])


def mean_cv(lengths: npt.NDArray[Any]) -> tuple[float, float]:
    """Compute mean and coefficient of variation; NaN if empty."""
    if not len(lengths):
        return np.nan, np.nan
    mean = float(lengths.mean())
    return mean, float(lengths.std()) / mean

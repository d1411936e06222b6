"""Exchanges of a run over its iterations, and forecasts of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from moetraffic.analysis.exchange import own_iterations, training_steps
from moetraffic.analysis.forecast import METHODS, Split, find_period, forecasts, tuned
from moetraffic.arrays import Float64, Int64
from moetraffic.errors import AnalysisError
from moetraffic.spelling import check_choice
from moetraffic.trace import ALL_TO_ALL, PHASES, Trace
from moetraffic.trace.iterations import regular_stretch
from moetraffic.trace.model import ROUTING, DroppedForm

LayerKey = int | tuple[int, int]
"""A layer, or a layer and an expert-parallel group where a layer has several."""

FORECASTERS = ("shuffled", "mean", "persistence", "ema", "chosen", "oracle")
"""Forecasters of the next exchange: a random earlier one (a control), the mean of all
earlier ones, the newest known one, an exponential moving average, the forecaster of
:mod:`moetraffic.analysis.forecast` with the lowest error on the second quarter of the
run (of equals, persistence; it need not be the best one later, or for completion
times), the exchange itself."""

FEWEST_ITERATIONS = 16
"""Iterations of a run below which nothing is evaluated."""

MOST_SERVED = 64
"""Iterations that are served at most, if no other number is asked for."""

MOST_BYTES = 4 << 30
"""Memory of the matrices of an evaluation; above a quarter, they are 32-bit."""

AT_ONCE = 64
"""Exchanges that are read at a time."""


def number_of(layer: LayerKey) -> int:
    """Return the number of a layer, without that of a group."""
    return layer if isinstance(layer, int) else layer[0]


@dataclass(frozen=True, kw_only=True, eq=False)
class ExchangeSeries:
    """Exchanges of some layers over the iterations of a run, in one unit."""

    name: str
    phase: str
    iterations: Int64  # [T]
    layers: Mapping[LayerKey, Float64]  # [T, W, W] bytes or [T, W, E] token copies
    row_bytes: int = 1  # of a token copy on the wire; 0: not known
    # world ranks of a layer's rows, as those of its pipeline stage; absent: all ranks
    ranks: Mapping[LayerKey, tuple[int, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # iterations that are left out, and why
    digest: str = ""  # of the trace file; "": none

    def __post_init__(self) -> None:
        if len(self.iterations) < FEWEST_ITERATIONS:
            raise AnalysisError(
                f"policies are evaluated on the second half of at least "
                f"{FEWEST_ITERATIONS} iterations, but of {self.name} "
                f"{len(self.iterations)} are chosen: choose more, or give a longer run"
            )

    def points(self, most: int = MOST_SERVED) -> Int64:
        """Return the iterations that are served: indices of the second half ``[n]``."""
        steps = len(self.iterations)
        return np.arange(max(steps // 2, steps - most), steps)


# ---- from a trace --------------------------------------------------------------------


def known_sites(
    trace: Trace, *, phase: str, layers: Sequence[int] | None, unnamed: bool = False
) -> list[int]:
    """List the sites of one phase's all-to-alls whose bytes are known.

    ``unnamed`` takes all where no site has a phase.

    Raises
    ------
    AnalysisError
        If there is no such phase, or no such site.
    """
    check_choice("the phase", phase, PHASES, AnalysisError)
    unnamed = unnamed and not any(site.phase for site in trace.sites)
    _check_layers(trace, None if unnamed else layers)
    usable = trace.square & trace.has_bytes
    numbers = [
        number
        for number, site in enumerate(trace.sites)
        if usable[number]
        and site.direction != "recompute"
        and (unnamed or site.phase == phase)
        and (layers is None or site.layer in layers)
    ]
    if not numbers:
        raise AnalysisError(
            f"plans serve all-to-alls whose bytes are known, but {trace.name} has "
            f"none of {phase}"
            + (f" in layers {list(layers)}" if layers else "")
            + ": import --row-bytes adds all-to-alls to routed tokens"
        )
    return numbers


def _check_layers(trace: Trace, layers: Sequence[int] | None) -> None:
    if unknown := sorted({*(layers or ())} - {*trace.layers}):
        raise AnalysisError(
            f"the MoE layers of {trace.name} are {list(trace.layers)}, not {unknown}: "
            "choose among these"
        )


def byte_series(
    trace: Trace,
    *,
    phase: str = "dispatch",
    layers: Sequence[int] | None = None,
    iterations: range | None = None,
) -> ExchangeSeries:
    """Read the bytes that each layer's exchange of one phase sends, by iteration.

    Bytes are between the ranks of all groups of a layer, ``[T, W, W]``; micro-batches
    of an iteration are summed, and iterations that a rank did not record are omitted.

    Raises
    ------
    AnalysisError
        If the trace has no such exchange, or too few or too large ones.
    """
    sites: dict[LayerKey, list[int]] = {}
    for number in known_sites(trace, phase=phase, layers=layers):
        sites.setdefault(trace.sites[number].layer, []).append(number)
    notes: list[str] = []
    iterations = own_iterations(trace, iterations, notes)
    training = trace.find(operation=ALL_TO_ALL, phase=phase, iterations=iterations)
    calls, when = _complete(trace, training, sites)
    ranks = {
        layer: sorted({r for n in s for r in trace.groups[trace.sites[n].group].ranks})
        for layer, s in sites.items()
    }
    size = 8 * len(when) * sum(len(r) ** 2 for r in ranks.values())
    kind = np.float64 if size <= MOST_BYTES // 4 else np.float32
    if size // (8 // np.dtype(kind).itemsize) > MOST_BYTES:
        raise AnalysisError(
            f"the matrices of an evaluation take at most {MOST_BYTES >> 30} GiB, but "
            f"those of {trace.name} take more: choose fewer --layers or --iterations"
        )
    read: dict[LayerKey, Any] = {}
    for layer, members in ranks.items():
        read[layer] = np.zeros((len(when), len(members), len(members)), kind)
        for number in sites[layer]:
            group = trace.groups[trace.sites[number].group]
            place = np.searchsorted(members, group.ranks)
            chosen = calls[layer][trace.occurrences.site[calls[layer]] == number]
            for first in range(0, len(chosen), AT_ONCE):
                some = chosen[first : first + AT_ONCE]
                rows = np.searchsorted(when, trace.occurrences.iteration[some])
                for row, matrix in zip(rows, trace.wire(some), strict=True):
                    read[layer][row][np.ix_(place, place)] += matrix
    return ExchangeSeries(
        name=str(trace.name),
        digest=trace.digest,
        phase=phase,
        iterations=when,
        layers=read,
        row_bytes=_row_bytes(trace, phase),
        ranks={layer: tuple(members) for layer, members in ranks.items()},
        notes=(*notes, *_gaps(trace, when)),
    )


def token_series(
    trace: Trace,
    *,
    phase: str = "dispatch",
    layers: Sequence[int] | None = None,
    iterations: range | None = None,
) -> ExchangeSeries:
    """Read the token copies that each layer routes to its experts, by iteration.

    Copies that are sent are ``[T, W, E]``, of the ranks of an expert-parallel group;
    each group of a layer holds all experts and has a series of its own.  Micro-batches
    are summed.  Where drops are unknown all copies that are routed count as sent, which
    a note states.

    Raises
    ------
    AnalysisError
        If the routing is not known, or the run is too short or has no such layer.
    """
    _check_layers(trace, layers)
    sites: dict[LayerKey, list[int]] = {}
    for number, site in enumerate(trace.sites):
        forward = site.operation == ROUTING and site.direction == "forward"
        if forward and (layers is None or site.layer in layers):
            sites.setdefault((site.layer, site.group), []).append(number)
    if not sites:
        raise AnalysisError(
            "experts are placed by the routing of tokens, but "
            f"{trace.name} has none"
            + (f" in layers {list(layers)}" if layers else "")
            + ": capture with a router hook"
        )
    notes: list[str] = []
    iterations = own_iterations(trace, iterations, notes)
    routed = trace.find(operation=ROUTING, iterations=iterations)
    calls, when = _complete(trace, routed, sites)
    layer_numbers = [number_of(key) for key in sites]
    read: dict[LayerKey, Float64] = {}
    ranks: dict[LayerKey, tuple[int, ...]] = {}
    for place, here in sorted(calls.items()):
        layer = number_of(place)
        key = place if layer_numbers.count(layer) > 1 else layer
        ranks[key] = trace.groups[trace.sites[sites[place][0]].group].ranks
        for number in sites[place]:
            some = here[trace.occurrences.site[here] == number]
            kept = trace.demand(some).astype(np.float64)
            if trace.sites[number].dropped == DroppedForm.STORED:
                kept -= trace.dropped(some)
            read.setdefault(key, np.zeros((len(when), *kept.shape[1:])))
            rows = np.searchsorted(when, trace.occurrences.iteration[some])
            np.add.at(read[key], rows, kept)
    forms = {trace.sites[n].dropped for numbers in sites.values() for n in numbers}
    if DroppedForm.UNKNOWN in forms:
        notes.append(
            "dropped copies are unknown: all token copies that were routed count as "
            "sent"
        )
    return ExchangeSeries(
        name=str(trace.name),
        digest=trace.digest,
        phase=phase,
        iterations=when,
        layers=read,
        row_bytes=_row_bytes(trace, PHASES[0]),
        ranks=ranks,
        notes=(*notes, *_gaps(trace, when)),
    )


def _row_bytes(trace: Trace, phase: str) -> int:
    """Return the bytes of a token copy; 0: not known."""
    sites = (s for s in trace.sites if s.operation == ALL_TO_ALL and s.phase == phase)
    return next((site.row_bytes for site in sites), 0)


def _complete(
    trace: Trace, training: Int64, sites: Mapping[LayerKey, Sequence[int]]
) -> tuple[dict[LayerKey, Int64], Int64]:
    """Find the calls of each place, in iterations with as many as most have ``[T]``."""
    occurrences = trace.occurrences
    calls, common = {}, None
    for place, numbers in sites.items():
        here = training[np.isin(occurrences.site[training], numbers)]
        calls[place] = here = trace.complete(here)
        when, number = np.unique(occurrences.iteration[here], return_counts=True)
        when = when[number == np.median(number)] if len(number) else when
        common = when if common is None else np.intersect1d(common, when)
    kept = np.asarray(common, np.int64)
    for place, here in calls.items():
        calls[place] = here[np.isin(occurrences.iteration[here], kept)]
    return calls, kept


def _gaps(trace: Trace, iterations: Int64) -> list[str]:
    """Note that policies see iterations as successive that are apart in the run."""
    stretch, spacing = regular_stretch(training_steps(trace, iterations))
    notes = []
    if spacing > 1:
        notes.append(f"plans take iterations that are {spacing} apart as successive")
    if stretch != slice(0, len(iterations)):
        notes.append("iterations are missing: plans take the others as successive")
    return notes


# ---- forecasts -----------------------------------------------------------------------


def forecast_points(
    series: Float64, points: Int64, *, age: int, forecaster: str, seed: int = 0
) -> Sequence[Float64]:
    """Forecast a series at some iterations from what is known ``age`` before.

    ``series`` is ``[T, ...]``, 0 and above, and ``points`` ``[n]`` iterations of its
    second half.  Settings of the ``forecaster`` are chosen on the second quarter.  Each
    forecast ``[...]`` depends on ``series[: point - age + 1]`` only, but the oracle's.
    """
    newest = points - age
    if forecaster in ("oracle", "persistence", "shuffled"):
        rng = np.random.default_rng(seed)
        chosen = {"oracle": points, "persistence": newest}.get(forecaster)
        if chosen is None:
            chosen = rng.integers(0, newest + 1)
        return [series[number] for number in chosen]
    if forecaster == "mean":
        total, means, known = np.zeros(series.shape[1:]), [], 0
        for end in newest + 1:
            total = total + series[known:end].sum(axis=0, dtype=np.float64)
            known = end
            means.append(total / end)
        return means
    flat = np.asarray(series.reshape(len(series), -1), np.float64)
    known = len(series) // 2 - age + 1
    parts = Split(
        times=np.arange(len(series)), train_end=known // 2, validation_end=known
    )
    period = find_period(flat[: parts.train_end])
    methods = ("persistence", "ema") if forecaster == "ema" else METHODS
    best = tuned(flat, parts, [age], period=period, methods=methods)[age][0]
    (made,) = forecasts(flat, parts.times, best, {age: newest})
    return list(np.maximum(made, 0.0).reshape(len(points), *series.shape[1:]))

"""Charts of a trace itself: demand, bytes between ranks, and calls over time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from moetraffic.analysis.exchange import Exchange
from moetraffic.analysis.measures import shares
from moetraffic.analysis.sources import OTHERS, middle_iterations, timeline
from moetraffic.analysis.times.traffic import world_matrices
from moetraffic.arrays import Int64
from moetraffic.errors import AnalysisError, TraceError
from moetraffic.report.chart import (
    OTHER_COLOR,
    PHASE_COLORS,
    Axis,
    Chart,
    Missing,
    Panel,
    Rule,
    Series,
)
from moetraffic.report.heatmaps import byte_unit, matrix_chart
from moetraffic.trace import ALL_TO_ALL, PHASES, ROUTING, UNKNOWN_TIME, Trace
from moetraffic.units import rank_span

from .info import about

MOST_BORDERS = 16
"""Lines between ranks above which none are drawn."""

MOST_LAYERS = 8
"""Layers whose loads are drawn."""

LOAD_CELLS = 400_000
"""Maximum cells of the heatmaps of loads."""

SHOWN = 3
"""Iterations in the timeline."""

MOST_BARS, MOST_ROWS = 6000, 64
"""Maximum calls and ranks in the timeline."""

UNTIMED = "the trace has no times of its calls (capture or replay it on real ranks)"

UNROUTED = "the trace has no routing: register the router with capture.router"


def named(exchange: Exchange | Mapping[str, Any], several: bool) -> str:
    """Name an exchange, or a row of a table, by layer, and by group if there are
    several."""
    key = exchange.key if isinstance(exchange, Exchange) else exchange
    return f"layer {key['layer']}" + f", group {key['group']}" * several


# ---- heatmaps ------------------------------------------------------------------------


def demand_chart(trace: Trace, exchange: Exchange) -> Chart:
    """Draw the demand of one layer in the first, a middle and the last iteration.

    A mean over several would hide what repeats within them.
    """
    when = exchange.iterations.tolist()
    matrices = {}
    for iteration in sorted({when[0], when[len(when) // 2], when[-1]}):
        routed = trace.find(
            operation=ROUTING,
            layer=exchange.layer,
            group=exchange.group,
            direction="forward",
            iterations=range(iteration, iteration + 1),
        )
        total = trace.demand(trace.complete(routed)).sum(axis=0)
        matrices[f"iteration {iteration}"] = total
    mean = np.mean(list(matrices.values()))
    rules = _rank_borders(trace, exchange)
    lines = "; white lines: between ranks" if rules else ""
    return matrix_chart(
        matrices,
        title=f"Demand of layer {exchange.layer}",
        source=f"{about(trace)}. Token copies, dropped ones included; mean of all "
        f"cells: {mean:.4g}{lines}",
        unit=f"token copies, layer {exchange.layer}",
        column="expert",
        rules=rules,
    )


def _rank_borders(trace: Trace, exchange: Exchange) -> tuple[Rule, ...]:
    """Return lines between the experts of different ranks, if these are few."""
    try:
        holder = trace.holder(
            exchange.layer, exchange.group, int(exchange.iterations[0])
        )
    except TraceError:  # unknown, or experts with replicas
        return ()
    borders = np.flatnonzero(np.diff(holder)) + 0.5
    if len(borders) >= MOST_BORDERS:
        return ()
    return tuple(Rule(x=float(x), color="white", dash="solid") for x in borders)


def load_chart(
    exchanges: Sequence[Exchange], loads: Mapping[tuple[int, int], Int64]
) -> Chart | Missing:
    """Draw the share of each expert (or receiving rank) in its layer over the run.

    ``loads`` are ``[T, E]`` by layer and group.
    """
    title = "Share of each expert over time"
    every = [e for e in exchanges if (e.layer, e.group) in loads]
    if not every:
        return Missing(title=title, reason=UNROUTED)
    drawn = every[:MOST_LAYERS]
    several = len({e.group for e in every}) > 1
    cells = sum(loads[e.layer, e.group].size for e in drawn)
    step = max(1, -(-cells // LOAD_CELLS))
    panels = []
    for exchange in drawn:
        part = 100 * shares(loads[exchange.layer, exchange.group][::step])
        what = "expert" if exchange.experts else "rank"
        heat = Series(
            kind="heatmap",
            x=exchange.iterations[::step],
            y=list(range(part.shape[1])) if exchange.experts else list(exchange.ranks),
            z=part.T,
            unit="share [%]",
            hover=f"{what} %{{y}}<br>iteration %{{x}}<br>%{{z:.2f}} %<extra></extra>",
        )
        panels.append(
            Panel(
                name=(named(exchange, several),),
                x=Axis(label="iteration"),
                y=Axis(label=what),
                series=(heat,),
                note=f"Balanced: {100 / part.shape[1]:.3g}% for each",
            )
        )
    source = "Token copies of each expert, as a share of its layer's"
    if not all(exchange.experts for exchange in drawn):
        source += "; without routing, bytes that each rank receives"
    if len(drawn) < len(every):
        source += f". First {len(drawn)} of {len(every)} layers"
    return Chart(
        key="loads",
        title=title,
        source=source + (f". One of every {step} iterations" if step > 1 else ""),
        columns=("iteration", "expert or rank", "share [%]"),
        choices=("layer",),
        panels=tuple(panels),
        height=300,
    )


def traffic_chart(
    trace: Trace,
    iterations: Sequence[int],
    *,
    operations: Sequence[str] | None = None,
    algorithm: str = "ring",
    layers: Sequence[int] | None = None,
    phase: str | None = None,
) -> Chart:
    """Draw the bytes between all ranks in a few iterations.

    They are those of the all-to-alls of ``layers`` and a ``phase``, or of
    ``operations``; by default of all dispatches, and of all collectives where there are
    none: a sum over phases is symmetric.

    ``operations`` and ``algorithm`` are those of
    :func:`moetraffic.analysis.times.traffic.world_matrices`.
    """
    if operations is None and layers is None and phase is None:
        dispatched = any(site.phase == PHASES[0] for site in trace.sites)
        phase = PHASES[0] if dispatched else None
    if layers is None and phase is None:
        matrices = world_matrices(
            trace, iterations, operations=operations, algorithm=algorithm
        )
        what = " + ".join(operations) if operations else "all collectives"
        summed, how = "", f"all-reduces and the like as {algorithm}; "
    else:
        matrices = _of_layers(trace, iterations, layers or trace.layers, phase)
        what = phase or "all phases"
        if layers:
            what += f", layers: {', '.join(map(str, layers))}"
        summed, how = "" if layers else " in all layers", ""
    factor, unit = byte_unit(int(matrices.max(initial=0)))
    shown = matrices / factor
    own = np.arange(shown.shape[1])
    shown[:, own, own] = np.nan  # left out, not zero
    return matrix_chart(
        dict(zip(map(trace.steps.label, iterations), shown, strict=True)),
        title=f"Bytes between ranks: {what}",
        source=f"{about(trace)}. Sums over the calls of one iteration{summed}; {how}"
        "without rank-local (self) traffic, the diagonal",
        unit=f"{what} [{unit}]",
        column="receiving rank",
    )


def _of_layers(
    trace: Trace, iterations: Sequence[int], layers: Sequence[int], phase: str | None
) -> Int64:
    """Sum the wire matrices of layers and phases, ``[n, R, R]`` bytes."""
    phases = {s.phase for s in trace.sites if s.phase}
    if phase is not None and phase not in phases:
        raise AnalysisError(
            f"the trace has the phases {', '.join(sorted(phases)) or 'of no call'}, "
            f"but --phase is {phase!r}: choose among these"
        )
    world, chosen = trace.meta.world, list(iterations)
    out = np.zeros((len(chosen), world, world), np.int64)
    # also of evaluations, where they are asked for
    for call in trace.find(operation=ALL_TO_ALL, kind=None).tolist():
        site = trace.sites[int(trace.occurrences.site[call])]
        iteration = int(trace.occurrences.iteration[call])
        wanted = site.layer in layers and site.phase and phase in (None, site.phase)
        if wanted and iteration in chosen:
            ranks = np.array(trace.groups[site.group].ranks)
            wire = trace.wire(np.array([call]))[0]
            out[chosen.index(iteration)][np.ix_(ranks, ranks)] += wire
    out[:, np.arange(world), np.arange(world)] = 0
    return out


# ---- calls over time -----------------------------------------------------------------


def timeline_chart(
    trace: Trace,
    *,
    layers: Collection[int] | None = None,
    phase: str | None = None,
) -> Chart | Missing:
    """Draw each rank's calls as bars over time, all-to-alls colored by phase.

    ``layers`` and ``phase`` select all-to-alls (None: all calls).
    """
    some = layers is not None or phase is not None
    title = f"On-off timeline of {'all-to-alls' if some else 'all communication'}"
    if trace.meta.virtual:
        return Missing(title=title, reason="virtual ranks share one process")
    chosen = middle_iterations(trace.iterations, SHOWN)
    calls = timeline(trace, chosen, layers=layers, phase=phase)
    start, end = calls["begin_ns"], calls["end_ns"]
    rank, phases = calls["rank"], calls["phase"]
    if not len(start):
        return Missing(title=title, reason=UNTIMED)
    begins = {
        int(i): int(t)
        for i, t in zip(trace.steps.iteration, trace.steps.start[:, 0], strict=True)
        if i in chosen and t != UNKNOWN_TIME
    }
    ranks = np.unique(rank)
    each = -(-len(ranks) // MOST_ROWS)
    shown = np.isin(rank, ranks[::each])
    note = f" Ranks {rank_span(ranks[::each].tolist())}." if each > 1 else ""
    if shown.sum() > MOST_BARS:
        # later calls are omitted
        shown &= start <= np.sort(start[shown])[MOST_BARS - 1]
        note += f" The first {MOST_BARS} calls."
    origin = min([int(start[shown].min()), *begins.values()])
    series = []
    for name in dict.fromkeys([OTHERS, *PHASE_COLORS, *sorted(set(phases[shown]))]):
        mine = shown & (phases == name)
        if not mine.any():
            continue
        series.append(
            Series(
                kind="bars",
                x=(end[mine] - start[mine]) / 1e6,
                y=rank[mine],
                base=(start[mine] - origin) / 1e6,
                name=name,
                color=PHASE_COLORS.get(name, OTHER_COLOR),
                width=0.74 * each,
                hover="rank %{y}<br>at %{base:.3f} ms, for %{x:.3f} ms",
            )
        )
    rules = tuple(
        Rule(x=(begin - origin) / 1e6, text=f"{'' if n else 'iteration '}{i}")
        for n, (i, begin) in enumerate(begins.items())
    )
    return Chart(
        key="timeline",
        title=title,
        source=f"{about(trace)}. From when the last rank has issued the call until it "
        "has ended on the rank; times on rank 0's clock. Dotted lines: starts of "
        f"iterations.{note}",
        columns=("length [ms]", "rank", "begin [ms]"),
        panels=(
            Panel(
                x=Axis(label=f"time{', all-to-alls only' * some} [ms]"),
                y=Axis(label="rank", reverse=True),
                series=tuple(series),
                rules=rules,
            ),
        ),
        height=int(np.clip(190 + 30 * len(ranks[::each]), 260, 620)),
        width=1200,
    )

"""Pictures of one trace: what they show is read here, how it looks is ``figures``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from moetraffic.analysis import Analysis, Complexity, ExchangeAnalysis, Subject
from moetraffic.analysis.times.iteration_traffic import world_matrices
from moetraffic.trace import ALL_TO_ALL, ROUTING, UNKNOWN_TIME, Trace
from moetraffic.units import rank_span

from . import figures
from .complexity import complexity_map
from .occupation import figure as occupation

AVERAGED = 10  # iterations in each heatmap
SHOWN = 3  # iterations in the timeline

ON = "From when the last rank has issued the all-to-all until it has ended on the rank"
"""What a bar of the timeline is."""


def draw(trace: Trace, analysis: Analysis, folder: Path) -> list[Path]:
    """Draw what the trace can show: demand, timeline, entropy, complexity.

    Parameters
    ----------
    trace, analysis
        What was captured, and what was computed of it.
    folder
        Where the PNG files go; files of the same names are replaced.

    Returns
    -------
    list of Path
        The pictures that were drawn.
    """
    routed = [e for e in analysis.exchanges if _subject(e, "demand")]
    drawn = [
        figures.save(heatmaps(trace, e), folder / _demand_name(e, routed))
        for e in routed
    ]
    if analysis.beats.found:
        drawn.append(figures.save(timeline(trace), folder / "timeline.png"))
    if any(_subject(e, "expert_load") for e in analysis.exchanges):
        drawn.append(figures.save(entropy(trace, analysis), folder / "entropy.png"))
    several = len({e.group for e in analysis.exchanges}) > 1
    packets = {
        f"layer {e.layer}, {e.phase}"
        + (f", ranks {rank_span(e.ranks)}" if several else ""): e.complexity
        for e in analysis.exchanges
        if e.complexity is not None and np.isfinite(e.complexity.product)
    }
    spent = analysis.occupation
    if spent is not None and spent.known.any():
        drawn.append(
            figures.save(occupation(spent, about(trace)), folder / "occupation.png")
        )
    if packets:
        shown = complexity_map(packets, source=f"{about(trace)}. {_of(packets)}")
        drawn.append(figures.save(shown, folder / "complexity.png"))
    return drawn


def _of(packets: Mapping[str, Complexity]) -> str:
    """What the packets are."""
    one = next(iter(packets.values()))
    return (
        f"{one.records} packets of {one.quantum} each, {one.order} within an iteration"
    )


def heatmaps(trace: Trace, exchange: ExchangeAnalysis) -> Figure:
    """Demand of one layer early, in the middle and late, each a mean of iterations."""
    when = exchange.iterations
    length = min(AVERAGED, len(when))
    firsts = sorted({0, (len(when) - length) // 2, len(when) - length})
    matrices, names = [], []
    for stage, first in zip(("early", "middle", "late"), firsts, strict=False):
        chosen = when[first : first + length]
        routed = trace.find(
            operation=ROUTING,
            layer=exchange.layer,
            group=exchange.group,
            direction="forward",
            iterations=range(int(chosen[0]), int(chosen[-1]) + 1),
        )
        matrices.append(trace.demand(trace.complete(routed)).sum(axis=0) / len(chosen))
        names.append(f"{stage}: iterations {chosen[0]} to {chosen[-1]}")
    return figures.demand_heatmaps(
        np.array(matrices),
        names,
        title=f"Demand of layer {exchange.layer}: who sends how much to which expert",
        source=f"{about(trace)}. Mean token copies an iteration, dropped ones too",
        experts_per_rank=_experts_per_rank(trace, exchange),
    )


def traffic(
    trace: Trace,
    iterations: Sequence[int],
    *,
    operations: Sequence[str] | None = None,
    algorithm: str = "ring",
) -> Figure:
    """Bytes between all ranks in a few iterations, collectives of all kinds summed.

    Parameters
    ----------
    trace
        Any.
    iterations
        Which steps, a panel each.
    operations, algorithm
        As :func:`moetraffic.analysis.times.iteration_traffic.world_matrices` has them.
    """
    matrices = world_matrices(
        trace, iterations, operations=operations, algorithm=algorithm
    )
    top = int(matrices.max(initial=0))
    factor, unit = (1e6, "MB") if top >= 1e6 else (1e3, "kB")
    what = " + ".join(operations) if operations else "all collectives"
    return figures.demand_heatmaps(
        matrices / factor,
        [f"iteration {i}" for i in iterations],
        title=f"Who sends whom how much: {what}",
        source=f"{about(trace)}. Sums of one iteration; all-reduces and the like as "
        f"{algorithm}; a rank's traffic to itself left out",
        unit=unit,
        column="receiving rank",
    )


@dataclass(frozen=True, kw_only=True)
class Calls:
    """When each rank's all-to-alls were on, a few iterations, ns of rank 0's clock."""

    start: npt.NDArray[np.int64]  # [n]
    end: npt.NDArray[np.int64]  # [n]
    rank: npt.NDArray[np.int64]  # [n] world rank
    phase: tuple[str, ...]  # [n]
    marks: npt.NDArray[np.int64]  # [m] begins of iterations, on rank 0
    iterations: tuple[int, ...]  # those whose begins these are


def calls(trace: Trace, *, shown: int = SHOWN) -> Calls:
    """When each rank's all-to-alls were on, in a few iterations of the middle.

    Parameters
    ----------
    trace
        With times; without, there are no calls.
    shown
        How many iterations.
    """
    when = trace.iterations
    first = int(when[max(0, len(when) // 2 - 1)]) if len(when) else 0
    found = trace.complete(
        trace.find(operation=ALL_TO_ALL, iterations=range(first, first + shown))
    )
    sites = trace.occurrences.site[found]
    widths = np.array([trace.size(int(o)) for o in found], np.int64)
    parts = []
    for width in np.unique(widths):
        of = found[widths == width]
        issue, start, end = trace.times(of)
        begin = np.where(start != UNKNOWN_TIME, start, issue.max(axis=1, keepdims=True))
        phase = [trace.sites[s].phase for s in sites[widths == width]]
        known = (issue != UNKNOWN_TIME) & (end != UNKNOWN_TIME)
        members = trace.members(of)
        for at, name in enumerate(phase):
            parts += [
                (int(min(b, e)), int(e), int(rank), name)
                for b, e, rank, told in zip(
                    begin[at], end[at], members[at], known[at], strict=True
                )
                if told and name
            ]
    rows = np.searchsorted(trace.steps.iteration, np.arange(first, first + shown))
    rows = rows[rows < len(trace.steps.iteration)]
    marks = trace.steps.start[rows, 0]
    rows = rows[marks != UNKNOWN_TIME]
    return Calls(
        start=np.array([p[0] for p in parts], np.int64),
        end=np.array([p[1] for p in parts], np.int64),
        rank=np.array([p[2] for p in parts], np.int64),
        phase=tuple(p[3] for p in parts),
        marks=marks[marks != UNKNOWN_TIME],
        iterations=tuple(trace.steps.iteration[rows].tolist()),
    )


def timeline(trace: Trace) -> Figure:
    """When each rank's all-to-alls were on, in a few iterations of the middle."""
    on = calls(trace)
    ranks = np.unique(on.rank)
    return figures.timeline(
        on.start,
        on.end,
        np.searchsorted(ranks, on.rank),
        on.phase,
        row_names=[f"rank {rank}" for rank in ranks],
        marks=on.marks,
        mark_names=[f"iteration {i}" for i in on.iterations],
        source=f"{about(trace)}. {ON}",
    )


def entropy(trace: Trace, analysis: Analysis) -> Figure:
    """Normalized entropy and max/mean of the experts' loads over the run."""
    loads = [
        (e, subject)
        for e in analysis.exchanges
        if (subject := _subject(e, "expert_load"))
    ]
    when = np.unique(np.concatenate([e.iterations for e, _ in loads]))
    columns = {}
    for measure in ("normalized_entropy", "max_over_mean"):
        columns[measure] = np.full((len(when), len(loads)), np.nan)
        for at, (exchange, subject) in enumerate(loads):
            rows = np.searchsorted(when, exchange.iterations)
            columns[measure][rows, at] = subject.curves[measure].values
    floors: dict[str, tuple[float, float] | None] = {}
    for measure in columns:
        floor = loads[0][1].curves[measure].floor
        floors[measure] = None
        if floor is not None:
            # the token count is the same in all layers: one band for all
            floors[measure] = (
                float(np.nanmean(floor.mean)),
                float(np.nanmean(floor.std)),
            )
    several = len({e.group for e, _ in loads}) > 1
    return figures.entropy_curve(
        when,
        columns["normalized_entropy"],
        columns["max_over_mean"],
        [
            f"layer {e.layer}" + (f", ranks {rank_span(e.ranks)}" if several else "")
            for e, _ in loads
        ],
        entropy_floor=floors["normalized_entropy"],
        max_over_mean_floor=floors["max_over_mean"],
        source=f"{about(trace)}. Of the token copies that each expert was given",
    )


def _demand_name(exchange: ExchangeAnalysis, every: Sequence[ExchangeAnalysis]) -> str:
    """A layer's picture; where it has several groups, they are counted."""
    of_layer = [e.group for e in every if e.layer == exchange.layer]
    which = f"-group-{of_layer.index(exchange.group)}" if len(of_layer) > 1 else ""
    return f"demand-layer-{exchange.layer}{which}.png"


def _subject(exchange: ExchangeAnalysis, name: str) -> Subject | None:
    return next((s for s in exchange.subjects if s.name == name), None)


def _experts_per_rank(trace: Trace, exchange: ExchangeAnalysis) -> int | None:
    """How many experts each rank holds, where they are contiguous and as many."""
    rows = trace.placements
    mine = (rows["layer"] == exchange.layer) & (rows["group"] == exchange.group)
    if not mine.any() or (rows["replica"][mine] > 0).any():
        return None
    holder = trace.holder(exchange.layer, exchange.group, int(exchange.iterations[0]))
    each = len(holder) // len(exchange.ranks)
    even = np.arange(len(holder)) // max(1, each)
    return each if each and np.array_equal(holder, even) else None


def about(trace: Trace) -> str:
    """The run in a few words."""
    meta = trace.meta
    router = f"{meta.router} k={meta.k} {meta.dispatch}".strip() if meta.router else ""
    parts = [
        f"{meta.origin.capitalize()} run",
        meta.model,
        f"{meta.world} ranks, EP {meta.ep}",
        f"{meta.experts} experts" if meta.experts else "",
        router,
    ]
    return ", ".join(part for part in parts if part)

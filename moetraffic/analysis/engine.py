"""Apply the measures to a trace: what can be computed is, the rest says why not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.errors import AnalysisError, TraceError
from moetraffic.trace import ALL_TO_ALL, ROUTING, UNKNOWN_TIME, Trace

from .convergence import Settling, Trend, settling, trend
from .floors import NoiseFloor, noise_floor
from .predictability import Scores, evaluate, mape_floor
from .rhythm import Rhythm, rhythm
from .skew import MEASURES, shares

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

SKEW = ("normalised_entropy", "max_over_mean", "cv", "gini")
"""Measures of skew that are computed of everything."""

Reader = Callable[[Int64], npt.NDArray[Any]]

BINS_A_STEP = 32  # of the on-off series in which the period is sought

BLOCK = 4096  # matrices in memory at a time


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A measure in every iteration, beside what a balanced gate shows by chance."""

    values: Float64  # [T]
    floor: NoiseFloor | None  # arrays [T]; None where there is none to compare with
    trend: Trend  # slope an iteration
    settling: Settling  # where it has become steady


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What statistics were computed of, and these."""

    name: str  # "expert_load", "demand" or "wire"
    about: str  # what its cells are, in words
    unit: str
    curves: Mapping[str, Curve]  # by measure
    scores: Mapping[str, Scores]  # one-step forecasts of its shares, by forecaster
    mape_floor: float = float("nan")  # of the best forecaster of a balanced gate


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """The statistics of one layer's expert exchange on one process group."""

    layer: int
    group: int
    ranks: tuple[int, ...]
    iterations: Int64  # [T] those whose records are whole
    left_out: int  # iterations in which a rank's record is missing
    subjects: tuple[Subject, ...]


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """Everything that was computed of a trace."""

    exchanges: tuple[Exchange, ...]
    rhythms: Mapping[int, Rhythm]  # of each world rank's all-to-alls
    rhythm_of: str = ""  # which all-to-alls these are, in words
    notes: tuple[str, ...] = field(default=())  # what could not be computed, and why


def analyze(
    trace: Trace,
    *,
    layers: Sequence[int] | None = None,
    iterations: range | None = None,
) -> Analysis:
    """Compute skew, rhythm, predictability and convergence of a trace.

    Micro-batches of a step are summed.  Demand is what the router wanted; wire is what
    dispatch sent between different ranks.

    Parameters
    ----------
    trace
        Captured, imported, generated or replayed.
    layers
        MoE layers to look at; all if None.
    iterations
        Training iterations to look at; all if None.

    Raises
    ------
    AnalysisError
        If the trace has no such layer, or none of the iterations.
    """
    chosen = tuple(trace.layers if layers is None else layers)
    if iterations is not None and not any(
        i in iterations for i in trace.iterations.tolist()
    ):
        last = int(trace.iterations.max(initial=-1))
        raise AnalysisError(
            f"iterations {iterations.start} to {iterations.stop - 1} are none of the "
            f"{len(trace.iterations)} training iterations, whose last is {last}: "
            "choose among these"
        )
    unknown = sorted(set(chosen) - set(trace.layers))
    if unknown:
        raise AnalysisError(
            f"statistics are of MoE layers, but {unknown} are none: this trace has "
            f"{list(trace.layers)}"
        )
    notes: list[str] = []
    exchanges = [
        exchange
        for layer in chosen
        for group in _groups(trace, layer)
        if (exchange := _exchange(trace, layer, group, iterations, notes))
    ]
    if not chosen:
        notes.append(
            "no skew and no predictability: the trace shows no routing and no labelled "
            "expert exchange"
        )
    found, about = on_the_wire(trace, chosen, iterations)
    return Analysis(
        exchanges=tuple(exchanges),
        rhythms=_rhythms(trace, found, notes),
        rhythm_of=about,
        notes=tuple(dict.fromkeys(notes)),
    )


def _groups(trace: Trace, layer: int) -> list[int]:
    return sorted(
        {
            s.group
            for s in trace.sites
            if s.layer == layer and (s.phase == "dispatch" or s.operation == ROUTING)
        }
    )


def _exchange(
    trace: Trace, layer: int, group: int, iterations: range | None, notes: list[str]
) -> Exchange | None:
    """Statistics of one layer and group; None where no record of it is whole."""
    routed = trace.find(
        operation=ROUTING,
        layer=layer,
        group=group,
        direction="forward",
        iterations=iterations,
    )
    sent = trace.find(
        operation=ALL_TO_ALL,
        phase="dispatch",
        layer=layer,
        group=group,
        direction="forward",
        iterations=iterations,
    )
    where = f"layer {layer}, group {group}"
    sources = [found for found in (routed, sent) if len(found)]
    whole = [_whole_iterations(trace, found) for found in sources]
    if not sources:
        notes.append(f"{where}: nothing, for none of these iterations has a record")
        return None
    when = np.intersect1d(whole[0], whole[-1])
    if not len(when):
        notes.append(f"{where}: nothing, for no iteration has every rank's record")
        return None
    seen = np.unique(trace.occurrences.iteration[sources[0]])
    subjects: list[Subject] = []
    counts: Int64 | None = None
    if len(routed):
        counts = _summed(trace, routed, when, trace.demand)
        subjects += _of_demand(counts, when, trace.meta.k, where, notes)
    else:
        notes.append(f"{where}: no demand, for its router was not seen")
    if len(sent):
        try:
            wire = _summed(trace, sent, when, trace.wire)
        except TraceError as error:
            notes.append(f"{where}: no wire, for {error}")
        else:
            subjects += _of_wire(wire, when, counts, trace, where, notes)
    else:
        notes.append(f"{where}: no wire, for its dispatch was not seen")
    return Exchange(
        layer=layer,
        group=group,
        ranks=trace.groups[group].ranks,
        iterations=when,
        left_out=len(seen) - len(when),
        subjects=tuple(subjects),
    )


def _whole_iterations(trace: Trace, occurrences: Int64) -> Int64:
    """Iterations of which every occurrence has every member's record, ``[T]``."""
    when = trace.occurrences.iteration[occurrences]
    whole = trace.occurrences.iteration[trace.complete(occurrences)]
    every, wanted = np.unique(when, return_counts=True)
    there, found = np.unique(whole, return_counts=True)
    of = dict(zip(there.tolist(), found.tolist(), strict=True))
    return np.array(
        [i for i, n in zip(every.tolist(), wanted, strict=True) if of.get(i) == n],
        np.int64,
    )


def _summed(trace: Trace, occurrences: Int64, when: Int64, read: Reader) -> Int64:
    """Arrays of the occurrences summed within each iteration, ``[T, ...]`` int64."""
    iteration = trace.occurrences.iteration[occurrences]
    mine = occurrences[np.isin(iteration, when)]
    row = np.searchsorted(when, trace.occurrences.iteration[mine])
    shape = read(mine[:1]).shape[1:]
    out = np.zeros((len(when), *shape), np.int64)
    for at in range(0, len(mine), BLOCK):
        np.add.at(out, row[at : at + BLOCK], read(mine[at : at + BLOCK]))
    return out


def _tokens(counts: Int64, k: int) -> Int64 | None:
    """Tokens of a rank in each iteration, ``[T]``; None where k is not known."""
    if k < 1:
        return None
    tokens: Int64 = np.rint(counts.sum(axis=2).mean(axis=1) / k).astype(np.int64)
    return tokens


def _of_demand(
    counts: Int64, when: Int64, k: int, where: str, notes: list[str]
) -> list[Subject]:
    """Statistics of the load of each expert and of the ranks' demand, ``[T, W, E]``."""
    ranks, experts = counts.shape[1:]
    tokens = _tokens(counts, k)
    if tokens is None:
        notes.append(f"{where}: no noise floors, for the trace does not tell k")
    load = counts.sum(axis=1)
    best = float("nan")
    if tokens is not None:
        best = float(np.mean(mape_floor(tokens * ranks, experts=experts, k=k)))
    flat = counts.reshape(len(counts), -1)
    return [
        Subject(
            name="expert_load",
            about="token copies that each expert was given by all ranks",
            unit="token copies",
            curves=_curves(
                load,
                when,
                None if tokens is None else tokens * ranks,
                {"experts": experts, "k": k},
            ),
            scores=_scores(load, where, notes),
            mape_floor=best,
        ),
        Subject(
            name="demand",
            about="token copies that each rank routed to each expert",
            unit="token copies",
            curves=_curves(
                flat, when, tokens, {"experts": experts, "k": k, "sources": ranks}
            ),
            scores=_scores(flat, where, notes),
        ),
    ]


def _of_wire(
    wire: Int64,
    when: Int64,
    counts: Int64 | None,
    trace: Trace,
    where: str,
    notes: list[str],
) -> list[Subject]:
    """Statistics of the bytes between different ranks, ``[T, W, W]``."""
    ranks = wire.shape[1]
    if ranks < 2:
        notes.append(f"{where}: no wire, for one rank sends nothing to another")
        return []
    between = wire[:, ~np.eye(ranks, dtype=bool)]
    # chance moves bytes only where bytes follow the tokens
    follows = counts is not None and trace.meta.dispatch != "padded"
    tokens = _tokens(counts, trace.meta.k) if counts is not None else None
    floors = {
        "experts": 0 if counts is None else counts.shape[2],
        "k": trace.meta.k,
        "ranks": ranks,
        "sources": ranks,
        "diagonal": False,
    }
    return [
        Subject(
            name="wire",
            about="bytes that dispatch sent from each rank to each other rank",
            unit="bytes",
            curves=_curves(between, when, tokens if follows else None, floors),
            scores=_scores(between, where, notes),
        )
    ]


def _curves(
    cells: Int64, when: Int64, tokens: Int64 | None, floors: Mapping[str, Any]
) -> dict[str, Curve]:
    curves = {}
    for name in SKEW:
        values = np.asarray(MEASURES[name](cells, axis=-1), np.float64)
        curves[name] = Curve(
            values=values,
            floor=None if tokens is None else noise_floor(name, tokens, **floors),
            trend=trend(values, at=when),
            settling=settling(values),
        )
    return curves


def _scores(cells: Int64, where: str, notes: list[str]) -> dict[str, Scores]:
    """How well the shares of the cells are forecast a step ahead."""
    warm_up = 8
    if len(cells) < 2 * warm_up:
        notes.append(
            f"{where}: no predictability, for {len(cells)} iterations are fewer than "
            f"{2 * warm_up}"
        )
        return {}
    return evaluate(shares(cells, axis=-1), warm_up=warm_up, axis=(0, -1))


def on_the_wire(
    trace: Trace, layers: Sequence[int], iterations: range | None
) -> tuple[Int64, str]:
    """All-to-alls whose rhythm is told, and which these are, in words.

    Those with a phase where the program names any; counts that are exchanged before a
    dispatch, and calls without a name, are then no part of it.
    """
    found = trace.complete(trace.find(operation=ALL_TO_ALL, iterations=iterations))
    site = trace.occurrences.site[found]
    named = np.array([bool(s.phase) and s.layer in layers for s in trace.sites], bool)
    if not layers or not named.any():
        return found, "all all-to-alls"
    mine = named[site]
    others = sorted(
        {
            trace.sites[s].label or trace.sites[s].phase or "without a name"
            for s in np.unique(site[~mine])
        }
    )
    left = int((~mine).sum())
    about = "all-to-alls with a phase, layers " + ", ".join(map(str, layers))
    if left:
        about += f"; {left} others are left out ({', '.join(others)})"
    return found[mine], about


def _rhythms(trace: Trace, found: Int64, notes: list[str]) -> dict[int, Rhythm]:
    """The on-off pattern of each rank's all-to-alls.

    A rank counts as sending from when the last member has issued the all-to-all (or
    from its known start) until it ended there: before that, it waits.
    """
    spans: dict[int, list[tuple[Int64, Int64]]] = {}
    sizes = np.array([trace.size(int(o)) for o in found], np.int64)
    for width in np.unique(sizes):
        of = found[sizes == width]
        issue, start, end = trace.times(of)
        begin = np.where(start != UNKNOWN_TIME, start, issue.max(axis=1, keepdims=True))
        known = (issue != UNKNOWN_TIME).all(axis=1, keepdims=True)
        known = known & (end != UNKNOWN_TIME)
        members = trace.members(of)
        for rank in np.unique(members):
            mine = (members == rank) & known
            # another rank's clock may be off by its error: nothing ends before it began
            first, last = begin[mine], end[mine]
            if len(first):
                spans.setdefault(int(rank), []).append((np.minimum(first, last), last))
    if not spans:
        notes.append("no rhythm: the trace has no all-to-all whose times are known")
    return {
        rank: rank_rhythm(
            np.concatenate([first for first, _ in parts]),
            np.concatenate([last for _, last in parts]),
            step_ns(trace, rank),
        )
        for rank, parts in sorted(spans.items())
    }


def rank_rhythm(first: Int64, last: Int64, step_ns: float) -> Rhythm:
    """A rank's on-off pattern; where steps are marked, the period is sought near them.

    Over a whole run, iteration times wander so far that any lag may win by chance.
    """
    if not np.isfinite(step_ns):
        return rhythm(first, last)
    return rhythm(
        first,
        last,
        bin_ns=step_ns / BINS_A_STEP,
        period_range_ns=(0.5 * step_ns, 1.5 * step_ns),
    )


def step_ns(trace: Trace, rank: int) -> float:
    """Median length of a rank's training steps, ns; NaN where it is not known."""
    steps = trace.steps
    train = np.array([kind == "train" for kind in steps.kind], bool)
    start, end = steps.start[train, rank], steps.end[train, rank]
    known = (start != UNKNOWN_TIME) & (end != UNKNOWN_TIME) & (end > start)
    lengths = (end - start)[known]
    return float(np.median(lengths)) if len(lengths) >= 4 else float("nan")

"""Locate the matrices of expert exchanges in a trace, and read them in windows.

An *exchange* is the traffic to the experts of one MoE layer on one process group.  Its
matrices are read one *window* of iterations at a time, which bounds memory; windows are
independent of each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Int64, Integer
from moetraffic.errors import AnalysisError
from moetraffic.spelling import check_choice
from moetraffic.trace import ALL_TO_ALL, PHASES, ROUTING, Trace
from moetraffic.trace.iterations import regular_stretch
from moetraffic.trace.model import REPEATED
from moetraffic.units import rank_span

from .skew.capacity import capacity_rows

Rows = dict[str, npt.NDArray[np.generic]]
"""Per-iteration values by name, arrays ``[n, ...]`` with one entry per iteration."""

WINDOW_BYTES = 16 << 20
"""Bytes of matrices in memory per thread; a window has at least one iteration."""

OF = ("demand", "wire")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Location in a trace of the matrices of one layer's exchange on one group."""

    layer: int
    group: int
    phase: str  # of the wire
    ranks: tuple[int, ...]  # world rank of each member
    nodes: tuple[str, ...]  # node of each member, "" if unknown
    experts: int  # 0 if no demand is read
    iterations: Int64  # [T] iterations with complete records
    elapsed: Int64  # [T] training steps until then: missing ones count, others do not
    left_out: int  # iterations in which a rank's record is missing
    routed: Int64  # [n] routing occurrences of these iterations; none: no demand
    sent: Int64  # [m] all-to-all occurrences of these iterations; none: no wire
    constant: bool = False  # all iterations send the same bytes

    @cached_property
    def regular(self) -> tuple[slice, int]:
        """Longest part of the iterations without a gap, and their spacing."""
        return regular_stretch(self.elapsed)

    @property
    def where(self) -> str:
        """Layer and group as text, for messages."""
        return f"layer {self.layer}, group {self.group}"


@dataclass(frozen=True, kw_only=True)
class Window:
    """Demand and wire matrices of consecutive iterations, micro-batches summed."""

    demand: Integer | None  # [n, W, E] token copies
    wire: Integer | None  # [n, W, W] of wire_unit bytes; row sends, column receives
    first: int = 0  # index of its first iteration
    wire_unit: int = 1  # bytes per unit of wire: those of a token copy, or 1
    capacity: Rows = field(default_factory=dict)  # of the single micro-batches


BEYOND = "go beyond the last one"
"""Part of the note about iterations that the run does not have."""


def elapsed(trace: Trace, iterations: Int64) -> Int64:
    """Count the training steps before iterations, from their numbers ``[n]``.

    Evaluations and skipped steps have numbers, too, and are no time of the training.
    Where only every N-th iteration is recorded, those between are not known.
    """
    if trace.meta.every > 1:
        return iterations
    others = np.array([kind != "train" for kind in trace.steps.kind], bool)
    return iterations - np.searchsorted(trace.steps.iteration[others], iterations)


def new_iterations(
    trace: Trace, iterations: range | None, notes: list[str]
) -> range | None:
    """Restrict iterations to those that do not repeat others of a synthetic trace.

    Null tests of movement, forecasts and level changes presume that iterations come
    from the run's process; copies of others, in another order, do not.

    Raises
    ------
    AnalysisError
        If none is left.
    """
    if trace.meta.origin == "generated":
        parts = trace.meta.source.split("; ")
        notes += [f"synthetic: {one}" for one in parts if one.endswith(REPEATED)]
    first, last = trace.meta.repeats_from, int(trace.iterations.max(initial=-1))
    if first < 0:
        return iterations
    asked = range(last + 1) if iterations is None else iterations
    if asked.start >= first:
        raise AnalysisError(
            f"statistics are of iterations that repeat no others, but those of this "
            f"synthetic trace from {first} on {REPEATED}: choose among 0 to {first - 1}"
        )
    if asked.stop > first:
        notes.append(
            f"synthetic: iterations {first} to {min(last, asked.stop - 1)} {REPEATED}, "
            "left out"
        )
    return range(asked.start, min(first, asked.stop))


def beyond_last(iterations: range | None, last: int) -> list[str]:
    """Note that a range, whose end may be open, goes beyond the last iteration."""
    if iterations is None or not last < iterations.stop - 1 < 1 << 60:
        return []
    a, b = iterations.start, iterations.stop
    return [f"iterations {a}:{b} {BEYOND}, {last:,}: {a}:{last + 1} are used"]


def sources(
    trace: Trace,
    notes: list[str],
    *,
    layers: Sequence[int] | None = None,
    phase: str = "dispatch",
    iterations: range | None = None,
    of: Sequence[str] = OF,
) -> list[Source]:
    """Find the expert exchanges of a trace by layer and process group.

    Parameters
    ----------
    phase
        Phase of the wire matrices.
    of
        "demand", "wire" or both.

    Returns
    -------
    list of Source
        By layer and group.

    Raises
    ------
    AnalysisError
        If the trace has no such layer, phase or iteration.
    """
    chosen = trace.layers if layers is None else tuple(layers)
    if unknown := sorted(set(chosen) - set(trace.layers)):
        raise AnalysisError(
            f"statistics are of MoE layers, not of {unknown}: this trace has "
            f"{list(trace.layers)}"
        )
    check_choice("a phase", phase, PHASES, AnalysisError)
    if not of or set(of) - set(OF):
        raise AnalysisError(
            f"statistics are of demand or of wire, not of {', '.join(of) or 'nothing'}"
            f": choose among {', '.join(OF)}"
        )
    there = trace.iterations
    if iterations is not None and not any(i in iterations for i in there.tolist()):
        others = len(trace.steps.iteration) > len(there)
        raise AnalysisError(
            f"iterations {_words(iterations)} are none of the "
            f"{len(there)} training iterations, whose last is "
            f"{int(there.max(initial=-1))}"
            + " (other steps, such as evaluations, are numbered, too)" * others
            + ": choose among these"
        )
    iterations = new_iterations(trace, iterations, notes)
    notes += beyond_last(iterations, int(there.max(initial=-1)))
    if not chosen:
        notes.append(
            "no skew and no predictability: the trace shows no routing and no labeled "
            "expert exchange"
        )
    groups = {
        (s.layer, s.group)
        for s in trace.sites
        if s.layer in chosen and (s.phase == phase or s.operation == ROUTING)
    }
    lacking: dict[str, list[tuple[int, int]]] = {}
    found = [
        source
        for layer in chosen
        for _, group in sorted(g for g in groups if g[0] == layer)
        if (source := _source(trace, layer, group, phase, iterations, of, lacking))
    ]
    for why, where in lacking.items():
        layers, numbers = (sorted(set(each)) for each in zip(*where, strict=True))
        notes.append(
            f"layer{'s' * (len(layers) > 1)} {rank_span(layers)}, "
            f"group{'s' * (len(numbers) > 1)} {rank_span(numbers)}: {why}"
        )
    return found


_NO_DEMAND = "no demand, for no router was seen: register yours with capture.router"
_NONE_REPLAYED = (
    "no demand: the replay changed ranks or bytes or added traffic, or no router was "
    "seen when its source was captured"
)


def _words(iterations: range) -> str:
    """Format a range of iterations for messages; its end may be open."""
    last = iterations.stop - 1
    return f"from {iterations.start} " + ("on" if last > 1 << 60 else f"to {last}")


def _source(
    trace: Trace,
    layer: int,
    group: int,
    phase: str,
    iterations: range | None,
    of: Sequence[str],
    lacking: dict[str, list[tuple[int, int]]],
) -> Source | None:
    """Locate the exchange of one layer and group; None if no iteration is complete.

    Layers and groups are added to ``lacking`` by the reason why they have no matrices.
    """
    nothing = np.zeros(0, np.int64)
    routed = sent = nothing
    if "demand" in of:
        routed = trace.find(
            operation=ROUTING,
            layer=layer,
            group=group,
            direction="forward",
            iterations=iterations,
        )
        if not len(routed):
            replayed = trace.meta.origin == "replayed"
            why = _NONE_REPLAYED if replayed else _NO_DEMAND
            lacking.setdefault(why, []).append((layer, group))
    if "wire" in of:
        sent = trace.find(
            operation=ALL_TO_ALL,
            phase=phase,
            layer=layer,
            group=group,
            iterations=iterations,
        )
        # activation checkpointing repeats the forward exchange: count it once
        again = np.array([s.direction == "recompute" for s in trace.sites], bool)
        sent = sent[~again[trace.occurrences.site[sent]]]
        used = np.unique(trace.occurrences.site[sent]).tolist()
        if not used:
            why = f"no wire, for its {phase} was not seen"
            lacking.setdefault(why, []).append((layer, group))
        elif not trace.has_bytes[used].all():
            why = "no wire, for its bytes were not seen"
            lacking.setdefault(why, []).append((layer, group))
            sent = nothing
    found = [each for each in (routed, sent) if len(each)]
    if not found:
        return None
    iteration = trace.occurrences.iteration
    there = [np.unique(iteration[each]) for each in found]
    seen = np.union1d(there[0], there[-1])
    # complete: a record of every rank for every occurrence
    incomplete = [np.setdiff1d(each, trace.complete(each)) for each in found]
    when = np.setdiff1d(
        np.intersect1d(there[0], there[-1]), iteration[np.concatenate(incomplete)]
    )
    if not len(when):
        why = "nothing, for no iteration has every rank's record"
        lacking.setdefault(why, []).append((layer, group))
        return None
    sent = sent[np.isin(iteration[sent], when)]
    ranks = trace.groups[group].ranks
    nodes = trace.meta.nodes
    experts = {
        trace.sites[s].experts for s in np.unique(trace.occurrences.site[routed])
    }
    return Source(
        layer=layer,
        group=group,
        phase=phase,
        ranks=ranks,
        nodes=tuple(nodes[r] if r < len(nodes) else "" for r in ranks),
        experts=max(experts, default=0),
        iterations=when,
        elapsed=elapsed(trace, when),
        left_out=len(seen) - len(when),
        routed=routed[np.isin(iteration[routed], when)],
        sent=sent,
        constant=_constant(trace, sent, len(when)),
    )


def _constant(trace: Trace, sent: Int64, iterations: int) -> bool:
    """Return whether each site sends the same bytes in each iteration."""
    of = trace.occurrences[sent]
    first = np.searchsorted(of.site, of.site)  # call of the same site
    same = (of.matrix == of.matrix[first]) & (of.transposed == of.transposed[first])
    return 0 < len(sent) == len(np.unique(first)) * iterations and bool(same.all())


def stated_tokens(trace: Trace, source: Source) -> Rows:
    """Read the tokens per rank that an import states for each iteration.

    ``step.tokens`` are ``[T]`` int64, the mean over the ranks of the exchange; there
    are none if they are unknown, or the trace was captured: its tokens are in the
    demand.
    """
    steps = trace.steps
    at = np.searchsorted(steps.iteration, source.iterations)
    if trace.meta.origin != "imported" or at.max(initial=0) >= len(steps.iteration):
        return {}
    tokens = steps.tokens[at][:, list(source.ranks)]
    if not np.array_equal(steps.iteration[at], source.iterations) or tokens.min() < 1:
        return {}
    return {"step.tokens": np.rint(tokens.mean(axis=1)).astype(np.int64)}


def windows(source: Source, *, size_bytes: int = WINDOW_BYTES) -> list[range]:
    """Split ``source.iterations`` into windows of bounded size, indices in order.

    ``size_bytes``: Maximum bytes of the matrices of a window, as int64; at least one
    iteration.
    """
    width = len(source.ranks)
    cells = width * max(source.experts, width)
    # a power of two, like the rows of a chunk, so that few chunks are read twice
    fit = max(1, size_bytes // (8 * cells))
    length = 1 << (fit.bit_length() - 1)
    total = len(source.iterations)
    return [range(a, min(a + length, total)) for a in range(0, total, length)]


def read(trace: Trace, source: Source, window: range) -> Window:
    """Read the demand and wire matrices of a window of iterations.

    ``window``: Indices into ``source.iterations``.

    Returns
    -------
    Window
        int32 where every iteration has one occurrence, else int64.

    Raises
    ------
    TraceError
        If the file is damaged.
    """
    when = source.iterations[window.start : window.stop]
    routed = _of_window(trace, source.routed, when)
    sent = _of_window(trace, source.sent, when)
    seen = trace.demand(routed) if len(routed) else None
    demand = None if seen is None else _summed(trace, routed, when, seen)
    limits: Rows = {}
    if seen is not None:
        sites = np.unique(trace.occurrences.site[routed]).tolist()
        known = all(trace.sites[s].dropped.known for s in sites)
        dropped = trace.dropped(routed) if known else None
        at = np.searchsorted(when, trace.occurrences.iteration[routed])
        limits = capacity_rows(seen, dropped, at, len(when))
    if not len(sent):
        return Window(demand=demand, wire=None, first=window.start, capacity=limits)
    rows, unit = _in_rows(trace, sent)
    return Window(
        demand=demand,
        wire=_summed(trace, sent, when, rows),
        first=window.start,
        wire_unit=unit,
        capacity=limits,
    )


def _in_rows(trace: Trace, sent: Int64) -> tuple[Integer, int]:
    """Read wire matrices in units of rows if divisible (faster), else in bytes."""
    wire = trace.wire(sent)
    used = np.unique(trace.occurrences.site[sent]).tolist()
    sizes = {trace.sites[s].row_bytes for s in used}
    size = sizes.pop() if len(sizes) == 1 else 1
    if size > 1 and np.array_equal((rows := wire // size) * size, wire):
        return rows, size
    return wire, 1


def _of_window(trace: Trace, occurrences: Int64, when: Int64) -> Int64:
    iteration = trace.occurrences.iteration[occurrences]
    chosen: Int64 = occurrences[(iteration >= when[0]) & (iteration <= when[-1])]
    return chosen


def _summed(
    trace: Trace, occurrences: Int64, when: Int64, matrices: Integer
) -> Integer:
    """Sum the matrices of occurrences within each iteration, ``[n, ...]``."""
    iteration = trace.occurrences.iteration[occurrences]
    if len(occurrences) == len(when) and np.array_equal(iteration, when):
        return matrices
    out: Int64 = np.zeros((len(when), *matrices.shape[1:]), np.int64)
    np.add.at(out, np.searchsorted(when, iteration), matrices)
    return out

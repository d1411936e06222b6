"""Locate the matrices of expert exchanges in a trace, and read them in windows.

An *exchange* is the traffic to the experts of one MoE layer on one process group.  Its
matrices are read one window of iterations at a time, which bounds memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Int64, Integer
from moetraffic.errors import AnalysisError
from moetraffic.spelling import check_choice
from moetraffic.trace import ALL_TO_ALL, PHASES, ROUTING, Trace
from moetraffic.trace.iterations import regular_stretch
from moetraffic.trace.model import REPEATED
from moetraffic.units import rank_span

from .load import capacity_rows

WINDOW_BYTES = 8 << 20
"""Bytes of matrices in memory per thread; a window has at least one iteration."""


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One MoE layer on one process group: where its matrices are in the trace."""

    layer: int
    group: int
    phase: str  # of the bytes
    ranks: tuple[int, ...]  # world rank of each member
    nodes: tuple[str, ...]  # node of each member, "" if unknown
    experts: int  # 0: the routing is unknown
    iterations: Int64  # [T] iterations with the records of all ranks
    steps: Int64  # [T] training steps before each: missing ones count, others do not
    left_out: int  # iterations in which a rank's record is missing
    routed: Int64  # [n] routing occurrences of these iterations; none: no demand
    sent: Int64  # [m] all-to-all occurrences of these iterations; none: no wire
    constant: bool = False  # all iterations send the same bytes

    @property
    def key(self) -> dict[str, int]:
        """Layer and group, with which the rows of tables begin."""
        return {"layer": self.layer, "group": self.group}

    @cached_property
    def regular(self) -> tuple[slice, int]:
        """Longest stretch of the iterations without a gap, and their spacing."""
        return regular_stretch(self.steps)


@dataclass(frozen=True, kw_only=True)
class Window:
    """Demand and wire matrices of consecutive iterations, micro-batches summed."""

    demand: Integer | None  # [n, W, E] token copies
    wire: Integer | None  # [n, W, W] in units of row_bytes; row sends, column receives
    first: int  # index of its first iteration
    row_bytes: int = 1  # bytes of a token copy, or 1
    capacity: dict[str, npt.NDArray[Any]] = field(default_factory=dict)


def training_steps(trace: Trace, iterations: Int64) -> Int64:
    """Count the training steps before iterations, from their numbers ``[n]``.

    Evaluations and skipped steps have numbers, too, and are no time of the training.
    Where only every N-th iteration is recorded, those between are not known.
    """
    if trace.meta.every > 1:
        return iterations
    others = np.array([kind != "train" for kind in trace.steps.kind], bool)
    return iterations - np.searchsorted(trace.steps.iteration[others], iterations)


def own_iterations(
    trace: Trace, iterations: range | None, notes: list[str]
) -> range | None:
    """Restrict iterations to those that do not repeat others of a synthetic trace.

    Statistics over time presume that iterations come from the run's process; copies of
    others, in another order, do not.

    Raises
    ------
    AnalysisError
        If none is left.
    """
    if trace.meta.origin == "generated":
        sources = trace.meta.source.split("; ")
        notes += [f"synthetic: {text}" for text in sources if text.endswith(REPEATED)]
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
    return [
        f"iterations {a}:{b} go beyond the last one, {last:,}: {a}:{last + 1} are used"
    ]


def exchanges(
    trace: Trace,
    notes: list[str],
    *,
    layers: Sequence[int] | None = None,
    phase: str = "dispatch",
    iterations: range | None = None,
) -> list[Exchange]:
    """Find the expert exchanges of a trace, by layer and process group.

    Parameters
    ----------
    notes
        Receives what is missing, and why.
    phase
        Phase of the bytes: one of :data:`moetraffic.trace.PHASES`.

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
    numbers = trace.iterations
    last = int(numbers.max(initial=-1))
    if iterations is not None and not any(i in iterations for i in numbers.tolist()):
        stop = iterations.stop - 1
        span = f"from {iterations.start} " + ("on" if stop > 1 << 60 else f"to {stop}")
        others = len(trace.steps.iteration) > len(numbers)
        raise AnalysisError(
            f"iterations {span} are none of the {len(numbers)} training iterations, "
            f"whose last is {last}"
            + " (other steps, such as evaluations, are numbered, too)" * others
            + ": choose among these"
        )
    iterations = own_iterations(trace, iterations, notes)
    notes += beyond_last(iterations, last)
    places = sorted(
        {
            (site.layer, site.group)
            for site in trace.sites
            if site.layer in chosen
            and (site.phase == phase or site.operation == ROUTING)
        }
    )
    if not places:
        notes.append("the trace shows no routing and no labeled expert exchange")
        if number := _unlabeled(trace):
            notes[-1] += f", but {number:,} all-to-alls of unknown layer and phase"
    lacking: dict[str, list[tuple[int, int]]] = {}
    located = [
        exchange
        for layer, group in sorted(places, key=lambda p: (chosen.index(p[0]), p[1]))
        if (exchange := _locate(trace, layer, group, phase, iterations, lacking))
    ]
    for reason, where in lacking.items():
        numbered = [sorted(set(side)) for side in zip(*where, strict=True)]
        words = [
            f"{word}{'s' * (len(n) > 1)} {rank_span(n)}"
            for word, n in zip(("layer", "group"), numbered, strict=True)
        ]
        notes.append(f"{', '.join(words)}: {reason}")
    return located


def _unlabeled(trace: Trace) -> int:
    """Count the all-to-alls that have neither a phase nor a label."""
    bare = [
        number
        for number, site in enumerate(trace.sites)
        if trace.square[number] and not site.phase and not site.label
    ]
    return int(np.isin(trace.occurrences.site, bare).sum())


_NO_DEMAND = "no demand, for no router was seen: register yours with capture.router"
_NONE_REPLAYED = (
    "no demand: the replay changed ranks or bytes or added traffic, or no router was "
    "seen when its source was captured"
)


def _locate(
    trace: Trace,
    layer: int,
    group: int,
    phase: str,
    iterations: range | None,
    lacking: dict[str, list[tuple[int, int]]],
) -> Exchange | None:
    """Locate the exchange of a layer and group; None if no iteration is complete.

    The reason why matrices are missing is added to ``lacking``.
    """

    def lack(reason: str) -> None:
        lacking.setdefault(reason, []).append((layer, group))

    place: dict[str, Any] = {"layer": layer, "group": group, "iterations": iterations}
    routed = trace.find(operation=ROUTING, direction="forward", **place)
    if not len(routed):
        lack(_NONE_REPLAYED if trace.meta.origin == "replayed" else _NO_DEMAND)
    sent = trace.find(operation=ALL_TO_ALL, phase=phase, **place)
    # activation checkpointing repeats the forward exchange: count it once
    again = np.array([site.direction == "recompute" for site in trace.sites], bool)
    sent = sent[~again[trace.occurrences.site[sent]]]
    used = np.unique(trace.occurrences.site[sent]).tolist()
    if not used:
        lack(f"no wire, for its {phase} was not seen")
    elif not trace.has_bytes[used].all():
        lack(f"no wire, for the bytes of its {phase} were not seen")
        sent = sent[:0]
    present = [calls for calls in (routed, sent) if len(calls)]
    if not present:
        return None
    # complete: a record of every rank for every occurrence
    numbers = trace.occurrences.iteration
    seen = [np.unique(numbers[calls]) for calls in present]
    missing = [np.setdiff1d(calls, trace.complete(calls)) for calls in present]
    complete = np.setdiff1d(
        np.intersect1d(seen[0], seen[-1]), numbers[np.concatenate(missing)]
    )
    if not len(complete):
        lack("nothing, for no iteration has every rank's record")
        return None
    routed, sent = (
        calls[np.isin(numbers[calls], complete)] for calls in (routed, sent)
    )
    ranks, nodes = trace.groups[group].ranks, trace.meta.nodes
    experts = {
        trace.sites[site].experts
        for site in np.unique(trace.occurrences.site[routed]).tolist()
    }
    return Exchange(
        layer=layer,
        group=group,
        phase=phase,
        ranks=ranks,
        nodes=tuple(nodes[rank] if rank < len(nodes) else "" for rank in ranks),
        experts=max(experts, default=0),
        iterations=complete,
        steps=training_steps(trace, complete),
        left_out=len(np.union1d(seen[0], seen[-1])) - len(complete),
        routed=routed,
        sent=sent,
        constant=_constant(trace, sent, len(complete)),
    )


def _constant(trace: Trace, sent: Int64, iterations: int) -> bool:
    """Return whether each site sends the same bytes in each iteration."""
    calls = trace.occurrences[sent]
    first = np.searchsorted(calls.site, calls.site)  # call of the same site
    same = calls.matrix == calls.matrix[first]
    same &= calls.transposed == calls.transposed[first]
    return 0 < len(sent) == len(np.unique(first)) * iterations and bool(same.all())


def windows(exchange: Exchange, *, size_bytes: int = WINDOW_BYTES) -> list[range]:
    """Split the iterations of an exchange into windows of bounded size, as indices."""
    width = len(exchange.ranks)
    # a power of two, like the rows of a chunk, so that few chunks are read twice
    fit = max(1, size_bytes // (8 * width * max(exchange.experts, width)))
    length = 1 << (fit.bit_length() - 1)
    total = len(exchange.iterations)
    return [range(a, min(a + length, total)) for a in range(0, total, length)]


def read(trace: Trace, exchange: Exchange, window: range) -> Window:
    """Read the matrices of a window of iterations, indices into its iterations."""
    iterations = exchange.iterations[window.start : window.stop]
    number = trace.occurrences.iteration

    def calls_in_window(calls: Int64) -> Int64:
        inside = (number[calls] >= iterations[0]) & (number[calls] <= iterations[-1])
        within: Int64 = calls[inside]
        return within

    def summed(calls: Int64, matrices: Integer) -> Integer:
        if np.array_equal(number[calls], iterations):
            return matrices
        total: Int64 = np.zeros((len(iterations), *matrices.shape[1:]), np.int64)
        np.add.at(total, np.searchsorted(iterations, number[calls]), matrices)
        return total

    demand = wire = None
    capacity: dict[str, npt.NDArray[Any]] = {}
    row_bytes = 1
    if len(routed := calls_in_window(exchange.routed)):
        copies = trace.demand(routed)
        sites = np.unique(trace.occurrences.site[routed]).tolist()
        counted = all(trace.sites[site].dropped.known for site in sites)
        dropped = trace.dropped(routed) if counted else None
        index = np.searchsorted(iterations, number[routed])
        capacity = capacity_rows(copies, dropped, index, len(iterations))
        demand = summed(routed, copies)
    if len(sent := calls_in_window(exchange.sent)):
        sizes = trace.wire(sent)
        sites = np.unique(trace.occurrences.site[sent]).tolist()
        sizes_of_row = {trace.sites[site].row_bytes for site in sites}
        size = sizes_of_row.pop() if len(sizes_of_row) == 1 else 1
        if size > 1 and np.array_equal((rows := sizes // size) * size, sizes):
            sizes, row_bytes = rows, size  # small counts are quicker
        wire = summed(sent, sizes)
    return Window(
        demand=demand,
        wire=wire,
        first=window.start,
        row_bytes=row_bytes,
        capacity=capacity,
    )

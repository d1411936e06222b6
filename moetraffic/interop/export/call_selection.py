"""Select and order the calls of a trace for export.

Every expert-parallel group executes the all-to-alls of a MoE layer; those of one
iteration, layer, phase and micro-batch form one :class:`ExportedExchange` between all
ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import TraceError
from moetraffic.trace import ALL_TO_ALL, ROUTING, UNKNOWN_TIME, Site, Trace

from .exporter import ExportOptions

CALL_SITE = attrgetter("operation", "phase", "layer", "direction", "slot", "label")
AT_ONCE = 1 << 23  # matrix cells that are read at once: 64 MiB


@dataclass(frozen=True, kw_only=True)
class CallSelection:
    """Calls selected for export, and descriptions of omitted ones."""

    occurrences: Int64  # [n] in the trace's order
    lost: tuple[str, ...]  # descriptions of omitted calls, a sentence each


@dataclass(frozen=True, kw_only=True, eq=False)
class ExportedExchange:
    """One all-to-all, merged over all groups that execute the same call site."""

    iteration: int
    site: Site  # call site of the first group
    groups: tuple[tuple[int, ...], ...]  # world ranks of each group that executes it
    bytes: Int64  # [R, R] row sends, column receives; diagonal: rank-local
    begins: Int64  # [R] start, or issue, ns of rank 0's clock, or UNKNOWN_TIME

    @property
    def name(self) -> str:
        """File name of the exchange, from iteration, layer, phase and micro-batch."""
        return f"iteration-{self.iteration:06d}-{site_name(self.site)}"


def without_rank_local(matrix: Int64, lost: Counter[str]) -> Int64:
    """Copy a matrix with a diagonal of zeros, and count the bytes left out."""
    lost["bytes of rank-local (self) traffic are left out"] += int(np.trace(matrix))
    sent = matrix.copy()
    np.fill_diagonal(sent, 0)
    return sent


def counted(lost: Counter[str]) -> list[str]:
    """Describe what was left out, a sentence each: ``8 bytes ... are left out``."""
    return [f"{count} {what}" for what, count in lost.items() if count]


def other_operations(trace: Trace) -> list[str]:
    """Name the collectives that a table or arrays of matrices leave out, if any."""
    others = {s.operation for s in trace.sites} - {ROUTING, ALL_TO_ALL}
    return [f"calls of {', '.join(sorted(others))} are left out"] if others else []


def site_name(site: Site) -> str:
    """Build the name of a call site from letters, digits, ``-`` and ``_``."""
    layer = f"layer-{site.layer:03d}-" if site.layer >= 0 else ""
    what = site.phase or site.label or site.operation
    plain = "".join(c if c.isalnum() and c.isascii() else "_" for c in what)
    again = f"-{site.direction}" if site.direction == "recompute" else ""
    return f"{layer}{plain}{again}-slot-{site.slot}"


def select_calls(
    trace: Trace,
    options: ExportOptions,
    *,
    only: str | None = None,
    timed: bool = False,
) -> CallSelection:
    """Select the calls that match the options and have known byte counts.

    ``only`` is an operation such as ALL_TO_ALL (None: every collective and message);
    ``timed`` checks that all times are known if the captured pace is requested.
    """
    every = find(trace, options, operation=only, phase=options.phase or None)
    sites = trace.occurrences.site
    routes = np.array([s.operation == ROUTING for s in trace.sites], bool)
    every = every[~routes[sites[every]]] if len(every) else every
    lost: list[str] = []
    if only == ALL_TO_ALL and not (options.phase or options.unnamed):
        every = _with_a_phase(trace, every, lost)
    unseen = trace.occurrences.matrix[every] < 0
    if unseen.any():
        lost.append(f"{int(unseen.sum())} calls with unknown bytes are left out")
        every = every[~unseen]
    whole = np.sort(trace.complete(every))
    if len(whole) < len(every):
        lost.append(
            f"{len(every) - len(whole)} calls of which a rank's record is missing are "
            "left out"
        )
    if not len(whole):
        what = "all-to-all" if only == ALL_TO_ALL else "call"
        raise TraceError(
            f"an export needs at least one {what} with known bytes, but none of "
            f"{trace.name} fits: its MoE layers are {list(trace.layers)}, "
            f"{len(trace.iterations)} iterations: select "
            "other iterations, layers or phases"
        )
    if timed and not options.every_ns and options.pace == "captured":
        unknown = int((issue_times(trace, whole) == UNKNOWN_TIME).sum())
        if unknown:
            raise TraceError(
                f"the captured pace needs the time of each call, but {unknown} of "
                f"{len(whole)} have none: give --pace asap, or a time between "
                "calls with --every"
            )
    return CallSelection(occurrences=whole, lost=tuple(lost))


def find(trace: Trace, options: ExportOptions, **what: Any) -> Int64:
    """Find occurrences with :meth:`Trace.find` in the selected layers and steps.

    Only training steps are exported, or all steps if none is marked as such.
    """
    kind = "train" if len(trace.iterations) else None
    found = trace.find(iterations=options.iterations, kind=kind, **what)
    if options.layers is None:
        return found
    chosen = np.isin([s.layer for s in trace.sites], options.layers)
    kept: Int64 = found[chosen[trace.occurrences.site[found]]]
    return kept


def _with_a_phase(trace: Trace, every: Int64, lost: list[str]) -> Int64:
    phased = np.array([bool(s.phase) for s in trace.sites], bool)
    named = phased[trace.occurrences.site[every]]
    if not named.any() or named.all():
        return every
    labels = {
        trace.sites[s].label or "unnamed"
        for s in np.unique(trace.occurrences.site[every[~named]])
    }
    lost.append(
        f"{int((~named).sum())} all-to-alls without a phase "
        f"({', '.join(sorted(labels))}) are left out; --unnamed includes them"
    )
    return np.asarray(every[named], np.int64)


# ---- in order -------------------------------------------------------------------


def issue_times(trace: Trace, occurrences: Int64, *, last: bool = False) -> Int64:
    """Return when the first (or last) member issued each call, ``[n]`` ns.

    On rank 0's clock; UNKNOWN_TIME where a member's time is unknown.
    """
    found = np.full(len(occurrences), UNKNOWN_TIME, np.int64)
    for at in by_width(trace, occurrences):
        issue, _, _ = trace.times(occurrences[at])
        known = (issue != UNKNOWN_TIME).all(axis=1)
        ends = issue.max(axis=1) if last else issue.min(axis=1)
        found[at] = np.where(known, ends, UNKNOWN_TIME)
    return found


def by_width(trace: Trace, occurrences: Int64) -> Iterator[Int64]:
    """Group the indices of occurrences by group size.

    Each group is in trace order, so that each chunk of a panel is read once.
    """
    order = np.argsort(occurrences, kind="stable")
    mine = trace.width[trace.occurrences.site[occurrences]]
    for width in np.unique(mine):
        yield order[mine[order] == width]


def in_order(trace: Trace, occurrences: Int64) -> Int64:
    """Sort calls by iteration and first issue time.

    If a time is unknown, calls are sorted by their position in the members' programs.
    """
    when = issue_times(trace, occurrences)
    if (when == UNKNOWN_TIME).any():
        # all members have the same order: the first member's program suffices
        group = np.array([s.group for s in trace.sites], np.int64)
        mine = group[trace.occurrences.site[occurrences]]
        when = np.zeros(len(occurrences), np.int64)
        place = np.zeros(len(trace.occurrences), np.int64)
        for number in np.unique(mine).tolist():
            order = trace.order(trace.groups[number].ranks[0])
            place[order] = np.arange(len(order))
            when[mine == number] = place[occurrences[mine == number]]
    iteration = trace.occurrences.iteration[occurrences]
    return occurrences[np.lexsort((occurrences, when, iteration))]


def exchanges(
    trace: Trace, options: ExportOptions, chosen: CallSelection
) -> Iterator[ExportedExchange]:
    """Iterate over the selected all-to-alls in order, merged over groups.

    ``options.of`` selects the bytes: sent ("wire") or routed ("demand").
    """
    order = in_order(trace, chosen.occurrences)
    together: dict[tuple[Any, ...], list[int]] = {}
    for occurrence in order.tolist():
        one = trace.sites[trace.occurrences.site[occurrence]]
        key = (int(trace.occurrences.iteration[occurrence]), CALL_SITE(one))
        together.setdefault(key, []).append(occurrence)
    world = trace.meta.world
    waiting = list(together.items())
    step = max(1, AT_ONCE // (world * world))
    for begin in range(0, len(waiting), step):
        part = waiting[begin : begin + step]
        members = np.array([o for _, every in part for o in every], np.int64)
        slot = np.repeat(np.arange(len(part)), [len(every) for _, every in part])
        cells = np.zeros((len(part), world, world), np.int64)
        begins = np.full((len(part), world), UNKNOWN_TIME, np.int64)
        for at in by_width(trace, members):
            ranks, here = trace.members(members[at]), slot[at][:, None]
            issue, start, _ = trace.times(members[at])
            begins[here, ranks] = np.where(start == UNKNOWN_TIME, issue, start)
            if options.of == "wire":
                pairs = (here[:, :, None], ranks[:, :, None], ranks[:, None, :])
                np.add.at(cells, pairs, trace.wire(members[at]))
        for number, ((iteration, _), every) in enumerate(part):
            sites = [trace.sites[trace.occurrences.site[o]] for o in every]
            if options.of == "demand":
                cells[number] = _wanted(trace, iteration, sites[0])
            yield ExportedExchange(
                iteration=iteration,
                site=sites[0],
                groups=tuple(trace.groups[s.group].ranks for s in sites),
                bytes=cells[number],
                begins=begins[number],
            )


def _wanted(trace: Trace, iteration: int, site: Site) -> Int64:
    if not site.phase:
        raise TraceError(
            "demand is of exchanges between experts, but "
            f"{site.label or site.operation} has no phase: leave out --unnamed, or "
            "export what was sent"
        )
    return trace.matrix(
        iteration,
        site.layer,
        site.phase,
        micro_batch=site.slot,
        space="world",
        of="demand",
    ).values

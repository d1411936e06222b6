"""Tables that exporters format: calls by rank, and bytes by pair of ranks.

A call is given by its index into the selected occurrences.  Tables are yielded in
blocks, so that traces of any length are exported in bounded memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import TraceError
from moetraffic.trace import ALL_TO_ALL, ROUTING, UNKNOWN_TIME, Site, Trace

from .exporter import ExportOptions

if TYPE_CHECKING:
    import pandas

MESSAGE = "send_recv"
CELLS = 1 << 20  # rows of a block, about


# ---- selection -----------------------------------------------------------------------


def find(trace: Trace, options: ExportOptions, **criteria: Any) -> Int64:
    """Find occurrences with :meth:`Trace.find` in the selected layers and steps.

    Only training steps are exported, or all steps if none is marked as such.
    """
    kind = "train" if len(trace.iterations) else None
    calls = trace.find(iterations=options.iterations, kind=kind, **criteria)
    if options.layers is None:
        return calls
    chosen = np.isin([s.layer for s in trace.sites], options.layers)
    return np.asarray(calls[chosen[trace.occurrences.site[calls]]], np.int64)


def select_calls(
    trace: Trace,
    options: ExportOptions,
    *,
    operation: str | None = None,
    timed: bool = False,
) -> tuple[Int64, list[str]]:
    """Select the calls that match the options and have known byte counts, ``[n]``.

    ``operation``: None for all but routings; ``timed``: the captured pace needs all
    times.  The second value describes what is left out, a sentence each.
    """
    calls = find(trace, options, operation=operation, phase=options.phase or None)
    calls = calls[_of_site(trace, calls, lambda s: s.operation != ROUTING)]
    lost: list[str] = []
    named = _of_site(trace, calls, lambda s: bool(s.phase))
    if operation and not (options.phase or options.unnamed) and named.any():
        others = trace.occurrences.site[calls[~named]]
        labels = {trace.sites[n].label or "unnamed" for n in np.unique(others)}
        if labels:
            lost.append(
                f"{len(others)} all-to-alls without a phase "
                f"({', '.join(sorted(labels))}) are left out; --unnamed includes them"
            )
        calls = calls[named]
    sized = calls[trace.occurrences.matrix[calls] >= 0]
    if len(sized) < len(calls):
        unknown = len(calls) - len(sized)
        lost.append(f"{unknown} calls with unknown bytes are left out")
    whole = np.sort(trace.complete(sized))
    if len(whole) < len(sized):
        lost.append(
            f"{len(sized) - len(whole)} calls of which a rank's record is missing are "
            "left out"
        )
    if not len(whole):
        raise TraceError(
            f"an export needs at least one {'all-to-all' if operation else 'call'} "
            f"with known bytes, but none of {trace.name} fits: its MoE layers are "
            f"{list(trace.layers)}, {len(trace.iterations)} iterations: select other "
            "iterations, layers or phases"
        )
    if timed and not options.every_ns and options.pace == "captured":
        unknown = int((first_issue(trace, whole) == UNKNOWN_TIME).sum())
        if unknown:
            raise TraceError(
                f"the captured pace needs the time of each call, but {unknown} of "
                f"{len(whole)} have none: give --pace asap, or a time between "
                "calls with --every"
            )
    return whole, lost


def other_operations(trace: Trace) -> list[str]:
    """Name the collectives that are no all-to-alls, and so left out."""
    others = {s.operation for s in trace.sites} - {ROUTING, ALL_TO_ALL}
    return [f"calls of {', '.join(sorted(others))} are left out"] if others else []


def counted(lost: Counter[str]) -> list[str]:
    """Describe what was left out, a sentence each: ``8 bytes ... are left out``."""
    return [f"{count} {what}" for what, count in lost.items() if count]


def site_name(site: Site) -> str:
    """Build the name of a call site from letters, digits, ``-`` and ``_``."""
    layer = f"layer-{site.layer:03d}-" if site.layer >= 0 else ""
    what = site.phase or site.label or site.operation
    plain = "".join(c if c.isalnum() and c.isascii() else "_" for c in what)
    again = f"-{site.direction}" if site.direction == "recompute" else ""
    return f"{layer}{plain}{again}-slot-{site.slot}"


# ---- order ---------------------------------------------------------------------------


def by_width(trace: Trace, occurrences: Int64) -> Iterator[Int64]:
    """Group the indices of occurrences by group size, each group in trace order."""
    order = np.argsort(occurrences, kind="stable")
    width = trace.width[trace.occurrences.site[occurrences]]
    for size in np.unique(width):
        yield order[width[order] == size]


def first_issue(trace: Trace, occurrences: Int64) -> Int64:
    """Return when the first member issued each call, ``[n]`` ns of rank 0's clock.

    UNKNOWN_TIME where a member's time is unknown.
    """
    first = np.full(len(occurrences), UNKNOWN_TIME, np.int64)
    for rows in by_width(trace, occurrences):
        # UNKNOWN_TIME is less than any time
        first[rows] = trace.times(occurrences[rows])[0].min(axis=1)
    return first


def in_order(trace: Trace, occurrences: Int64) -> Int64:
    """Sort calls by iteration and first issue time.

    If a time is unknown, calls are sorted by their position in the members' programs.
    """
    when = first_issue(trace, occurrences)
    if (when == UNKNOWN_TIME).any():
        # all members have the same order: the first member's program suffices
        groups = np.array([s.group for s in trace.sites], np.int64)
        group = groups[trace.occurrences.site[occurrences]]
        place = np.zeros(len(trace.occurrences), np.int64)
        for number in np.unique(group).tolist():
            order = trace.order(trace.groups[number].ranks[0])
            place[order] = np.arange(len(order))
            own = group == number
            when[own] = place[occurrences[own]]
    iteration = trace.occurrences.iteration[occurrences]
    return occurrences[np.lexsort((occurrences, when, iteration))]


def exchange_numbers(trace: Trace, occurrences: Int64) -> Int64:
    """Number the exchanges of ordered all-to-alls, ``[n]``.

    Every expert-parallel group executes the all-to-alls of a MoE layer; those of one
    iteration, layer, phase and micro-batch are one exchange between all ranks.
    """
    numbers: dict[tuple[Any, ...], int] = {}
    exchange = []
    for occurrence in occurrences.tolist():
        site = trace.sites[trace.occurrences.site[occurrence]]
        key = (
            int(trace.occurrences.iteration[occurrence]),
            *(site.operation, site.phase, site.layer, site.direction),
            *(site.slot, site.label),
        )
        exchange.append(numbers.setdefault(key, len(numbers)))
    return np.array(exchange, np.int64)


# ---- tables --------------------------------------------------------------------------


def pairs(
    trace: Trace, occurrences: Int64, content: str = "wire"
) -> Iterator[pandas.DataFrame]:
    """Yield the bytes of all-to-alls, a row per call and pair of ranks, in order.

    The columns are ``call``, ``source``, ``destination`` (ranks), ``bytes`` (sent, or
    routed for the content "demand") and ``begin``, the source's start or issue in ns of
    rank 0's clock.
    """
    import pandas

    width = trace.width[trace.occurrences.site[occurrences]].astype(np.int64)
    block = np.cumsum(width**2) // CELLS
    for number in np.unique(block):
        calls = np.flatnonzero(block == number)
        tables = []
        for rows in by_width(trace, occurrences[calls]):
            these = occurrences[calls[rows]]
            ranks, (issue, start, _) = trace.members(these), trace.times(these)
            begin = np.where(start == UNKNOWN_TIME, issue, start)
            read = trace.wire if content == "wire" else _demand(trace)
            shape = (*ranks.shape, ranks.shape[1])
            columns = {
                "call": calls[rows][:, None, None],
                "source": ranks[:, :, None],
                "destination": ranks[:, None, :],
                "bytes": read(these),
                "begin": begin[:, :, None],
            }
            tables.append(
                pandas.DataFrame(
                    {n: np.broadcast_to(v, shape).ravel() for n, v in columns.items()}
                )
            )
        table = pandas.concat(tables)
        yield table.sort_values("call", kind="stable", ignore_index=True)


def calls(trace: Trace, occurrences: Int64) -> Iterator[pandas.DataFrame]:
    """Yield the calls of all ranks in blocks of iterations, by rank in program order.

    The columns are ``rank``, ``call``, ``member`` (rank in the group), ``iteration``,
    ``site``; ``issue``, ``end``, and ``last``, the issue of the last member, in ns of
    rank 0's clock; ``sent`` and ``received``, bytes to and from other ranks: of
    collectives other than all-to-alls the rank's buffer.  A message has two rows, those
    of its sender and receiver.
    """
    import pandas

    number = np.full(len(trace.occurrences), -1, np.int64)
    number[occurrences] = np.arange(len(occurrences))
    orders = [trace.order(rank) for rank in range(trace.meta.world)]
    orders = [order[number[order] >= 0] for order in orders]
    place = np.zeros(len(trace.occurrences), np.int64)
    width = trace.width[trace.occurrences.site[occurrences]].astype(np.int64)
    when = trace.occurrences.iteration[occurrences]
    which = np.unique(when, return_inverse=True)[1]
    block = np.cumsum(np.bincount(which, width**2)).astype(np.int64) // CELLS
    for here in np.unique(block):
        own = occurrences[block[which] == here]
        tables = [_members(trace, own[rows]) for rows in by_width(trace, own)]
        table = pandas.concat(tables, ignore_index=True)
        position = np.zeros(len(table), np.int64)
        for rank, rows in table.groupby("rank").indices.items():
            order = orders[int(rank)]
            place[order] = np.arange(len(order))
            position[rows] = place[table["occurrence"].to_numpy()[rows]]
        table = table.iloc[np.lexsort((position, table["rank"]))]
        at = table.pop("occurrence").to_numpy()
        yield table.assign(
            call=number[at],
            iteration=trace.occurrences.iteration[at],
            site=trace.occurrences.site[at],
        )


def _members(trace: Trace, occurrences: Int64) -> pandas.DataFrame:
    """Return a row per call and member, for groups of one size W."""
    import pandas

    ranks, (issue, _, end) = trace.members(occurrences), trace.times(occurrences)
    sites = trace.occurrences.site[occurrences]
    own, sent, received = (np.zeros_like(ranks) for _ in range(3))
    square = trace.square[sites]
    if square.any():
        wire = trace.wire(occurrences[square])
        own[square] = np.diagonal(wire, axis1=1, axis2=2)
        sent[square], received[square] = wire.sum(axis=2), wire.sum(axis=1)
    if not square.all():
        sent[~square] = received[~square] = trace.volume(occurrences[~square])
    peers = np.array([s.peers for s in trace.sites], np.int64)[sites]  # [n, 2]
    message = (peers >= 0).all(axis=1, keepdims=True)  # [n, 1]
    member = np.broadcast_to(np.arange(ranks.shape[1]), ranks.shape)
    sends, receives = (message & (member == p[:, None]) for p in peers.T)
    size = np.take_along_axis(sent, np.maximum(peers[:, :1], 0), axis=1)
    sent = np.where(message, size * sends, sent - own)
    received = np.where(message, size * receives, received - own)
    columns = {
        "occurrence": np.broadcast_to(occurrences[:, None], ranks.shape),
        **{"rank": ranks, "member": member, "issue": issue, "end": end},
        "last": np.broadcast_to(_last(issue)[:, None], ranks.shape),
        **{"sent": sent, "received": received},
    }
    kept = ~message | sends | receives
    return pandas.DataFrame({name: v[kept] for name, v in columns.items()})


def _last(issue: Int64) -> Int64:
    """Return the last issue of each row, UNKNOWN_TIME where one is unknown."""
    known = (issue != UNKNOWN_TIME).all(axis=1)
    return np.where(known, issue.max(axis=1), UNKNOWN_TIME)


def _of_site(trace: Trace, occurrences: Int64, test: Any) -> Any:
    """Return for which occurrences a test of their site is true, ``[n]`` bool."""
    passed = np.array([test(site) for site in trace.sites], bool)
    return passed[trace.occurrences.site[occurrences]]


def _demand(trace: Trace) -> Any:
    """Return a function that reads the routed bytes of all-to-alls, ``[n, W, W]``."""

    def routed(occurrence: int) -> Int64:
        site = trace.sites[trace.occurrences.site[occurrence]]
        if not site.phase:
            raise TraceError(
                "demand is of exchanges between experts, but "
                f"{site.label or site.operation} has no phase: leave out --unnamed, or "
                "export what was sent"
            )
        return trace.matrix(
            int(trace.occurrences.iteration[occurrence]),
            site.layer,
            site.phase,
            micro_batch=site.slot,
            group=site.group,
            of="demand",
        ).values

    return lambda occurrences: np.stack([routed(n) for n in occurrences.tolist()])

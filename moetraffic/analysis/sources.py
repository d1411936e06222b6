"""Events of a trace by traffic source: phase, layer, exchange, rank or link.

An event is one all-to-all, with times as in :mod:`moetraffic.analysis.times.calls`.

=========  ==========================================================================
phase      of all layers; from the first member's begin to the last member's end
layer      likewise of a layer, whatever the phase
exchange   likewise of a layer's phase
rank       a rank's part in an all-to-all; bytes that it sends to others
link       from the source's begin to the destination's end, if bytes are sent at all
=========  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.times.calls import CallTimes, timed
from moetraffic.arrays import Float64, Int64
from moetraffic.errors import AnalysisError
from moetraffic.spelling import check_choice
from moetraffic.trace import ALL_TO_ALL, ROUTING, Site, Trace

KINDS = ("phase", "layer", "exchange", "rank", "link")

EVENTS = 1 << 22
"""Maximum number of events in memory, of 24 bytes each."""

RANKS = 64
"""Maximum number of ranks, those with the most bytes."""

LINKS = 8
"""Number of links, those with the most bytes."""

OTHERS = "other communication"
"""Name of all calls but the all-to-alls of a phase in a timeline."""

Key = tuple[str, str, tuple[int, ...]]  # kind, name, ranks


@dataclass(frozen=True, kw_only=True)
class Source:
    """Events of one traffic source."""

    by: str  # one of KINDS
    name: str  # "dispatch", "layer 3", "layer 3, combine", "rank 2", "2 -> 5"
    ranks: tuple[int, ...]  # whose events these are; source and destination of a link
    begin: Int64  # [n] ns on rank 0's clock
    end: Int64  # [n]
    sent: Int64 | None  # [n] bytes to other ranks
    one_clock: bool  # begin and end are of the same rank's clock


def check_kinds(by: Sequence[str]) -> None:
    """Check names of traffic sources.

    Raises
    ------
    AnalysisError
        If one is not among :data:`KINDS`.
    """
    for kind in by:
        check_choice("a traffic source", kind, KINDS, AnalysisError)


def middle_calls(trace: Trace, calls: Int64, notes: list[str]) -> Int64:
    """Limit all-to-alls ``[n]`` to the middle iterations that fit into memory."""
    if len(calls) <= EVENTS:
        return calls
    when = trace.occurrences.iteration[calls]
    iterations, counts = np.unique(when, return_counts=True)
    number = max(1, int(EVENTS / counts.max()))
    low = (len(iterations) - number) // 2
    first, last = iterations[low], iterations[low + number - 1]
    notes.append(
        f"bursts are of iterations {first} to {last}: {len(calls):,} all-to-alls are "
        f"more than {EVENTS:,}"
    )
    return np.asarray(calls[(when >= first) & (when <= last)], np.int64)


def link_bytes(trace: Trace, calls: Int64) -> Int64:
    """Sum the bytes per link of timed calls, ``[R, R]`` int64, zero diagonal."""
    total = np.zeros((trace.meta.world, trace.meta.world), np.int64)
    for block in timed(trace, calls):
        wire = np.where(block.known[:, :, None], block.wire, 0)
        groups, which = np.unique(block.ranks, axis=0, return_inverse=True)
        for number, members in enumerate(groups):
            same = which.ravel() == number
            total[np.ix_(members, members)] += wire[same].sum(axis=0)
    np.fill_diagonal(total, 0)
    return total


def list_keys(
    trace: Trace,
    calls: Int64,
    by: Sequence[str],
    notes: list[str],
    *,
    with_bytes: bool = True,
) -> list[Key]:
    """List the traffic sources of all-to-alls ``[n]``, in the order of :data:`KINDS`.

    Parameters
    ----------
    notes
        Receives which ranks are left out.
    with_bytes
        Whether bytes are known; without, ranks are the first ones.
    """
    sites = [trace.sites[s] for s in np.unique(trace.occurrences.site[calls])]
    members = tuple(sorted({r for s in sites for r in trace.groups[s.group].ranks}))
    keys: list[Key] = []
    for kind in ("phase", "layer", "exchange"):
        ordered = sites if kind == "phase" else sorted(sites, key=lambda s: s.layer)
        names = dict.fromkeys(name_of(kind, s) for s in ordered) if kind in by else ()
        keys += [(kind, name, members) for name in names if name]
    memory = max(1, EVENTS // max(1, len(calls)))
    ranks, links = min(RANKS, memory), min(LINKS, memory)
    total = np.zeros((trace.meta.world, trace.meta.world), np.int64)
    if with_bytes and (("rank" in by and len(members) > ranks) or "link" in by):
        total = link_bytes(trace, calls)
    if "rank" in by:
        busiest = sorted(members, key=lambda r: -int(total[r].sum()))[:ranks]
        if len(busiest) < len(members):
            notes.append(
                f"bursts are of the {len(busiest)} busiest of {len(members)} ranks"
            )
        keys += [("rank", f"rank {r}", (r,)) for r in sorted(busiest)]
    if "link" in by:
        order = np.argsort(-total, axis=None, kind="stable")[:links]
        pairs = np.stack(np.unravel_index(order, total.shape), axis=1).tolist()
        keys += [("link", f"{s} -> {d}", (s, d)) for s, d in pairs if total[s, d]]
    return keys


def name_of(kind: str, site: Site) -> str:
    """Name the phase, layer or exchange of a site; "" if unknown."""
    layer = f"layer {site.layer}" if site.layer >= 0 else ""
    if kind == "exchange":
        return f"{layer}, {site.phase}" if layer and site.phase else ""
    return site.phase if kind == "phase" else layer


def read_sources(
    trace: Trace, calls: Int64, keys: Sequence[Key], *, with_bytes: bool = True
) -> list[Source]:
    """Read the events of traffic sources in blocks; sources without any are left out.

    ``calls``: ``[n]`` all-to-alls; ``keys``: as of :func:`list_keys`.
    """
    parts: dict[Key, list[tuple[Int64, Int64, Int64]]] = {key: [] for key in keys}
    own = True
    for block in timed(trace, calls, with_wire=with_bytes):
        own = own and bool(block.own[block.known].all())
        sent = np.zeros(block.ranks.shape, np.int64)
        if with_bytes:
            apart = block.ranks[:, :, None] != block.ranks[:, None, :]
            sent = np.where(apart, block.wire, 0).sum(axis=2)
        for key in keys:
            kind, name, ranks = key
            if kind == "link":
                events = _of_link(block, *ranks)
            elif kind == "rank":
                rows = (block.ranks == ranks[0]) & block.known
                events = block.begin[rows], block.end[rows], sent[rows]
            else:
                named = np.array([name_of(kind, s) == name for s in trace.sites])
                rows = named[trace.occurrences.site[block.occurrence]]
                rows &= block.known.all(axis=1)
                first, last = block.begin[rows].min(axis=1), block.end[rows].max(axis=1)
                events = first, last, sent[rows].sum(axis=1)
            if len(events[0]):
                parts[key].append(events)
    return [
        Source(
            by=kind,
            name=name,
            ranks=ranks,
            begin=np.concatenate([part[0] for part in events]),
            end=np.concatenate([part[1] for part in events]),
            sent=np.concatenate([part[2] for part in events]) if with_bytes else None,
            one_clock=own and len(ranks) == 1,
        )
        for (kind, name, ranks), events in parts.items()
        if events
    ]


def _of_link(
    block: CallTimes, source: int, destination: int
) -> tuple[Int64, Int64, Int64]:
    sends = (block.ranks == source) & block.known
    receives = (block.ranks == destination) & block.known
    rows = np.flatnonzero(sends.any(axis=1) & receives.any(axis=1))
    i, j = sends[rows].argmax(axis=1), receives[rows].argmax(axis=1)
    size, begin, end = block.wire[rows, i, j], block.begin[rows, i], block.end[rows, j]
    used = size > 0
    return np.minimum(begin, end)[used], end[used], size[used]


# ---- time ----------------------------------------------------------------------------


def time_on(at: npt.NDArray[Any], begin: Int64, end: Int64, *, origin: int) -> Float64:
    """Compute the time in bursts before given times, ns.

    Parameters
    ----------
    at
        ``[...]`` ns from ``origin`` on: float64 would lose 100 ns of times since 1970.
    begin, end
        ``[m]`` ns, as :func:`~moetraffic.analysis.times.calls.merge_intervals` returns.

    Examples
    --------
    >>> bursts = np.array([0, 10]), np.array([5, 12])
    >>> time_on(np.array([0, 7, 11, 20]), *bursts, origin=0).tolist()
    [0.0, 5.0, 6.0, 7.0]
    """
    if not len(begin):
        return np.zeros(np.shape(at))
    # piecewise linear between the begins and ends
    knots = np.stack((begin, end), axis=1).ravel() - origin
    passed = np.stack((np.zeros_like(begin), end - begin), axis=1).ravel().cumsum()
    return np.asarray(np.interp(at, knots, passed), np.float64)


def on_off_series(
    begin: Int64, end: Int64, *, bin_ns: float, span: tuple[int, int]
) -> Float64:
    """Compute the share of each time bin of a span that is in bursts, ``[T]``.

    ``begin``, ``end``: ``[m]`` ns, disjoint bursts.  What is left after the last whole
    bin is left out.

    Examples
    --------
    >>> bursts = np.array([0, 10]), np.array([5, 12])
    >>> on_off_series(*bursts, bin_ns=4, span=(0, 12)).tolist()
    [1.0, 0.25, 0.5]
    """
    number = int((span[1] - span[0]) / bin_ns + 1e-9)
    edges = np.arange(number + 1) * float(bin_ns)
    on = np.diff(time_on(edges, begin, end, origin=span[0])) / bin_ns
    return np.clip(on, 0.0, 1.0)


def timeline(
    trace: Trace,
    iterations: range,
    *,
    layers: Collection[int] | None = None,
    phase: str | None = None,
) -> dict[str, npt.NDArray[Any]]:
    """List the calls of iterations, for a chart of ranks over time.

    ``layers`` and ``phase`` select all-to-alls; with None, all calls are listed.

    Returns
    -------
    dict of arrays ``[n]``
        "begin_ns" and "end_ns" on rank 0's clock, "rank", and "phase": that of an
        all-to-all, or :data:`OTHERS`.
    """
    phases = [(s.operation == ALL_TO_ALL and s.phase) or OTHERS for s in trace.sites]
    wanted: list[bool] = [
        site.operation != ROUTING
        and (layers is None or (site.layer in layers and name != OTHERS))
        and phase in (None, name)
        for site, name in zip(trace.sites, phases, strict=True)
    ]
    calls = trace.complete(trace.find(iterations=iterations))
    calls = calls[np.array(wanted, bool)[trace.occurrences.site[calls]]]
    names = np.array(phases, object)
    columns: list[list[npt.NDArray[Any]]] = [[np.zeros(0, np.int64)] * 4]
    for block in timed(trace, calls, with_wire=False):
        name = names[trace.occurrences.site[block.occurrence]][:, None]
        name = np.broadcast_to(name, block.end.shape)
        columns.append(
            [c[block.known] for c in (block.begin, block.end, block.ranks, name)]
        )
    begin, end, rank, name = (np.concatenate(c) for c in zip(*columns, strict=True))
    return {"begin_ns": begin, "end_ns": end, "rank": rank, "phase": name}


def middle_iterations(iterations: Int64, number: int) -> range:
    """Return a range of iterations near the middle, consecutive ones if possible.

    ``iterations``: ``[T]`` numbers of training iterations, in order.

    Examples
    --------
    >>> middle_iterations(np.array([0, 1, 2, 3, 9, 10]), 3)
    range(1, 4)
    """
    if not len(iterations):
        return range(number)
    first = iterations[: max(1, len(iterations) - number + 1)]
    last = iterations[min(number, len(iterations)) - 1 :]
    apart = np.abs(np.arange(len(first)) - (len(iterations) // 2 - 1))
    best = int(first[np.lexsort((apart, last - first))[0]])
    return range(best, best + number)

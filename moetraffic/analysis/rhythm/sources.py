"""Read the events of each phase, layer, rank and link of a trace.

Read in blocks.  Of an event its begin, end (ns of rank 0's clock) and bytes are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moetraffic.analysis.times.call_times import CallTimes, timed
from moetraffic.arrays import Bool, Int64
from moetraffic.trace import Site, Trace

Key = tuple[str, tuple[int, ...], str]  # kind, ranks, name
Events = tuple[Int64, Int64, Int64]

EVENTS = 1 << 22
"""Maximum events in memory: 24 bytes each, twice that during analysis."""


def link_bytes(trace: Trace, occurrences: Int64) -> Int64:
    """Compute the bytes per link in timed calls, ``[R, R]`` int64, zero diagonal."""
    world = trace.meta.world
    out = np.zeros((world, world), np.int64)
    for part in timed(trace, occurrences):
        for members in np.unique(part.ranks, axis=0):
            of = (part.ranks == members).all(axis=1)
            wire = np.where(part.known[of][:, :, None], part.wire[of], 0)
            out[np.ix_(members, members)] += wire.sum(axis=0)
    np.fill_diagonal(out, 0)
    return out


def rank_events(
    trace: Trace, occurrences: Int64, rank: int, *, weighs: bool = True
) -> Events:
    """Collect begin, end (ns) and bytes to other ranks of a rank's events."""
    key = ("rank", (rank,), f"rank {rank}")
    parts = collected(trace, occurrences, [key], weighs)[key]
    nothing = np.zeros(0, np.int64)
    first, last, size = (
        np.concatenate([nothing, *(p[at] for p in parts)]) for at in range(3)
    )
    return first, last, size


def bounded(trace: Trace, found: Int64, notes: list[str]) -> Int64:
    """Limit all-to-alls to as many middle iterations as fit into memory."""
    if len(found) <= EVENTS:
        return found
    when = trace.occurrences.iteration[found]
    every, number = np.unique(when, return_counts=True)
    fitting = max(1, int(EVENTS / number.max()))
    low = (len(every) - fitting) // 2
    first, last = every[low], every[low + fitting - 1]
    notes.append(
        f"rhythms are of iterations {first} to {last} alone: {len(found)} all-to-alls "
        f"are more than {EVENTS}"
    )
    return np.asarray(found[(when >= first) & (when <= last)], np.int64)


def chosen_keys(
    trace: Trace,
    found: Int64,
    by: Sequence[str],
    links: int,
    most: int,
    weighs: bool,
    notes: list[str],
) -> list[Key]:
    """List the traffic sources to analyze, in order, as many as fit into memory."""
    sites = [trace.sites[s] for s in np.unique(trace.occurrences.site[found])]
    room = max(1, EVENTS // max(1, len(found)))
    everybody = tuple(sorted({r for s in sites for r in trace.groups[s.group].ranks}))
    keys: list[Key] = []
    for kind in ("phase", "layer", "exchange"):
        ordered = sites if kind == "phase" else sorted(sites, key=lambda s: s.layer)
        names = dict.fromkeys(_label(kind, s) for s in ordered) if kind in by else ()
        keys += [(kind, everybody, name) for name in names if name]
    sent = np.zeros((trace.meta.world, trace.meta.world), np.int64)
    busy = "rank" in by and len(everybody) > min(room, most)
    if weighs and (busy or "link" in by):
        sent = link_bytes(trace, found)
    if "rank" in by:
        busiest = sorted(everybody, key=lambda r: (-int(sent[r].sum()), r))[
            : min(room, most)
        ]
        if len(busiest) < len(everybody):
            notes.append(
                f"rhythms are of the {len(busiest)} busiest of {len(everybody)} ranks "
                "alone"
            )
        keys += [("rank", (r,), f"rank {r}") for r in sorted(busiest)]
    if "link" in by:
        busiest_links = _busiest(sent, min(links, room))
        keys += [("link", (s, d), f"{s} -> {d}") for s, d in busiest_links]
    return keys


def _label(kind: str, site: Site) -> str:
    """Name the phase, layer or exchange of a site; empty if unknown."""
    layer = f"layer {site.layer}" if site.layer >= 0 else ""
    if kind == "exchange":
        return f"{layer}, {site.phase}" if layer and site.phase else ""
    return site.phase if kind == "phase" else layer


def _busiest(sent: Int64, number: int) -> list[tuple[int, int]]:
    order = np.argsort(-sent, axis=None, kind="stable")[:number]
    rows, columns = np.unravel_index(order, sent.shape)
    return [
        (int(s), int(d)) for s, d in zip(rows, columns, strict=True) if sent[s, d] > 0
    ]


def own_clocks(trace: Trace, found: Int64) -> bool:
    """Check on up to 256 calls whether begin times are from the ranks' own clocks."""
    for part in timed(trace, found[:256], with_wire=False):
        if not part.own[part.known].all():
            return False
    return True


def collected(
    trace: Trace, found: Int64, keys: Sequence[Key], weighs: bool
) -> dict[Key, list[Events]]:
    """Collect the events of each traffic source, in blocks."""
    events: dict[Key, list[Events]] = {key: [] for key in keys}
    for part in timed(trace, found, with_wire=weighs):
        sent = _to_others(part)
        for key in keys:
            kind = key[0]
            if kind == "link":
                got = _of_link(part, *key[1])
            elif kind == "rank":
                got = _of_rank(part, key[1][0], sent)
            else:
                used, which = np.unique(
                    trace.occurrences.site[part.occurrence], return_inverse=True
                )
                mine = [_label(kind, trace.sites[n]) == key[2] for n in used]
                got = _of_all(part, np.array(mine)[which], sent.sum(axis=1))
            if len(got[0]):
                events[key].append(got)
    return events


def _to_others(part: CallTimes) -> Int64:
    """Compute the bytes each member sends to other ranks, ``[n, W]``."""
    if not part.wire.size:
        return np.zeros(part.ranks.shape, np.int64)
    apart = part.ranks[:, :, None] != part.ranks[:, None, :]
    return np.asarray(np.where(apart, part.wire, 0).sum(axis=2), np.int64)


def _of_all(part: CallTimes, rows: Bool, sent: Int64) -> Events:
    rows = rows & part.known.all(axis=1)
    return part.begin[rows].min(axis=1), part.end[rows].max(axis=1), sent[rows]


def _of_rank(part: CallTimes, rank: int, sent: Int64) -> Events:
    mine = (part.ranks == rank) & part.known
    return part.begin[mine], part.end[mine], sent[mine]


def _of_link(part: CallTimes, source: int, destination: int) -> Events:
    sends, receives = part.ranks == source, part.ranks == destination
    rows = np.flatnonzero((sends & part.known).any(1) & (receives & part.known).any(1))
    i, j = sends[rows].argmax(axis=1), receives[rows].argmax(axis=1)
    size = part.wire[rows, i, j]
    begin, end = part.begin[rows, i], part.end[rows, j]
    passes = size > 0
    return np.minimum(begin, end)[passes], end[passes], size[passes]

"""Join the bytes that ranks sent and received to matrices, and check them.

A cell of a matrix is recorded twice: by its source as sent, by its destination as
received.  Both must be equal; where one is missing (a rank's record, or the end of a
truncated list) the other replaces it.  A layer's exchanges must be transposes of each
other, and equal its routing where nothing is padded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from moetraffic.arrays import Bool, Int64, UInt8
from moetraffic.errors import TraceError
from moetraffic.trace.matrix import between_ranks, in_bytes
from moetraffic.trace.model import (
    ALL_TO_ALL,
    NONE_BEFORE,
    ROUTING,
    TRANSPOSED_PHASES,
    DroppedForm,
    Presence,
    Site,
    sized,
)
from moetraffic.trace.panel import ArrayPanel, DistinctRows
from moetraffic.trace.trace import Trace

from .assembly import Events, out_of_step

FOLLOWS_DEMAND = ("dropped", "dropless")
"""Dispatch modes in which the bytes are determined by the routing."""

Layer = tuple[int, int, int]  # group, layer, slot


def with_bytes(
    draft: Trace, events: Events, *, recover: bool = False
) -> tuple[Trace, list[str]]:
    """Set the bytes of all calls.

    ``draft`` is the trace without bytes, ``events`` are the ranks' records.  With
    ``recover``, missing bytes of all-to-alls are reconstructed from the peers' records.
    Returns the trace, and the contradictions between the records, a sentence each.
    """
    sites, wrong = list(draft.sites), out_of_step(events)
    every = draft.occurrences
    matrix, transposed = every.matrix.copy(), every.transposed.copy()
    distinct: dict[str, DistinctRows] = {}
    stored: dict[str, list[Int64]] = {}
    present = {
        table: draft.panels[f"{table}/present"].read(0, len(every)).copy()
        for table in set(draft.table_of_site)
        if table.startswith("call")
    }
    dispatched: dict[Layer, tuple[Site, Int64, Int64]] = {}
    routings = _routings(sites)
    dispatches = Counter(_layer(site) for site in sites if _is_dispatch(site))
    for number, site in enumerate(draft.sites):
        if site.operation == ROUTING:
            continue
        table = draft.table_of_site[number]
        of = np.flatnonzero(every.site == number)
        rows = draft.row[of]
        there = present[table][rows]
        values = payload = events.payload(number)
        if site.operation == ALL_TO_ALL:
            recorded = there == Presence.RECORDED
            values, there, conflict = _reconcile(payload, recorded, recover=recover)
            wrong += _unequal(draft, site, of, conflict, payload)
        else:
            there = np.where(payload < 0, Presence.UNSIZED, there)
            values = np.maximum(payload, 0)
            wrong += _unequal_message(draft, site, of, values, there)
        present[table][rows] = there
        known = sized(there)
        whole = known.all(axis=1)
        if not known.any():
            continue  # no call has known bytes
        kind = "wire" if site.operation == ALL_TO_ALL else "volume"
        name = f"{table}/{kind}"
        matrix[of], transposed[of], new = distinct.setdefault(name, DistinctRows()).add(
            values
        )
        stored.setdefault(name, []).append(new)
        if site.operation == ALL_TO_ALL and site.phase:
            when = every.iteration[of[whole]]
            wrong += _not_transposed(site, when, values[whole], dispatched)
            routing = routings.get(_layer(site), -1)
            follows = _follows_demand(draft, site, routing, when, values[whole])
            sole = _is_dispatch(site) and dispatches[_layer(site)] == 1
            if follows and sole and draft.meta.origin == "captured":
                sites[routing] = _settled(
                    sites[routing], values[whole], events.payload(routing)[:, :, 1]
                )
            if not follows and draft.meta.dispatch in FOLLOWS_DEMAND and routing >= 0:
                wrong.append(
                    f"layer {site.layer}, {site.phase}, micro-batch {site.slot}: the "
                    f"bytes are not (demand - dropped) x {site.row_bytes}, though "
                    f"dispatch is {draft.meta.dispatch}"
                )
    panels = dict(draft.panels)
    panels |= {n: ArrayPanel(np.concatenate(parts)) for n, parts in stored.items()}
    panels |= {f"{t}/present": ArrayPanel(rows) for t, rows in present.items()}
    occurrences = replace(every, matrix=matrix, transposed=transposed)
    return draft.replaced(sites=sites, panels=panels, occurrences=occurrences), wrong


def _settled(routing: Site, sent: Int64, dropped: Int64) -> Site:
    """Settle a routing without reported drops whose demand equals the bytes sent.

    A program reports copies over a capacity too, and ids of all tokens have them: all
    were kept.  Other hooks on a router may read what is left after the capacity.  Equal
    parts may be padded: they settle nothing.
    """
    if routing.dropped != DroppedForm.UNKNOWN or (sent == sent[:, :1, :1]).all():
        return routing
    after = routing.label and not (dropped == NONE_BEFORE).all()
    form = DroppedForm.UNCOUNTED if after else DroppedForm.NONE
    return replace(routing, dropped=form)


def _is_dispatch(site: Site) -> bool:
    return site.phase == "dispatch" and site.direction == "forward"


def _routings(sites: Sequence[Site]) -> dict[Layer, int]:
    """Return the routing site of each layer's forward pass, which its backward uses."""
    return {
        _layer(site): number
        for number, site in reversed(list(enumerate(sites)))
        if site.operation == ROUTING and site.direction == "forward"
    }


def _reconcile(
    splits: Int64, recorded: Bool, *, recover: bool
) -> tuple[Int64, UInt8, Bool]:
    """Compare the bytes that members sent and received, ``[n, W, 2, W]``, < 0: unknown.

    ``recorded [n, W]`` marks the members that recorded the occurrence.  With
    ``recover``, bytes missing at the source are those received at the destination: a
    row in which every cell is known is RECORDED, or RECOVERED if a cell came from a
    peer.  Rank-local bytes, which no peer records, are then 0.  Returns the bytes
    ``[n, W, W]``, 0 where unknown; the presence ``[n, W]``; and where both ends differ.
    """
    sent, received = splits[:, :, 0], splits[:, :, 1].transpose(0, 2, 1)
    by_source = recorded[:, :, None] & (sent >= 0)
    by_destination = recorded[:, None, :] & (received >= 0)
    conflict = by_source & by_destination & (sent != received)
    own = by_source.all(axis=2)
    known = by_source | by_destination if recover else by_source
    values = np.where(by_source, sent, np.where(known, received, 0))
    if recover:
        width = np.arange(sent.shape[1])
        # rank-local cell: recoverable only if there is at least one peer
        known[:, width, width] |= ~recorded & (len(width) > 1)
    whole = known.all(axis=2)
    presence = np.full(recorded.shape, Presence.ABSENT, np.uint8)
    presence[whole] = Presence.RECOVERED
    presence[recorded & ~whole] = Presence.UNSIZED
    presence[recorded & own] = Presence.RECORDED
    return np.asarray(values, np.int64), presence, conflict


def _layer(site: Site) -> Layer:
    return (site.group, site.layer, site.slot)


def _follows_demand(
    draft: Trace, site: Site, routing: int, when: Int64, sent: Int64
) -> bool:
    """Return whether a site's bytes equal the kept demand of a routing site.

    Copies of which it is unknown whether they were dropped are taken as kept.
    """
    if routing < 0 or not len(when):
        return False
    routed = draft.at(np.full(len(when), routing), when)
    if (routed < 0).any():
        return False
    copies = draft.demand(routed).astype(np.int64)
    if draft.sites[routing].dropped == DroppedForm.STORED:
        copies -= draft.dropped(routed)
    try:
        tokens = between_ranks(draft, site.layer, site.group, when, copies)
        if site.phase in TRANSPOSED_PHASES:
            tokens = tokens.transpose(0, 2, 1)
        return np.array_equal(in_bytes(tokens, site.row_bytes), sent)
    except TraceError:
        return False  # no placement


def _not_transposed(
    site: Site,
    when: Int64,
    sent: Int64,
    dispatched: dict[Layer, tuple[Site, Int64, Int64]],
) -> list[str]:
    """Report iterations in which an exchange contradicts its layer's dispatch."""
    key = _layer(site)
    if _is_dispatch(site):
        dispatched[key] = (site, when, sent)
        return []
    if key not in dispatched:
        return []
    first, then, rows = dispatched[key]
    both, mine, its = np.intersect1d(when, then, return_indices=True)
    turned = sent[mine]
    if site.phase in TRANSPOSED_PHASES:
        turned = turned.transpose(0, 2, 1)
    # in bytes, as row shapes may differ; in rows if the element types differ
    scale, other = 1, 1
    if site.dtype != first.dtype:
        scale, other = max(1, site.row_bytes), max(1, first.row_bytes)
    differ = (turned * other != rows[its] * scale).any(axis=(1, 2))
    if not differ.any():
        return []
    return [
        f"layer {site.layer}, {site.phase}, micro-batch {site.slot}: differs from the "
        f"dispatch matrix in {int(differ.sum())} of {len(both)} iterations, the first "
        f"is {int(both[differ][0])}"
    ]


def _unequal(
    draft: Trace, site: Site, of: Int64, conflict: Bool, splits: Int64
) -> list[str]:
    """Report pairs of ranks whose sent and received bytes differ."""
    if not conflict.any():
        return []
    ranks = draft.groups[site.group].ranks
    at, source, destination = (int(v[0]) for v in np.nonzero(conflict))
    return [
        f"{_call(draft, site, of[at])}: rank {ranks[source]} sent "
        f"{splits[at, source, 0, destination]} bytes to rank {ranks[destination]}, "
        f"which received {splits[at, destination, 1, source]} "
        f"({int(conflict.sum())} such pairs)"
    ]


def _unequal_message(
    draft: Trace, site: Site, of: Int64, values: Int64, presence: UInt8
) -> list[str]:
    """Report messages whose sender and receiver recorded different sizes."""
    source, destination = site.peers
    if min(source, destination) < 0:
        return []
    both = sized(presence)[:, [source, destination]].all(axis=1)
    wrong = both & (values[:, source] != values[:, destination])
    if not wrong.any():
        return []
    ranks, at = draft.groups[site.group].ranks, int(np.flatnonzero(wrong)[0])
    return [
        f"{_call(draft, site, of[at])}: rank {ranks[source]} sent "
        f"{values[at, source]} bytes to rank {ranks[destination]}, which received "
        f"{values[at, destination]} ({int(wrong.sum())} such messages)"
    ]


def _call(draft: Trace, site: Site, occurrence: int) -> str:
    """Describe an occurrence of a call in an error message."""
    iteration = int(draft.occurrences.iteration[occurrence])
    sequence = int(draft.occurrences.sequence[occurrence])
    name = site.phase or site.label or site.operation
    words = [f"iteration {iteration}"] if iteration >= 0 else []
    words += [f"layer {site.layer}"] if site.layer >= 0 else []
    words += [name if site.phase or not site.slot else f"{name} number {site.slot}"]
    if not site.phase and sequence >= 0:
        words += [f"collective {sequence} of its group"]
    return ", ".join(words)

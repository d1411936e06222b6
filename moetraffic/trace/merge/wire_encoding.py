"""Encode the bytes of each call site in the most compact exact form, with checks.

The ranks' splits are joined to matrices.  What one rank sent, another must have
received.  A layer's exchanges must be transposes of each other, and equal its routing
where nothing is padded.  Sites whose bytes are constant, or follow from the demand in
all occurrences, store no matrices.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moetraffic.errors import TraceError
from moetraffic.trace.model import (
    ALL_TO_ALL,
    ROUTING,
    TRANSPOSED_PHASES,
    Int64,
    Presence,
    Site,
    WireForm,
)
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.reconciliation import Reconciled, UInt8, reconcile, sized
from moetraffic.trace.trace import Trace
from moetraffic.trace.wire import bytes_by_demand

from .assembly import Events, out_of_step

FOLLOWS_DEMAND = ("dropped", "dropless")
"""Dispatch modes in which the bytes are determined by the routing."""

Layer = tuple[int, int, int]  # group, layer, slot


def encode_bytes(
    draft: Trace, events: Events, *, recover: bool = False
) -> tuple[Trace, list[str]]:
    """Store the bytes of each call site in its most compact exact form.

    Parameters
    ----------
    draft
        The trace, without bytes.
    events
        The ranks' records.
    recover
        Reconstruct missing bytes of all-to-alls from the peers' records.

    Returns
    -------
    Trace
        With the form of each site's bytes, and panels of those that are stored.
    list of str
        Contradictions between the records, a sentence each.
    """
    sites, wrong = list(draft.sites), out_of_step(events)
    stored: dict[str, list[Int64]] = {}
    presence: dict[int, UInt8] = {}  # by width
    dispatched: dict[Layer, tuple[Site, Int64, Int64]] = {}
    for number, site in enumerate(draft.sites):
        if site.operation == ROUTING:
            continue
        w = len(draft.groups[site.group].ranks)
        of = np.flatnonzero(draft.occurrences.site == number)
        if w not in presence:
            panel = draft.panels[f"present_{w}"]
            presence[w] = panel.read(0, panel.shape[0]).copy()
        there, rows = presence[w], draft.rows_of(f"present_{w}")[of]
        recorded = there[rows] == Presence.RECORDED
        if site.operation == ALL_TO_ALL:
            splits = events.by_member(number, w, events.sent_and_received(number, w))
            found = reconcile(splits, recorded, recover=recover)
            values, there[rows] = found.sent, found.presence
            wrong += _unequal(draft, site, of, found, splits)
        else:
            values = events.by_member(number, w, events.volumes(number))
            there[rows] = np.where(values < 0, Presence.UNSIZED, there[rows])
            values = np.maximum(values, 0)
            wrong += _unequal_message(draft, site, of, values, there[rows])
        whole = sized(there[rows]).all(axis=1)
        if not sized(there[rows]).any():
            continue  # no call has known bytes: the site's wire is unknown
        if site.operation == ALL_TO_ALL and site.phase:
            when = draft.occurrences.iteration[of[whole]]
            wrong += _not_transposed(site, when, values[whole], dispatched)
            sites[number] = _following_demand(draft, site, of[whole], values[whole])
            if sites[number].wire == WireForm.DEMAND:
                continue
            wrong += _not_following(draft, site)
        if whole.all() and len(values) and (values == values[0]).all():
            sites[number] = replace(
                site,
                wire=WireForm.CONSTANT,
                constant=tuple(values[0].ravel().tolist()),
                wire_checked=len(values),
            )
        else:
            sites[number] = replace(site, wire=WireForm.STORED)
            kind = "wire" if site.operation == ALL_TO_ALL else "volume"
            stored.setdefault(f"{kind}_{w}", []).append(values)
    panels = dict(draft.panels)
    panels |= {n: ArrayPanel(np.concatenate(parts)) for n, parts in stored.items()}
    panels |= {f"present_{w}": ArrayPanel(rows) for w, rows in presence.items()}
    return draft.replaced(sites=sites, panels=panels), wrong


def _following_demand(
    draft: Trace, site: Site, occurrences: Int64, sent: Int64
) -> Site:
    """Set a site's wire form to DEMAND if its bytes equal the kept demand's."""
    # the backward of a layer follows the routing of its forward
    key = (site.group, site.layer, site.slot)
    routing = next((n for n, r in enumerate(draft.sites) if _routes(r, key)), -1)
    if routing < 0 or not len(occurrences):
        return site
    when = draft.occurrences.iteration[occurrences]
    try:
        routed = draft.rows.at(np.full(len(when), routing), when)
        derived = bytes_by_demand(draft, site, routed)
    except TraceError:
        return site  # no placement, or no routing in one of the iterations
    if not np.array_equal(derived, sent):
        return site
    return replace(
        site, wire=WireForm.DEMAND, routing=routing, wire_checked=len(occurrences)
    )


def _routes(site: Site, key: Layer) -> bool:
    return (
        site.operation == ROUTING
        and site.direction == "forward"
        and (site.group, site.layer, site.slot) == key
    )


def _not_following(draft: Trace, site: Site) -> list[str]:
    """Report an unpadded site whose bytes contradict the routing."""
    key = (site.group, site.layer, site.slot)
    seen = any(_routes(s, key) for s in draft.sites)
    if draft.meta.dispatch not in FOLLOWS_DEMAND or not seen:
        return []
    return [
        f"layer {site.layer}, {site.phase}, micro-batch {site.slot}: the bytes are not "
        f"(demand - dropped) x {site.row_bytes}, though dispatch is "
        f"{draft.meta.dispatch}"
    ]


def _not_transposed(
    site: Site,
    when: Int64,
    sent: Int64,
    dispatched: dict[Layer, tuple[Site, Int64, Int64]],
) -> list[str]:
    """Report iterations in which an exchange contradicts its layer's dispatch."""
    key = (site.group, site.layer, site.slot)
    if site.phase == "dispatch" and site.direction == "forward":
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
    draft: Trace, site: Site, of: Int64, found: Reconciled, splits: Int64
) -> list[str]:
    """Report pairs of ranks whose sent and received bytes differ."""
    if not found.conflict.any():
        return []
    ranks = draft.groups[site.group].ranks
    at, source, destination = (int(v[0]) for v in np.nonzero(found.conflict))
    return [
        f"{_call(draft, site, of[at])}: rank {ranks[source]} sent "
        f"{splits[at, source, 0, destination]} bytes to rank {ranks[destination]}, "
        f"which received {splits[at, destination, 1, source]} "
        f"({int(found.conflict.sum())} such pairs)"
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

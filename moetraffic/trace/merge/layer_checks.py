"""Check that exchanges of a MoE layer are transposes, and equal to its routing.

A layer here is one micro-batch of a layer in one group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.errors import TraceError
from moetraffic.trace.matrix import between_ranks, in_bytes
from moetraffic.trace.model import (
    ALL_TO_ALL,
    ROUTING,
    TRANSPOSED_PHASES,
    DroppedForm,
    Site,
)
from moetraffic.trace.trace import Trace

FOLLOWS_DEMAND = ("dropped", "dropless")
"""Dispatch modes in which the bytes are determined by the routing."""

Layer = tuple[int, int, int]  # group, layer, slot


def check_layers(
    trace: Trace, before_drops: Collection[int]
) -> tuple[Trace, list[str]]:
    """Compare exchanges with each other and with routings; settle unreported drops.

    ``before_drops`` are the routing sites whose demand has all copies, also those that
    were dropped.  Returns the trace, and the contradictions, a sentence each.
    """
    sites, every, wrong = list(trace.sites), trace.occurrences, list[str]()
    forward = [(n, s) for n, s in enumerate(sites) if s.direction == "forward"]
    routings = {_layer(s): n for n, s in reversed(forward) if s.operation == ROUTING}
    dispatches = Counter(_layer(s) for _, s in forward if s.phase == "dispatch")
    dispatched: dict[Layer, Int64] = {}  # calls
    for number, site in enumerate(trace.sites):
        if site.operation != ALL_TO_ALL or not site.phase:
            continue
        calls = np.arange(*np.searchsorted(every.site, [number, number + 1]))
        calls = trace.complete(calls[every.matrix[calls] >= 0])
        if not len(calls):
            continue
        layer, sent = _layer(site), trace.wire(calls)
        name = f"layer {site.layer}, {site.phase}, micro-batch {site.slot}"
        is_dispatch = site.phase == "dispatch" and site.direction == "forward"
        if is_dispatch:
            dispatched[layer] = calls
        elif layer in dispatched:
            wrong += [
                f"{name}: {difference}"
                for difference in _differences(trace, calls, sent, dispatched[layer])
            ]
        routing = routings.get(layer, -1)
        if routing < 0:
            continue
        follows = _follows_demand(trace, site, routing, calls, sent)
        sole = is_dispatch and dispatches[layer] == 1
        if follows and sole and trace.meta.origin == "captured":
            before = routing in before_drops
            sites[routing] = _settled(sites[routing], sent, before=before)
        if not follows and trace.meta.dispatch in FOLLOWS_DEMAND:
            wrong.append(
                f"{name}: the bytes are not (demand - dropped) x {site.row_bytes}, "
                f"though dispatch is {trace.meta.dispatch}"
            )
    return trace.replaced(sites=sites), wrong


def _layer(site: Site) -> Layer:
    return (site.group, site.layer, site.slot)


def _differences(
    trace: Trace, calls: Int64, sent: Int64, dispatched: Int64
) -> list[str]:
    """Describe the iterations in which an exchange contradicts its layer's dispatch."""
    when, site_of = trace.occurrences.iteration, trace.occurrences.site
    both, own, place = np.intersect1d(
        when[calls], when[dispatched], return_indices=True
    )
    if not len(both):
        return []
    site, dispatch = (trace.sites[site_of[c[0]]] for c in (calls, dispatched))
    turned, rows = sent[own], trace.wire(dispatched[place])
    if site.phase in TRANSPOSED_PHASES:
        turned = turned.transpose(0, 2, 1)
    # in bytes, as row shapes may differ; in rows if the element types differ
    if site.dtype != dispatch.dtype:
        turned = turned * max(1, dispatch.row_bytes)
        rows = rows * max(1, site.row_bytes)
    differ = (turned != rows).any(axis=(1, 2))
    if not differ.any():
        return []
    return [
        f"differs from the dispatch matrix in {int(differ.sum())} of {len(both)} "
        f"iterations, the first is {int(both[differ][0])}"
    ]


def _follows_demand(
    trace: Trace, site: Site, routing: int, calls: Int64, sent: Int64
) -> bool:
    """Return whether a site's bytes equal the kept demand of a routing site.

    Copies of which it is unknown whether they were dropped are taken as kept.
    """
    when = trace.occurrences.iteration[calls]
    routed = trace.at(np.full(len(when), routing), when)
    if (routed < 0).any():
        return False
    copies = trace.demand(routed).astype(np.int64)
    if trace.sites[routing].dropped == DroppedForm.STORED:
        copies -= trace.dropped(routed)
    try:
        tokens = between_ranks(trace, site.layer, site.group, when, copies)
        if site.phase in TRANSPOSED_PHASES:
            tokens = tokens.transpose(0, 2, 1)
        return np.array_equal(in_bytes(tokens, site.row_bytes), sent)
    except TraceError:
        return False  # no placement


def _settled(routing: Site, sent: Int64, *, before: bool) -> Site:
    """Settle a routing without reported drops whose demand equals the bytes sent.

    A program reports copies over a capacity too, and ids of all tokens have them
    (``before``): all were kept.  Other hooks on a router may read what is left after
    the capacity.  Equal parts may be padded: they settle nothing.
    """
    if routing.dropped != DroppedForm.UNKNOWN or (sent == sent[:, :1, :1]).all():
        return routing
    after = routing.label and not before
    form = DroppedForm.UNCOUNTED if after else DroppedForm.NONE
    return replace(routing, dropped=form)

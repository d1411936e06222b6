"""Compare the rows that dispatches send with the token copies that were routed.

A dispatch is compared with the routing of its micro-batch.  Nothing is stated where
records or row sizes are missing, or where all parts are equal, which may be padded;
and of fewer rows nothing where a router reported drops, or its ranks do not send the
rows for themselves.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.trace.model import ROUTING, DroppedForm
from moetraffic.trace.trace import Trace

LARGEST_ELEMENT = 8
"""Bytes of the largest element type of a tensor: rows of this size are no copies."""


def differing_rows(trace: Trace) -> str:
    """Describe where dispatches send more or fewer rows than copies; "" if nowhere.

    More: the largest excess of a rank in a dispatch.  Fewer: the sums of a layer.  The
    first layer is described, with the number of such layers.
    """
    if trace.meta.dispatch:
        return ""
    sites_of: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, site in enumerate(trace.sites):
        is_one = site.operation == ROUTING or site.phase == "dispatch"
        if is_one and site.direction == "forward":
            sites_of[site.layer, site.group].append(number)
    most: dict[int, tuple[int, int, int]] = {}  # by layer: excess, rows, copies
    sums: dict[int, Int64] = {}  # by layer: rows and copies
    for (layer, _), numbers in sites_of.items():
        excess, total = _counts(trace, numbers)
        most[layer] = max(most.get(layer, excess), excess)
        sums[layer] = sums.get(layer, np.zeros(2, np.int64)) + total
    more = {layer: counts[1:] for layer, counts in most.items() if counts[0] > 0}
    fewer = {n: s for n, s in sums.items() if n not in more and s[0] < s[1]}
    sentences = []
    for layer, (rows, copies) in [*more.items()][:1]:
        sentences.append(
            f"a dispatch of layer {layer} sends {rows:,} rows, but {copies:,} token "
            f"copies were routed{_layers(len(more))}: rows are padded, or the recorded "
            "routing is not that of the layer"
        )
    for layer, (rows, copies) in [*fewer.items()][:1]:
        sentences.append(
            f"the dispatches of layer {layer} send {rows:,} rows, but {copies:,} token "
            f"copies were routed ({1 - rows / copies:.1%} fewer){_layers(len(fewer))}: "
            "possible causes are a capacity (report drops by "
            "capture.routing(..., dropped=)), rows sent once for several experts, or a "
            "routing that is not that of the layer"
        )
    return "; ".join(sentences)


def _layers(count: int) -> str:
    return f" ({count} layers in all)" if count > 1 else ""


def _counts(trace: Trace, numbers: list[int]) -> tuple[tuple[int, int, int], Int64]:
    """Count the rows and copies of a layer's dispatches and routings in one group.

    Returns the largest excess of a rank, with its rows and copies; and the sums of rows
    and copies, 0 where they are not comparable.  Iterations count in which all members
    recorded as many dispatches as routings.
    """
    every, sites = trace.occurrences, trace.sites
    routing_of = {sites[n].slot: n for n in numbers if sites[n].operation == ROUTING}
    dispatches = [n for n in numbers if sites[n].phase == "dispatch"]
    most, total, none = (0, 0, 0), np.zeros(2, np.int64), np.zeros(2, np.int64)
    # of training iterations, if there are any
    wanted = trace.iterations if len(trace.iterations) else np.unique(every.iteration)
    calls = np.flatnonzero(np.isin(every.site, numbers))
    whole = np.isin(calls, trace.complete(calls))
    sign = np.where(np.isin(every.site[calls], dispatches), 1, -1)
    when, place = np.unique(every.iteration[calls], return_inverse=True)
    differ = (np.bincount(place, sign) != 0) | (np.bincount(place, ~whole) > 0)
    calls = calls[np.isin(every.iteration[calls], np.setdiff1d(wanted, when[differ]))]
    uneven = own = False
    for number in dispatches:
        sent = calls[every.site[calls] == number]
        routing = np.full(len(sent), routing_of.get(sites[number].slot, -1))
        routed = trace.at(routing, every.iteration[sent])
        size = sites[number].row_bytes
        known = (routed >= 0) & (every.matrix[sent] >= 0)
        if not len(sent):
            continue
        if not known.all() or size <= LARGEST_ELEMENT:
            return (0, 0, 0), none
        wire = trace.wire(sent)
        rows = wire.sum(axis=2) // size
        copies = trace.demand(routed).sum(axis=2, dtype=np.int64)
        unequal = (wire != wire[:, :1, :1]).any(axis=(1, 2))
        excess = np.where(unequal[:, None], rows - copies, 0)
        cell = np.unravel_index(excess.argmax(), excess.shape)
        most = max(most, (int(excess[cell]), int(rows[cell]), int(copies[cell])))
        uneven |= bool(unequal.any())
        own |= bool(wire.diagonal(axis1=1, axis2=2).any())
        total += rows.sum(), copies.sum()
    forms = {sites[n].dropped for n in numbers}
    compared = uneven and own and DroppedForm.STORED not in forms
    return most, total if compared else none

"""Compare the rows that dispatches send with the token copies that were routed.

A dispatch is compared with the routing of its micro-batch.  Nothing is stated where
records or row sizes are missing, or where all parts are equal, which may be padded;
and of fewer rows nothing where a layer has other routings than dispatches, or its ranks
do not send the rows for themselves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moetraffic.arrays import Bool, Int64
from moetraffic.trace.model import ROUTING, DroppedForm
from moetraffic.trace.trace import Trace

LARGEST_ELEMENT = 8
"""Bytes of the largest element type of a tensor: rows of this size are no copies."""


class RowCounts(NamedTuple):
    """Rows and token copies of a layer in one group, 0 where not comparable."""

    most: tuple[int, int, int] = (0, 0, 0)  # largest excess of a rank, rows, copies
    rows: int = 0  # of all dispatches that are paired
    copies: int = 0


def differing_rows(trace: Trace) -> str:
    """Describe where dispatches send more or fewer rows than copies; "" if nowhere.

    More: the largest excess of a rank in a dispatch.  Fewer: the sums of a layer whose
    routers did not report dropped copies.  The first layer is described, with the
    number of such layers.
    """
    if trace.meta.dispatch:
        return ""
    layers: dict[int, dict[int, tuple[list[int], list[int]]]] = {}
    for number, site in enumerate(trace.sites):
        routing = site.operation == ROUTING
        if site.direction == "forward" and (routing or site.phase == "dispatch"):
            groups = layers.setdefault(site.layer, {})
            groups.setdefault(site.group, ([], []))[routing].append(number)
    more, fewer = [], []
    for layer, of in layers.items():
        counts = [_counts(trace, *numbers) for numbers in of.values()]
        excess, rows, copies = max(each.most for each in counts)
        if excess > 0:
            more.append((layer, rows, copies))
            continue
        rows, copies = (sum(getattr(c, n) for c in counts) for n in ("rows", "copies"))
        if rows < copies:
            fewer.append((layer, rows, copies))
    sentences = []
    if more:
        layer, rows, copies = more[0]
        sentences.append(
            f"a dispatch of layer {layer} sends {rows:,} rows, but {copies:,} token "
            f"copies were routed{_layers(more)}: rows are padded, or the recorded "
            "routing is not that of the layer"
        )
    if fewer:
        layer, rows, copies = fewer[0]
        sentences.append(
            f"the dispatches of layer {layer} send {rows:,} rows, but {copies:,} token "
            f"copies were routed ({1 - rows / copies:.1%} fewer){_layers(fewer)}: "
            "possible causes are a capacity (report drops by "
            "capture.routing(..., dropped=)), rows sent once for several experts, or a "
            "routing that is not that of the layer"
        )
    return "; ".join(sentences)


def _layers(found: list[tuple[int, int, int]]) -> str:
    return f" ({len(found)} layers in all)" if len(found) > 1 else ""


def _counts(trace: Trace, sending: list[int], routings: list[int]) -> RowCounts:
    """Count the rows and copies of a layer's dispatches in one group."""
    sites, of = trace.sites, trace.occurrences.site
    most, rows, copies, uneven, own = (0, 0, 0), 0, 0, False, False
    sent, routed, paired = _pairs(trace, sending, routings)
    if not len(sent):
        return RowCounts()
    for number, routing in np.unique(np.stack([of[sent], of[routed]]), axis=1).T:
        size = sites[number].row_bytes
        here = (of[sent] == number) & (of[routed] == routing)
        unknown = trace.occurrences.matrix[sent[here]] < 0
        if unknown.any() or size <= LARGEST_ELEMENT:
            return RowCounts()
        wire = trace.wire(sent[here])
        row = wire.sum(axis=2) // size
        copy = trace.demand(routed[here]).sum(axis=2, dtype=np.int64)
        unequal = (wire != wire[:, :1, :1]).any(axis=(1, 2))
        excess = np.where(unequal[:, None], row - copy, 0)
        at = np.unravel_index(excess.argmax(), excess.shape)
        most = max(most, (int(excess[at]), int(row[at]), int(copy[at])))
        uneven |= bool(unequal.any())
        own |= bool(wire.diagonal(axis1=1, axis2=2).any())
        rows += int(row[paired[here]].sum())
        copies += int(copy[paired[here]].sum())
    reported = any(sites[n].dropped == DroppedForm.STORED for n in routings)
    if reported or not (uneven and own):
        return RowCounts(most)
    return RowCounts(most, rows, copies)


def _pairs(
    trace: Trace, sending: list[int], routings: list[int]
) -> tuple[Int64, Int64, Bool]:
    """Pair a layer's dispatches with the routings of their micro-batches.

    Returns the occurrence numbers of both, which all members recorded, ``[n]`` each;
    and a mask ``[n]`` of the iterations in which every micro-batch has one of each.
    """
    every = trace.occurrences
    both = [*sending, *routings]
    slot = np.zeros(len(trace.sites), np.int64)
    slot[both] = [trace.sites[number].slot for number in both]
    width = int(slot.max()) + 1
    # those of training steps alone, if there are any, as in the statistics
    train = trace.iterations
    here = np.isin(every.iteration, train) if len(train) else True
    calls = [
        np.flatnonzero(np.isin(every.site, of) & here) for of in (sending, routings)
    ]
    places = [every.iteration[c] * width + slot[every.site[c]] for c in calls]
    counted = [np.unique(place, return_counts=True) for place in places]
    alone = np.setxor1d(*(place for place, _ in counted))
    doubled = np.concatenate([place[number > 1] for place, number in counted])
    whole = [np.isin(c, trace.complete(c)) for c in calls]
    lacking = np.concatenate([p[~w] for p, w in zip(places, whole, strict=True)])
    kept = [p[w] for p, w in zip(places, whole, strict=True)]
    common, *at = np.intersect1d(kept[0], kept[1], return_indices=True)
    sent, routed = (c[w][i] for c, w, i in zip(calls, whole, at, strict=True))
    wrong = np.concatenate([alone, doubled, lacking]) // width
    return sent, routed, ~np.isin(common // width, wrong)

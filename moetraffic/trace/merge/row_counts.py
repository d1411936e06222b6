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
    and copies, 0 where they are not comparable.
    """
    most, total, none = (0, 0, 0), np.zeros(2, np.int64), np.zeros(2, np.int64)
    of, uneven, own = trace.occurrences.site, False, False
    sent, routed = _pairs(trace, numbers)
    for number, routing in np.unique(np.stack([of[sent], of[routed]]), axis=1).T:
        size = trace.sites[number].row_bytes
        here = (of[sent] == number) & (of[routed] == routing)
        unknown = trace.occurrences.matrix[sent[here]] < 0
        if unknown.any() or size <= LARGEST_ELEMENT:
            return (0, 0, 0), none
        wire = trace.wire(sent[here])
        rows = wire.sum(axis=2) // size
        copies = trace.demand(routed[here]).sum(axis=2, dtype=np.int64)
        unequal = (wire != wire[:, :1, :1]).any(axis=(1, 2))
        excess = np.where(unequal[:, None], rows - copies, 0)
        place = np.unravel_index(excess.argmax(), excess.shape)
        most = max(most, (int(excess[place]), int(rows[place]), int(copies[place])))
        uneven |= bool(unequal.any())
        own |= bool(wire.diagonal(axis1=1, axis2=2).any())
        total += rows.sum(), copies.sum()
    forms = {trace.sites[n].dropped for n in numbers}
    compared = uneven and own and DroppedForm.STORED not in forms
    return most, total if compared else none


def _pairs(trace: Trace, numbers: list[int]) -> tuple[Int64, Int64]:
    """Pair dispatches with the routings of their micro-batches, ``[n]`` each.

    They are of the iterations in which every micro-batch has one of each, which all
    members recorded; of training iterations, if there are any.
    """
    every = trace.occurrences
    slot = np.zeros(len(trace.sites), np.int64)
    slot[numbers] = [trace.sites[number].slot for number in numbers]
    width = int(slot.max()) + 1
    train = trace.iterations
    here = np.isin(every.iteration, train) if len(train) else True
    calls, keys, valid = [], [], []
    for routing in (False, True):
        own = [n for n in numbers if (trace.sites[n].operation == ROUTING) == routing]
        found = np.flatnonzero(np.isin(every.site, own) & here)
        key = every.iteration[found] * width + slot[every.site[found]]
        whole = np.isin(found, trace.complete(found))
        _, place, count = np.unique(key, return_inverse=True, return_counts=True)
        calls.append(found)
        keys.append(key)
        valid.append(key[whole & (count[place] == 1)])
    common = np.intersect1d(*valid)
    wrong = np.setdiff1d(np.concatenate(keys), common) // width
    common = common[~np.isin(common // width, wrong)]
    sent, routed = (
        found[np.isin(key, common)][np.argsort(key[np.isin(key, common)])]
        for found, key in zip(calls, keys, strict=True)
    )
    return sent, routed

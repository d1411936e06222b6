"""Compute the bytes of occurrences from the form in which their site stores them."""

from __future__ import annotations

import numpy as np

from moetraffic.arrays import Int64, Integer
from moetraffic.errors import TraceError

from .model import MOST_BYTES, TRANSPOSED_PHASES, Site, WireForm
from .panel import take
from .placement import between_ranks
from .reading import TraceContents


def wire_bytes(trace: TraceContents, occurrences: Int64, *, square: bool) -> Int64:
    """Return the bytes of all-to-alls, or the buffer bytes of other collectives.

    The ``[n]`` occurrences are of groups of one size; ``square`` selects all-to-alls,
    ``[n, W, W]`` int64 (row sends, column receives), or other collectives, ``[n, W]``.
    """
    if not len(trace.indices(occurrences)):
        return np.zeros((0, 0, 0) if square else (0, 0), np.int64)
    width = trace.common_size(occurrences)
    sites = trace.occurrences.site[occurrences]
    if (trace.rows.square[sites] != square).any():
        raise TraceError(
            "wire() reads all-to-alls and volume() the other collectives: "
            "select occurrences of one operation"
        )
    shape = (width, width) if square else (width,)
    out = np.zeros((len(occurrences), *shape), np.int64)
    for number in np.unique(sites):
        at = np.flatnonzero(sites == number)
        site = trace.sites[number]
        if site.wire == WireForm.CONSTANT:
            out[at] = np.array(site.constant, np.int64).reshape(shape)
        elif site.wire == WireForm.STORED:
            name = "wire" if square else "volume"
            rows = trace.rows.numbers(name)[occurrences[at]]
            out[at] = take(trace.panels[f"{name}_{width}"], rows)
        elif site.wire == WireForm.DEMAND:
            out[at] = bytes_by_demand(trace, site, trace.routing_of(occurrences[at]))
        else:
            raise TraceError(
                f"the bytes of {site.operation} at layer {site.layer} are unavailable: "
                "capture them with the hook; Trace.demand() has what was routed"
            )
    return out


def bytes_by_demand(trace: TraceContents, site: Site, routed: Int64) -> Int64:
    """Compute (demand - dropped) x row bytes between ranks for an all-to-all.

    See :func:`rows_by_demand`; returns ``[n, W, W]`` int64 bytes.
    """
    rows = rows_by_demand(trace, site, routed, trace.demand(routed))
    return in_bytes(rows, site.row_bytes)


def rows_by_demand(
    trace: TraceContents, site: Site, routed: Int64, demand: Integer
) -> Integer:
    """Compute demand - dropped between ranks, in the direction of an all-to-all.

    ``demand`` ``[n, W, E]`` are the token copies of ``routed`` ``[n]``, the routing
    occurrences that determine its bytes.  Returns ``[n, W, W]`` token copies, int32 or
    int64.
    """
    kept = demand
    if trace.any_dropped(routed):
        kept = demand.astype(np.int64) - trace.dropped(routed)
        if kept.size and kept.min() < 0:
            raise TraceError(
                "dropped token copies cannot exceed the routed ones, but do at layer "
                f"{site.layer}: the file is inconsistent, use an intact copy"
            )
    when = trace.occurrences.iteration[routed]
    tokens = between_ranks(trace, site.layer, site.group, when, kept)
    return tokens.transpose(0, 2, 1) if site.phase in TRANSPOSED_PHASES else tokens


def in_bytes(tokens: Integer, row_bytes: int) -> Int64:
    """Multiply token copies by the bytes of a row, and check the result's range."""
    if tokens.size and int(tokens.max()) * row_bytes > MOST_BYTES:
        raise TraceError(
            f"a call sends at most {MOST_BYTES} bytes to a rank, but {tokens.max()} "
            f"rows of {row_bytes} bytes are more: the file is inconsistent"
        )
    return np.asarray(tokens.astype(np.int64, copy=False) * row_bytes, np.int64)

"""The bytes of occurrences, from whatever statement a site makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from moetraffic.errors import TraceError

from .model import MOST_BYTES, TRANSPOSED_PHASES, Int64, Site, WireForm
from .panel import take
from .placement import between_ranks
from .rows import Rows

if TYPE_CHECKING:
    from .trace import Trace


def sent(trace: Trace, rows: Rows, occurrences: Int64) -> Int64:
    """See :meth:`Trace.wire`."""
    return _bytes(trace, rows, occurrences, square=True)


def contributed(trace: Trace, rows: Rows, occurrences: Int64) -> Int64:
    """See :meth:`Trace.volume`."""
    return _bytes(trace, rows, occurrences, square=False)


def told_by_demand(trace: Trace, site: Site, routed: Int64) -> Int64:
    """(demand - dropped) x row bytes in the orientation of the site's phase.

    Parameters
    ----------
    site
        The all-to-all.
    routed
        ``[n]`` the routing occurrences that it follows.

    Returns
    -------
    ndarray
        ``[n, W, W]`` int64 bytes.
    """
    return in_bytes(
        rows_told(trace, site, routed, trace.demand(routed)), site.row_bytes
    )


def rows_told(
    trace: Trace, site: Site, routed: Int64, demand: npt.NDArray[np.integer]
) -> npt.NDArray[np.integer]:
    """Demand - dropped between ranks, in the orientation of the site's phase.

    Parameters
    ----------
    site
        The all-to-all.
    routed
        ``[n]`` the routing occurrences that it follows.
    demand
        Theirs, ``[n, W, E]`` token copies.

    Returns
    -------
    ndarray
        ``[n, W, W]`` token copies, int32 or int64.
    """
    kept = demand
    if trace.any_dropped(routed):
        kept = demand.astype(np.int64) - trace.dropped(routed)
        if kept.size and kept.min() < 0:
            raise TraceError(
                "no more is dropped than was routed, but at layer "
                f"{site.layer} it is so: the file contradicts itself, take a copy "
                "that is whole"
            )
    when = trace.occurrences.iteration[routed]
    tokens = between_ranks(trace, site.layer, site.group, when, kept)
    return tokens.transpose(0, 2, 1) if site.phase in TRANSPOSED_PHASES else tokens


def rows_sent(
    trace: Trace, occurrences: Int64, demand: npt.NDArray[np.integer]
) -> tuple[npt.NDArray[np.integer], int] | None:
    """See :meth:`Trace.rows_sent`."""
    sites = [trace.sites[s] for s in np.unique(trace.occurrences.site[occurrences])]
    row_bytes = {site.row_bytes for site in sites}
    same = len({(s.layer, s.group, s.phase) for s in sites}) == 1
    if not same or len(row_bytes) != 1 or {s.wire for s in sites} != {WireForm.DEMAND}:
        return None
    routed = trace.routing_of(occurrences)
    return rows_told(trace, sites[0], routed, demand), row_bytes.pop()


def in_bytes(tokens: npt.NDArray[np.integer], row_bytes: int) -> Int64:
    """Token copies times bytes of a row.

    Raises
    ------
    TraceError
        If that is more than one call can send.
    """
    if tokens.size and int(tokens.max()) * row_bytes > MOST_BYTES:
        raise TraceError(
            f"a call sends at most {MOST_BYTES} bytes to a rank, but {tokens.max()} "
            f"rows of {row_bytes} bytes are more: the file contradicts itself"
        )
    return np.asarray(tokens.astype(np.int64, copy=False) * row_bytes, np.int64)


def _bytes(trace: Trace, rows: Rows, occurrences: Int64, *, square: bool) -> Int64:
    if not len(occurrences):
        return np.zeros((0, 0, 0) if square else (0, 0), np.int64)
    width = trace.common_size(occurrences)
    sites = trace.occurrences.site[occurrences]
    if (rows.square[sites] != square).any():
        raise TraceError(
            "wire() reads all-to-alls and volume() the other collectives: "
            "ask for occurrences of one operation"
        )
    shape = (width, width) if square else (width,)
    out = np.zeros((len(occurrences), *shape), np.int64)
    for number in np.unique(sites):
        at = np.flatnonzero(sites == number)
        site = trace.sites[number]
        if site.wire == WireForm.CONSTANT:
            out[at] = np.array(site.constant, np.int64).reshape(shape)
        elif site.wire == WireForm.STORED:
            name = f"{'wire' if square else 'volume'}_{width}"
            row = (rows.wire if square else rows.volume)[occurrences[at]]
            out[at] = take(trace.panels[name], row)
        elif site.wire == WireForm.DEMAND:
            out[at] = told_by_demand(trace, site, trace.routing_of(occurrences[at]))
        else:
            raise TraceError(
                f"the bytes of {site.operation} at layer {site.layer} were not "
                "seen: capture them with the hook, or use the demand"
            )
    return out

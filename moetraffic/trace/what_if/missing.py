"""Complete the bytes that ranks without a record sent in all-to-alls.

``peers``
    Dispatched token copies return, so the row of a missing rank is a column of other
    phases, which its peers recorded.  What no phase has (rank-local traffic, traffic
    between two missing ranks) is completed by ``mean`` for all phases together, which
    remain transposes of each other.
``mean``
    Mean of the known cells of the column without the diagonal, or of all of these if
    the column has none; on the diagonal, mean of the known diagonal.  Rounded to whole
    token copies (bytes, if cells are no whole copies), halves up.
"""

from __future__ import annotations

import numpy as np

from moetraffic.arrays import Bool, Int64
from moetraffic.trace.model import TRANSPOSED_PHASES, Site
from moetraffic.trace.trace import Trace

RULES = ("peers", "mean")


def known_rows(trace: Trace, calls: Int64) -> Bool:
    """Return whether the bytes that each member sent are known, ``[n, W]``.

    If all calls of a site have the same bytes, one record of a member is enough.
    """
    known = trace.present(calls)
    sites = trace.occurrences.site[calls]
    for number in np.unique(sites[~known.all(axis=1)]).tolist():
        every = np.flatnonzero(trace.occurrences.site == number)
        if len(np.unique(trace.occurrences.matrix[every])) == 1:
            known[sites == number] |= trace.present(every).any(axis=0)
    return known


def completed(trace: Trace, calls: Int64, rule: str) -> tuple[Int64, Int64]:
    """Return the bytes of all-to-alls with rows of 0, and with completed ones.

    ``calls`` ``[n]`` are of one group; both results are ``[n, W, W]``, and ``rule`` is
    one of :data:`RULES`.
    """
    known = known_rows(trace, calls)
    captured = trace.wire(calls) * known[:, :, None]
    whole, gaps = captured.copy(), ~known.all(axis=1)
    every, sites = trace.occurrences, trace.occurrences.site[calls]
    for number in np.unique(sites[gaps]).tolist():
        at = np.flatnonzero(gaps & (sites == number))
        site, when = trace.sites[number], every.iteration[calls[at]]
        unit = site.row_bytes or 1
        if (captured[at] % unit).any():
            unit = 1
        units = {number: unit}
        if rule == "peers" and site.phase and unit == site.row_bytes:
            key = (site.layer, site.group, site.slot)
            for other, s in enumerate(trace.sites):
                if s.phase and s.row_bytes and (s.layer, s.group, s.slot) == key:
                    units.setdefault(other, s.row_bytes)
        # known cells of all phases, as token copies in the direction of the dispatch
        cells = np.zeros_like(captured[at])
        seen = np.zeros(cells.shape, bool)
        for phase, of in units.items():
            found = trace.at(np.full(len(at), phase), when)
            there = np.flatnonzero((found >= 0) & (every.matrix[found] >= 0))
            rows = known_rows(trace, found[there])[:, :, None]
            wire = trace.wire(found[there]) * rows
            if len(there) and not (wire % of).any():
                axes = dispatch_axes(trace.sites[phase])
                adds = (rows | np.zeros_like(wire, bool)).transpose(axes)
                cells[there] += (wire // of).transpose(axes) * (adds & ~seen[there])
                seen[there] |= adds
        filled = np.where(seen, cells, _mean(cells, seen)) * unit
        filled = filled.transpose(dispatch_axes(site))
        whole[at] = np.where(known[at][:, :, None], captured[at], filled)
    return captured, whole


def dispatch_axes(site: Site) -> tuple[int, int, int]:
    """Return the axes that turn matrices ``[n, W, W]`` as those of a dispatch."""
    return (0, 2, 1) if site.phase in TRANSPOSED_PHASES else (0, 1, 2)


def _mean(cells: Int64, seen: Bool) -> Int64:
    """Compute the mean by column, and of the diagonal on it, ``[n, W, W]``."""
    off = ~np.eye(cells.shape[1], dtype=bool)

    def mean(of: Bool, axes: tuple[int, ...]) -> Int64:
        total = np.where(of, cells, 0).sum(axis=axes, keepdims=True)
        count = np.maximum(of.sum(axis=axes, keepdims=True), 1)
        return np.asarray((2 * total + count) // (2 * count), np.int64)

    between = seen & off
    some = between.any(axis=1, keepdims=True)
    column = np.where(some, mean(between, (1,)), mean(between, (1, 2)))
    return np.where(off, column, mean(seen & ~off, (1, 2)))

"""What a member of an all-to-all sent whose record is missing, where that is asked for.

A rank that left no record has a row that nobody wrote down.  Rules:

``peers``
    What was dispatched comes back: in token copies a combine is the dispatch
    transposed, its gradient goes as the dispatch, the dispatch's gradient as the
    combine.  So the row of a missing rank stands in the *columns* of the other phases,
    in its peers' records.  All phases of an exchange are laid over each other in the
    orientation of the dispatch; what some record tells is taken from it, exactly.
    What none tells (what the rank kept for itself, and what two missing ranks sent
    each other) is taken by ``mean`` from what the phases tell together, so that they
    stay transposes of each other.
``mean``
    The mean of the known cells of the column, without the diagonal; of the known
    diagonal for what a rank kept; of all known cells between ranks where the column
    has none.  Rounded to the nearest whole token copy (byte, where copies are not
    told), halves up.

The same statement at every call is no record of one member: constant bytes are known.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Bool, Int64
from moetraffic.trace.model import TRANSPOSED_PHASES, Site, WireForm
from moetraffic.trace.trace import Trace

RULES = ("peers", "mean")

Scalar = TypeVar("Scalar", bound=np.generic)


def known_rows(trace: Trace, occurrences: Int64) -> Bool:
    """Which members' bytes are known, ``[b, W]``, members in the group's order."""
    known = trace.present(occurrences)
    sites = trace.occurrences.site[occurrences]
    constant = np.array([s.wire == WireForm.CONSTANT for s in trace.sites], bool)
    return np.asarray(known | constant[sites][:, None], bool)


def complete(trace: Trace, occurrences: Int64, wire: Int64, rule: str) -> Int64:
    """Fill in the rows of members whose records are missing; known rows stay.

    ``occurrences`` ``[b]`` are all-to-alls of one group, ``wire`` ``[b, W, W]`` their
    bytes as the trace has them, members in the group's order, and ``rule`` is one of
    :data:`RULES`.  The result are matrices without a gap, ``[b, W, W]`` bytes.
    """
    out = wire.copy()
    known = known_rows(trace, occurrences)
    sites = trace.occurrences.site[occurrences]
    for number in np.unique(sites[~known.all(axis=1)]).tolist():
        at = np.flatnonzero((sites == number) & ~known.all(axis=1))
        site = trace.sites[number]
        unit = _unit(site, wire[at])
        back = site.phase in TRANSPOSED_PHASES
        told = np.repeat(known[at][:, :, None], wire.shape[1], axis=2)
        cells, seen = _turned(wire[at] // unit, back), _turned(told, back)
        if rule == "peers" and site.phase and unit == site.row_bytes:
            cells, seen = _laid_over(trace, site, occurrences[at], cells, seen)
        whole = _turned(np.where(seen, cells, _mean(cells, seen)), back) * unit
        out[at] = np.where(told, wire[at], whole)
    return out


def _laid_over(
    trace: Trace, site: Site, occurrences: Int64, cells: Int64, seen: Bool
) -> tuple[Int64, Bool]:
    """Token copies that any phase of the same exchanges tells, and where one does."""
    cells, seen = np.where(seen, cells, 0), seen.copy()
    when = trace.occurrences.iteration[occurrences]
    for number, other in enumerate(trace.sites):
        if not _same_exchange(site, other):
            continue
        mine = np.flatnonzero(trace.occurrences.site == number)
        place = np.searchsorted(trace.occurrences.iteration[mine], when)
        there = np.flatnonzero(place < len(mine))
        there = there[trace.occurrences.iteration[mine[place[there]]] == when[there]]
        if not len(there):
            continue
        found = mine[place[there]]
        wire = trace.wire(found)
        if (wire % other.row_bytes).any():
            continue  # padded by bytes: no whole copies
        rows = np.repeat(known_rows(trace, found)[:, :, None], wire.shape[1], axis=2)
        back = other.phase in TRANSPOSED_PHASES
        tells = _turned(rows, back) & ~seen[there]
        copies = _turned(wire // other.row_bytes, back)
        cells[there] = np.where(tells, copies, cells[there])
        seen[there] |= tells
    return cells, seen


def _same_exchange(site: Site, other: Site) -> bool:
    """Whether two sites are phases of the same layer's, group's, micro-batch's."""
    return (
        other is not site
        and bool(other.phase)
        and other.row_bytes > 0
        and other.wire != WireForm.UNKNOWN
        and (other.layer, other.group, other.slot)
        == (site.layer, site.group, site.slot)
    )


def _mean(cells: Int64, seen: Bool) -> Int64:
    """What ``mean`` says of each cell, ``[b, W, W]``."""
    off = ~np.eye(cells.shape[1], dtype=bool)
    between, kept = seen & off, seen & ~off
    column = _rounded(
        np.where(between, cells, 0).sum(axis=1), between.sum(axis=1)
    )  # [b, W]
    every = _rounded(
        np.where(between, cells, 0).sum(axis=(1, 2)), between.sum(axis=(1, 2))
    )
    own = _rounded(np.where(kept, cells, 0).sum(axis=(1, 2)), kept.sum(axis=(1, 2)))
    column = np.where(between.any(axis=1), column, every[:, None])
    out: Int64 = np.where(off, column[:, None, :], own[:, None, None])
    return out


def _rounded(total: Int64, count: Int64) -> Int64:
    """A mean to the nearest whole number, halves up; 0 of nothing."""
    some = np.maximum(count, 1)
    out: Int64 = (2 * total + some) // (2 * some)
    return out


def _turned(of: npt.NDArray[Scalar], back: bool) -> npt.NDArray[Scalar]:
    return of.transpose(0, 2, 1) if back else of


def _unit(site: Site, wire: Int64) -> int:
    whole = site.row_bytes > 0 and not (wire % site.row_bytes).any()
    return site.row_bytes if whole else 1

"""Join the bytes that ranks sent and received to matrices.

A cell of a matrix is recorded twice: by its source as sent, by its destination as
received.  Both must be equal; where one is missing (a rank's record, or the end of a
truncated list) the other replaces it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Bool, Int64, UInt8
from moetraffic.trace.model import ALL_TO_ALL, ROUTING, Presence, Site, sized
from moetraffic.trace.panel import (
    ArrayPanel,
    ComputedPanel,
    DistinctRows,
    Panel,
    stacked,
)
from moetraffic.trace.trace import Trace

from .assembly import Assembly, out_of_step

Bytes = npt.NDArray[Any]
"""Integers of a narrow type."""


def with_bytes(
    draft: Trace, assembly: Assembly, *, recover: bool = False
) -> tuple[Trace, list[str]]:
    """Set the bytes of all calls.

    ``draft`` is the trace without bytes.  With ``recover``, missing bytes of
    all-to-alls are reconstructed from the peers' records.  Returns the trace, and the
    contradictions between the records, a sentence each.
    """
    wrong, every = out_of_step(assembly), draft.occurrences
    present = {
        table: draft.panels[f"{table}/present"].read(0, len(every)).copy()
        for table in {*draft.table_of_site}
        if table.startswith("call")
    }
    matrix, transposed = every.matrix.copy(), every.transposed.copy()
    distinct: dict[str, DistinctRows] = defaultdict(DistinctRows)
    stored: dict[str, list[Panel]] = defaultdict(list)
    for number, site in enumerate(draft.sites):
        if site.operation == ROUTING:
            continue
        table = draft.table_of_site[number]
        calls = np.arange(*np.searchsorted(every.site, [number, number + 1]))
        presence = present[table][draft.row[calls]]
        payload = assembly.payload(number)
        if site.operation == ALL_TO_ALL:
            name, recorded = f"{table}/wire", presence == Presence.RECORDED
            values, presence, conflict = _reconcile(payload, recorded, recover=recover)
            wrong += _unequal(draft, site, calls, conflict, payload)
        else:
            name, values = f"{table}/volume", np.maximum(payload, 0)
            presence = np.where(payload < 0, Presence.UNSIZED, presence)
            wrong += _unequal_message(draft, site, calls, values, presence)
        present[table][draft.row[calls]] = presence
        if sized(presence).any():
            matrix[calls], transposed[calls], new = distinct[name].add(values)
            stored[name] += [ArrayPanel(new)] if len(new) else []
    panels = dict(draft.panels)
    panels |= {f"{t}/present": ArrayPanel(rows) for t, rows in present.items()}
    panels |= {name: widened(stacked(p), np.int64) for name, p in stored.items()}
    occurrences = replace(every, matrix=matrix, transposed=transposed)
    return draft.replaced(panels=panels, occurrences=occurrences), wrong


def widened(panel: Panel, dtype: npt.DTypeLike) -> Panel:
    """Return a panel that converts its rows when they are read."""
    return ComputedPanel(panel.shape, dtype, panel.read)


def _reconcile(
    splits: Bytes, recorded: Bool, *, recover: bool
) -> tuple[Bytes, UInt8, Bool]:
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
    return values, presence, conflict


def _unequal(
    draft: Trace, site: Site, calls: Int64, conflict: Bool, splits: Bytes
) -> list[str]:
    """Report pairs of ranks whose sent and received bytes differ."""
    if not conflict.any():
        return []
    call, *ends = (int(v[0]) for v in np.nonzero(conflict))
    sizes = splits[call, ends[0], 0, ends[1]], splits[call, ends[1], 1, ends[0]]
    difference = _difference(draft, site, calls[call], ends, sizes)
    return [f"{difference} ({int(conflict.sum())} such pairs)"]


def _unequal_message(
    draft: Trace, site: Site, calls: Int64, values: Int64, presence: UInt8
) -> list[str]:
    """Report messages whose sender and receiver recorded different sizes."""
    ends = list(site.peers)
    if min(ends) < 0:
        return []
    both = sized(presence)[:, ends].all(axis=1)
    wrong = np.flatnonzero(both & (values[:, ends[0]] != values[:, ends[1]]))
    if not len(wrong):
        return []
    sizes = values[wrong[0], ends]
    difference = _difference(draft, site, calls[wrong[0]], ends, sizes)
    return [f"{difference} ({len(wrong)} such messages)"]


def _difference(
    draft: Trace,
    site: Site,
    occurrence: int,
    ends: Sequence[int],
    sizes: Sequence[int] | Int64,
) -> str:
    """Describe the sizes that the source and destination of a call recorded."""
    iteration = int(draft.occurrences.iteration[occurrence])
    sequence = int(draft.occurrences.sequence[occurrence])
    name = site.phase or site.label or site.operation
    words = [f"iteration {iteration}"] if iteration >= 0 else []
    words += [f"layer {site.layer}"] if site.layer >= 0 else []
    words += [name if site.phase or not site.slot else f"{name} number {site.slot}"]
    if not site.phase and sequence >= 0:
        words += [f"collective {sequence} of its group"]
    source, destination = (draft.groups[site.group].ranks[member] for member in ends)
    return (
        f"{', '.join(words)}: rank {source} sent {sizes[0]} bytes to rank "
        f"{destination}, which received {sizes[1]}"
    )

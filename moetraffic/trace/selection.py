"""Parts of a trace, and the order in which a rank went through it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .model import UNKNOWN_TIME, Int64, Occurrences, WireForm
from .panel import ArrayPanel, Panel, take
from .rows import Rows

if TYPE_CHECKING:
    from .trace import Trace


def in_order_of(trace: Trace, rank: int) -> Int64:
    """See :meth:`Trace.order`."""
    found, when = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    widths = np.array([len(g.ranks) for g in trace.groups], np.int64)
    group = np.array([s.group for s in trace.sites], np.int64)
    for width in np.unique(widths):
        of = np.flatnonzero(widths[group[trace.occurrences.site]] == width)
        if not len(of):
            continue
        mine = (trace.members(of) == rank) & trace.present(of)
        row, member = np.nonzero(mine)
        issue, _, _ = trace.times(of, own_clock=True)
        found.append(of[row])
        when.append(issue[row, member])
    index, issued = np.concatenate(found), np.concatenate(when)
    if (issued == UNKNOWN_TIME).any():
        issued = _position_in_program(trace, rank)[trace.occurrences.site[index]]
    return index[np.lexsort((issued, trace.occurrences.iteration[index]))]


def subset(trace: Trace, rows: Rows, occurrences: Int64) -> Trace:
    """See :meth:`Trace.select`."""
    from .trace import Trace

    every = trace.occurrences
    keep = np.unique(occurrences)
    # a wire told by a demand needs that demand
    told = keep[rows.wire_form[every.site[keep]] == WireForm.DEMAND]
    if len(told):
        keep = np.union1d(keep, trace.routing_of(told))
    panels: dict[str, Panel] = {}
    for name, panel in trace.panels.items():
        mine = rows.of(name)[keep]
        panels[name] = ArrayPanel(take(panel, mine[mine >= 0]))
    return Trace(
        meta=trace.meta,
        groups=trace.groups,
        sites=trace.sites,
        occurrences=Occurrences(
            iteration=every.iteration[keep],
            site=every.site[keep],
            sequence=every.sequence[keep],
        ),
        panels=panels,
        steps=trace.steps,
        programs=trace.programs,
        placements=trace.placements,
        clocks=trace.clocks,
    )


def _position_in_program(trace: Trace, rank: int) -> Int64:
    """Where each site stands in a rank's program, ``[S]``; unknown ones last."""
    position = np.full(len(trace.sites), len(trace.sites), np.int64)
    for program in trace.programs:
        if program.rank == rank:
            position[list(program.sites)] = np.arange(len(program.sites))
    return position

"""Subsets of a trace, and the issue order of a rank's calls."""

from __future__ import annotations

import numpy as np

from .contents import T, TraceContents
from .model import UNKNOWN_TIME, Int64, Occurrences, WireForm
from .panel import ArrayPanel, take


def issue_order(trace: TraceContents, rank: int) -> Int64:
    """Return the occurrences in the order in which a rank issued them, ``[n]``."""
    sites = trace.occurrences.site
    found, when = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for width in np.unique(trace.rows.width):
        of = np.flatnonzero(trace.rows.width[sites] == width)
        if not len(of):
            continue
        row, member = np.nonzero((trace.members(of) == rank) & trace.present(of))
        issue, _, _ = trace.times(of, own_clock=True)
        found.append(of[row])
        when.append(issue[row, member])
    index, issued = np.concatenate(found), np.concatenate(when)
    if (issued == UNKNOWN_TIME).any():
        # by the position of each site in the rank's program; unlisted sites last
        position = np.full(len(trace.sites), len(trace.sites), np.int64)
        for program in trace.programs:
            if program.rank == rank:
                position[list(program.sites)] = np.arange(len(program.sites))
        issued = position[sites[index]]
    return index[np.lexsort((issued, trace.occurrences.iteration[index]))]


def subset(trace: T, occurrences: Int64) -> T:
    """Extract the given occurrences as a trace in memory; steps are kept."""
    every = trace.occurrences
    keep = np.unique(occurrences)
    # wire that is derived from demand needs that demand
    derived = keep[trace.rows.wire_form[every.site[keep]] == WireForm.DEMAND]
    if len(derived):
        keep = np.union1d(keep, trace.routing_of(derived))
    panels = {}
    for name, panel in trace.panels.items():
        mine = trace.rows_of(name)[keep]
        panels[name] = ArrayPanel(take(panel, mine[mine >= 0]))
    return trace.replaced(
        occurrences=Occurrences(
            iteration=every.iteration[keep],
            site=every.site[keep],
            sequence=every.sequence[keep],
        ),
        panels=panels,
        container=None,
    )

"""Compute the total all-to-all bytes and load imbalance of a trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Int64

from .model import ROUTING, DroppedForm
from .trace import Trace


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Total bytes and load imbalance, for comparing placements of the same experts."""

    ranks: int
    ep: int
    bytes: int  # sent by all-to-alls
    bytes_between_ranks: int  # of these, sent to another rank
    busiest_rank_over_mean: float  # NaN without a dispatch


def all_to_all_bytes(trace: Trace, iterations: Int64 | None = None) -> tuple[int, int]:
    """Return the bytes of all-to-alls, and the rank-local part of them.

    ``iterations``: of these alone; None: of all, evaluation steps included.
    """
    total = kept = 0
    for number in np.flatnonzero(trace.square & trace.has_bytes).tolist():
        known = (trace.occurrences.site == number) & (trace.occurrences.matrix >= 0)
        of = trace.complete(np.flatnonzero(known))
        if iterations is not None:
            of = of[np.isin(trace.occurrences.iteration[of], iterations)]
        wire = trace.wire(of)
        total += int(wire.sum())
        kept += int(np.trace(wire, axis1=1, axis2=2).sum()) if len(of) else 0
    return total, kept


def dropped_share(trace: Trace) -> float | None:
    """Return the share of token copies that training iterations dropped.

    NaN if unknown; None if no routing was recorded.
    """
    routed = trace.find(operation=ROUTING, direction="forward")
    sites = np.unique(trace.occurrences.site[routed]).tolist()
    if not sites:
        return None
    if not all(trace.sites[s].dropped.known for s in sites):
        return float("nan")
    lost = copies = 0
    for site in sites:
        of = routed[trace.occurrences.site[routed] == site]
        if trace.sites[site].dropped is DroppedForm.STORED:
            lost += int(trace.dropped(of).sum())
        copies += int(trace.demand(of).sum())
    return lost / copies if copies else float("nan")


def totals(trace: Trace) -> Totals:
    """Compute total bytes and load imbalance of the training's all-to-alls.

    ``busiest_rank_over_mean`` is the mean over dispatches (all groups of a layer and
    micro-batch together) of the ratio of maximum to mean bytes received by a rank;
    rank-local tokens are included, as experts compute them too.
    """
    sent, kept = all_to_all_bytes(trace, trace.iterations)
    dispatches: dict[tuple[int, int], list[int]] = {}
    for number, site in enumerate(trace.sites):
        if site.phase == "dispatch" and site.direction != "recompute":
            dispatches.setdefault((site.layer, site.slot), []).append(number)
    ratios = []
    for sites in dispatches.values():
        of = trace.complete(np.flatnonzero(np.isin(trace.occurrences.site, sites)))
        of = of[np.isin(trace.occurrences.iteration[of], trace.iterations)]
        when = np.unique(trace.occurrences.iteration[of])
        received = np.zeros((len(when), trace.meta.world))
        members = np.zeros(trace.meta.world, bool)
        calls = np.zeros_like(received)
        for number in sites:
            ranks = np.array(trace.groups[trace.sites[number].group].ranks)
            mine = of[trace.occurrences.site[of] == number]
            rows = np.searchsorted(when, trace.occurrences.iteration[mine])
            received[np.ix_(rows, ranks)] += trace.wire(mine).sum(axis=1)
            calls[np.ix_(rows, ranks)] += 1
            members[ranks] = True
        received = received[calls[:, members].all(axis=1)][:, members]
        received = received[received.any(axis=1)]
        ratios.append(received.max(axis=1) / received.mean(axis=1))
    over = np.concatenate(ratios) if ratios else np.zeros(0)
    return Totals(
        ranks=trace.meta.world,
        ep=trace.meta.ep,
        bytes=sent,
        bytes_between_ranks=sent - kept,
        busiest_rank_over_mean=float(over.mean()) if len(over) else float("nan"),
    )

"""Compute the total all-to-all bytes and load imbalance of a trace."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Float64

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
        calls = routed[trace.occurrences.site[routed] == site]
        if trace.sites[site].dropped is DroppedForm.STORED:
            lost += int(trace.dropped(calls).sum())
        copies += int(trace.demand(calls).sum())
    return lost / copies if copies else float("nan")


def totals(trace: Trace) -> Totals:
    """Compute total bytes and load imbalance of the training's all-to-alls.

    ``busiest_rank_over_mean`` is the mean over dispatches (all groups of a layer and
    micro-batch together) of the ratio of maximum to mean bytes received by a rank;
    rank-local tokens are included, as experts compute them too.
    """
    sent = kept = 0
    every, when = trace.occurrences, trace.iterations
    # by layer and micro-batch: bytes received [iterations, ranks], NaN: no record
    received: dict[tuple[int, int], Float64] = defaultdict(
        lambda: np.full((len(when), trace.meta.world), np.nan)
    )
    members: dict[tuple[int, int], set[int]] = defaultdict(set)
    for number in np.flatnonzero(trace.square & trace.has_bytes).tolist():
        site = trace.sites[number]
        calls = np.flatnonzero((every.site == number) & (every.matrix >= 0))
        calls = trace.complete(calls[np.isin(every.iteration[calls], when)])
        wire = trace.wire(calls)
        sent += int(wire.sum())
        kept += int(np.trace(wire, axis1=1, axis2=2).sum()) if len(calls) else 0
        if site.phase == "dispatch" and site.direction != "recompute":
            key, ranks = (site.layer, site.slot), trace.groups[site.group].ranks
            members[key].update(ranks)
            rows = np.searchsorted(when, every.iteration[calls])
            cells = np.ix_(rows, np.array(ranks))
            before = np.nan_to_num(received[key][cells])
            received[key][cells] = before + wire.sum(axis=1)
    ratios = [np.zeros(0)]
    for key, table in received.items():
        own = table[:, sorted(members[key])]
        own = own[(own.max(axis=1, initial=0) > 0) & ~np.isnan(own).any(axis=1)]
        ratios.append(own.max(axis=1) / own.mean(axis=1))
    over = np.concatenate(ratios)
    return Totals(
        ranks=trace.meta.world,
        ep=trace.meta.ep,
        bytes=sent,
        bytes_between_ranks=sent - kept,
        busiest_rank_over_mean=float(over.mean()) if len(over) else float("nan"),
    )

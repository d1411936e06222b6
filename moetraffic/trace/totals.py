"""Totals over a trace's all-to-alls: bytes sent, and load imbalance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .model import ALL_TO_ALL, WireForm
from .trace import Trace


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Bytes and imbalance by which placements of the same experts are compared."""

    ranks: int
    ep: int
    bytes: int  # that all-to-alls sent
    bytes_between_ranks: int  # of these, to another rank
    busiest_rank_over_mean: float  # NaN without a dispatch


def all_to_all_bytes(trace: Trace) -> tuple[int, int]:
    """Bytes that all recorded all-to-alls sent, and those of a rank to itself."""
    total = kept = 0
    for number, site in enumerate(trace.sites):
        if site.operation == ALL_TO_ALL and site.wire != WireForm.UNKNOWN:
            of = trace.complete(np.flatnonzero(trace.occurrences.site == number))
            wire = trace.wire(of)
            total += int(wire.sum())
            kept += int(np.trace(wire, axis1=1, axis2=2).sum()) if len(of) else 0
    return total, kept


def totals(trace: Trace) -> Totals:
    """Sums over a trace's all-to-alls.

    ``busiest_rank_over_mean`` is the mean, over dispatches, of what the rank that
    receives most receives over what a rank receives on average; its own tokens count,
    for its experts compute these too.
    """
    sent, kept = all_to_all_bytes(trace)
    ratios = []
    for number, site in enumerate(trace.sites):
        if site.phase == "dispatch" and site.direction == "forward":
            of = trace.complete(np.flatnonzero(trace.occurrences.site == number))
            received = trace.wire(of).sum(axis=1)  # [n, W]
            received = received[received.sum(axis=1) > 0]
            ratios.append(received.max(axis=1) / received.mean(axis=1))
    over = np.concatenate(ratios) if ratios else np.zeros(0)
    return Totals(
        ranks=trace.meta.world,
        ep=trace.meta.ep,
        bytes=sent,
        bytes_between_ranks=sent - kept,
        busiest_rank_over_mean=float(over.mean()) if len(over) else float("nan"),
    )

"""Claims about the bursts of a rank: whether they repeat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moetraffic.analysis.claim import Claim
from moetraffic.analysis.times.call_times import (
    observed_steps,
    on_the_wire,
    step_starts,
)
from moetraffic.trace import Trace

from .burst_claims import burst_claims
from .sources import bounded, rank_events

MARKS = 3
"""Least number of step starts that are used as marks."""


def rank_claims(
    trace: Trace,
    *,
    layers: Sequence[int] | None = None,
    iterations: range | None = None,
) -> tuple[Claim, ...]:
    """Test the all-to-alls of the first rank for a period.

    All ranks of an all-to-all communicate at the same times but for waiting, so that
    one rank is tested and not the same bursts as often as there are ranks.

    ``trace``: With times; without, there is no claim.
    """
    if trace.meta.virtual or trace.meta.every > 1:
        return ()
    chosen = trace.layers if layers is None else tuple(layers)
    found, _ = on_the_wire(trace, chosen, iterations)
    if not len(found):
        return ()
    found = bounded(trace, found, [])
    rank = min(
        trace.groups[trace.sites[s].group].ranks[0]
        for s in np.unique(trace.occurrences.site[found]).tolist()
    )
    first, last, _ = rank_events(trace, found, rank, weighs=False)
    if not len(first):
        return ()
    marks = step_starts(trace, rank, iterations)
    return burst_claims(
        first,
        last,
        marks=marks if marks is not None and len(marks) >= MARKS else None,
        observed=observed_steps(trace, rank, iterations),
        about=f"all-to-alls of rank {rank}",
    )

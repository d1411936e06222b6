"""Check what is marked as a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moetraffic.trace.merge.rank_record import Record
from moetraffic.trace.model import ALL_TO_ALL, ROUTING, Source

MOST_LISTED = 10


def check_sampling(record: Record) -> Record:
    """Mark a record as not sampled if no step ended: then all calls are recorded."""
    if record.meta.every == 1 or len(record.steps):
        return record
    return replace(record, meta=replace(record.meta, every=1))


def unmarked_steps(record: Record) -> str:
    """Describe iterations that may contain steps without an optimizer step.

    These have more all-to-alls and routings than both neighbors, which have as many as
    each other, and end at an optimizer step: an evaluation before a step, or steps that
    a gradient scaler skips unobserved.
    """
    exchanged = record.site_mask(
        [s.operation in (ALL_TO_ALL, ROUTING) for s in record.sites]
    )
    found: set[int] = set()
    for rank in record.ranks:
        own = record.calls_of[rank]
        when = record.calls["iteration"][own][exchanged[own]]
        numbers, calls = np.unique(when, return_counts=True)
        steps = record.steps[record.steps["rank"] == rank]
        linked = steps["iteration"][steps["source"] == Source.LINKED]
        before, here, after = calls[:-2], calls[1:-1], calls[2:]
        many = (before == after) & (here > before)
        found |= set(numbers[1:-1][many & np.isin(numbers[1:-1], linked)].tolist())
    if not found:
        return ""
    first = ", ".join(map(str, sorted(found)[:MOST_LISTED]))
    more = f" and {len(found) - MOST_LISTED} more" if len(found) > MOST_LISTED else ""
    return (
        "iterations with more all-to-alls than their neighbors, which may contain "
        f"steps without an optimizer step (evaluations, skipped steps): {first}{more}"
    )

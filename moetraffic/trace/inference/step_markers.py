"""Correct the step numbers that a rank assigned before its program marked a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moetraffic.trace.model import ALL_TO_ALL, ROUTING, Source
from moetraffic.trace.segments.record import Record

MOST_LISTED = 10


def check_sampling(record: Record) -> Record:
    """Mark a record as not sampled if no step ended: then all calls are recorded."""
    if record.meta.every == 1 or len(record.steps):
        return record
    return replace(record, meta=replace(record.meta, every=1))


def withdraw_optimizer_steps(record: Record) -> Record:
    """Assign all calls before a rank's first explicit step to that step.

    Until a program calls ``step()``, its optimizers end iterations, and segments with
    these numbers may be written.  The first call shows that they are parts of its step.
    """
    steps, events = record.steps, record.events.copy()
    kept, partial = np.ones(len(steps), bool), np.zeros(len(events), bool)
    continued = record.continued.copy()
    for rank in record.ranks:
        mine = steps["rank"] == rank
        marked = np.flatnonzero(mine & (steps["source"] == Source.ANNOTATED))
        if not len(marked):
            continue
        first = steps[marked[np.argmin(steps["iteration"][marked])]]
        linked = mine & (steps["source"] == Source.LINKED)
        linked &= steps["segment"] < first["segment"]
        if not linked.any():
            continue
        kept &= ~linked
        early = (events["rank"] == rank) & (events["segment"] < first["segment"])
        events["iteration"][early] = first["iteration"]
        partial |= early
        own = [n for n, s in enumerate(record.segments) if s.rank == rank]
        continued[[n for n in own[1:] if n <= first["segment"]]] = True
    if record.meta.every > 1:
        # the first step was recorded in part
        events = events[~partial]
    return replace(record, steps=steps[kept], events=events, continued=continued)


def number_early_calls(record: Record) -> Record:
    """Assign calls recorded before the first step marker to the first step.

    A window may be written before its first step has ended.
    """
    events = record.events.copy()
    for rank in record.ranks:
        mine = events["rank"] == rank
        when = events["iteration"][mine]
        ended = record.steps["iteration"][record.steps["rank"] == rank]
        marked = np.concatenate([when[when >= 0], ended])
        if len(marked):
            events["iteration"][mine] = np.where(when < 0, marked.min(), when)
    return replace(record, events=events)


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
        mine = exchanged & (record.events["rank"] == rank)
        numbers, calls = np.unique(record.events["iteration"][mine], return_counts=True)
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

"""Combine step markers of the program with inferred steps, and classify steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from moetraffic.trace.model import ALL_TO_ALL, ROUTING, UNKNOWN_TIME, Bool
from moetraffic.trace.segments.record import RANK_STEP, Record

from .calls import Calls
from .period import NumberedSteps

MOST = 0.5  # minimum share of steps with a backward for classifying the others


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


def steps_bare(record: Record) -> bool:
    """Return whether the marked steps lack losses, token counts and kinds."""
    steps = record.steps
    return bool(
        np.isnan(steps["loss"]).all()
        and (steps["tokens"] < 0).all()
        and (steps["kind"] == "train").all()
    )


def hide_evaluations(record: Record, numbered: Mapping[int, NumberedSteps]) -> bool:
    """Return whether the marked steps contain unmarked, inferred evaluations.

    An optimizer marks the steps that it takes: an evaluation in between is recorded as
    part of the step after it.
    """
    for rank, found in numbered.items():
        marked = int((record.steps["rank"] == rank).sum())
        evaluated = found.kinds.count("evaluation")
        if not evaluated or len(found.kinds) - evaluated != marked:
            return False
    return True


def infer_kinds(record: Record) -> Record:
    """Classify marked training steps without a backward as evaluation or skipped.

    In a run whose steps have backward calls, a step without one is an evaluation if it
    has all-to-alls or routings, and was skipped if it has no call at all.
    """
    steps = record.steps.copy()
    when = steps["iteration"]

    def with_calls(mask: Bool | slice) -> Bool:
        return np.isin(when, record.events["iteration"][mask])

    exchanged = [s.operation in (ALL_TO_ALL, ROUTING) for s in record.sites]
    backward = with_calls(
        record.site_mask([s.direction != "forward" for s in record.sites])
    )
    trained = len(np.unique(when[backward]))
    if not trained or trained < MOST * len(np.unique(when)):
        return record
    lacking = (steps["kind"] == "train") & ~backward
    steps["kind"][lacking & with_calls(record.site_mask(exchanged))] = "evaluation"
    steps["kind"][lacking & ~with_calls(slice(None))] = "skipped"
    return replace(record, steps=steps)


def with_inferred_steps(
    record: Record, every: Sequence[Calls], numbered: Mapping[int, NumberedSteps]
) -> Record:
    """Assign inferred step numbers to calls, and list the complete steps."""
    events, rows = record.events.copy(), []
    continued = record.continued.copy()
    for calls in every:
        found, segment = numbered[calls.rank], calls.table["segment"]
        step = found.step
        events["iteration"][calls.place] = step
        first = np.flatnonzero(np.diff(segment, prepend=-1))
        for at in first.tolist():
            continued[segment[at]] = at > 0 and step[at] == step[at - 1]
        # steps never decrease
        ends = np.searchsorted(step, np.arange(len(found.whole) + 1))
        for number, whole in enumerate(found.whole):
            mine = calls.table[ends[number] : ends[number + 1]]
            if whole and len(mine):
                times = np.concatenate([mine["issue"], mine["end"]])
                times = times[times != UNKNOWN_TIME]
                span = (times.min(), times.max()) if len(times) else (UNKNOWN_TIME,) * 2
                kind = found.kinds[number]
                last = mine["segment"][-1]
                rows.append((number, np.nan, -1, *span, kind, calls.rank, last))
    return replace(
        record, events=events, steps=np.array(rows, RANK_STEP), continued=continued
    )

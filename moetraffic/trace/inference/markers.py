"""The steps of segments: as they were marked, and as they were found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from moetraffic.trace.model import ALL_TO_ALL, ROUTING, UNKNOWN_TIME, Int64
from moetraffic.trace.segments.calls import Calls
from moetraffic.trace.segments.segment import STEP, Segment

from .numbering import Numbered

MOST = 0.5  # of the steps must train for others to be told by what they lack


def filled(segments: Sequence[Segment]) -> list[Segment]:
    """Number the calls of windows that were written before the first step ended.

    They belong to the first step that their rank marked.
    """
    first: dict[int, int] = {}
    for segment in segments:
        marked = segment.events["iteration"][segment.events["iteration"] >= 0]
        for steps in (marked, segment.steps["iteration"]):
            if len(steps):
                rank, least = segment.rank, int(steps.min())
                first[rank] = min(first.get(rank, least), least)
    out = []
    for segment in segments:
        early = segment.events["iteration"] < 0
        if segment.rank in first and early.any():
            events = segment.events.copy()
            events["iteration"][early] = first[segment.rank]
            segment = replace(segment, events=events)
        out.append(segment)
    return out


def untold(segments: Sequence[Segment]) -> bool:
    """Whether nobody said more of the steps than where they end."""
    return all(
        bool(np.isnan(s.steps["loss"]).all() and (s.steps["tokens"] < 0).all())
        and set(s.kinds) <= {"train"}
        for s in segments
    )


def hide_evaluations(
    segments: Sequence[Segment], numbered: Mapping[int, Numbered]
) -> bool:
    """Whether marked steps hold evaluations that the calls tell from training.

    An optimizer marks the steps that it takes: what was evaluated in between stands in
    the step after it.
    """
    for rank, found in numbered.items():
        marked = sum(len(s.steps) for s in segments if s.rank == rank)
        evaluated = found.kinds.count("evaluation")
        if not evaluated or len(found.kinds) - evaluated != marked:
            return False
    return True


def with_kinds(segments: Sequence[Segment]) -> list[Segment]:
    """Tell what marked steps are that were not said to be anything but training.

    In a run whose steps have backward calls, one that has none is an evaluation if it
    has all-to-alls or routings, and was skipped if it has no call at all.

    Parameters
    ----------
    segments
        Of all ranks.
    """
    called, forward, backward = (
        _steps_with(segments, test)
        for test in (
            lambda site: True,
            lambda site: site.operation in (ALL_TO_ALL, ROUTING),
            lambda site: site.direction != "forward",
        )
    )
    ended = {int(i) for s in segments for i in s.steps["iteration"]}
    if not backward or len(backward & ended) < MOST * len(ended):
        return list(segments)
    changed = []
    for segment in segments:
        kinds = []
        for step, kind in zip(
            segment.steps["iteration"].tolist(), segment.kinds, strict=True
        ):
            if kind == "train" and step not in backward:
                if step in forward:
                    kind = "evaluation"
                elif step not in called:
                    kind = "skipped"
            kinds.append(kind)
        changed.append(replace(segment, kinds=tuple(kinds)))
    return changed


def _steps_with(segments: Sequence[Segment], test: Any) -> set[int]:
    """The steps in which any rank has a call whose site passes a test."""
    found: set[int] = set()
    for segment in segments:
        passing = np.array([test(s) for s in segment.sites], bool)
        if len(segment.events) and passing.any():
            here = passing[segment.events["site"]]
            found.update(np.unique(segment.events["iteration"][here]).tolist())
    return found


def stepped(
    segment: Segment, calls: Calls, steps: Numbered, number: int, last: int
) -> tuple[Segment, int]:
    """Put found steps into a segment, and rows for those that end in it.

    Parameters
    ----------
    segment
        The ``number``-th of its rank.
    calls, steps
        All calls of the rank, and the step of each.
    number
        See ``segment``.
    last
        The step with which the segment before ended, -1 for none.

    Returns
    -------
    Segment, int
        And the step with which it ends.
    """
    here = calls.segment == number
    events = segment.events.copy()
    events["iteration"] = steps.step[here]
    rows, kinds = [], []
    continued = bool(len(events)) and number > 0 and int(events["iteration"][0]) == last
    for step in np.unique(events["iteration"]).tolist():
        mine = np.flatnonzero(steps.step == step)
        ends_here = calls.segment[mine[-1]] == number
        if not ends_here or not steps.whole[step]:
            continue
        rows.append((step, np.nan, -1, *_span(calls.table[mine])))
        kinds.append(steps.kinds[step])
    if len(events):
        last = int(events["iteration"][-1])
    new = replace(
        segment,
        events=events,
        steps=np.array(rows, STEP),
        kinds=tuple(kinds),
        continued=continued,
    )
    return new, last


def _span(table: Any) -> tuple[int, int]:
    """When the first of some calls was made, and the last of them ended."""
    issued = table["issue"][table["issue"] != UNKNOWN_TIME]
    ended = table["end"][table["end"] != UNKNOWN_TIME]
    if not len(issued) and not len(ended):
        return UNKNOWN_TIME, UNKNOWN_TIME
    every: Int64 = np.concatenate([issued, ended])
    return int(every.min()), int(every.max())

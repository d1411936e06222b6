"""Consistency rules of a single segment, on which merging relies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moetraffic.trace.consistency import clocks_valid, placements_valid
from moetraffic.trace.model import (
    ALL_TO_ALL,
    MOST_BYTES,
    MOST_ITERATIONS,
    MOST_ROW_BYTES,
    ROUTING,
    STEP_KINDS,
)

if TYPE_CHECKING:
    from .segment import Segment

MOST_RANKS = 1 << 24


def contradiction(segment: Segment) -> str:
    """Describe the first consistency rule that a segment violates; "" for none.

    Rules: indices lie within the arrays that they index; a rank is a member of its
    groups; sums of iterations, bytes and times do not overflow; a step has a kind, and
    occurs once (once per rank for virtual ranks).
    """
    world = segment.meta.world
    if not (0 <= segment.rank < world <= MOST_RANKS and segment.index >= 0):
        return f"it is window {segment.index} of rank {segment.rank} of {world}"
    if broken := _groups(segment) or _sites(segment):
        return broken
    if segment.shards:
        return _shards(segment) or _placements(segment)
    return _events(segment) or _steps(segment) or _placements(segment)


def _groups(segment: Segment) -> str:
    for group in segment.groups:
        ranks = set(group.ranks)
        if not group.ranks or len(ranks) < len(group.ranks):
            return f"a group has the ranks {group.ranks[:8]}"
        if min(ranks) < 0 or max(ranks) >= segment.meta.world:
            return f"a group has ranks up to {max(ranks)} of {segment.meta.world}"
        if not segment.shards and segment.rank not in ranks:
            return f"rank {segment.rank} is no member of one of its groups"
    return ""


def _sites(segment: Segment) -> str:
    for site in segment.sites:
        if not 0 <= site.group < len(segment.groups):
            return f"a site is of group {site.group}"
        if not (0 <= site.row_bytes <= MOST_ROW_BYTES and site.experts >= 0):
            return f"a site has {site.experts} experts and rows of {site.row_bytes}"
    return ""


def _events(segment: Segment) -> str:
    """Check each event's site, iteration and payload; "" if they are valid."""
    events = segment.events
    if not len(events):
        return ""
    number, when = events["site"], events["iteration"]
    if number.min() < 0 or number.max() >= len(segment.sites):
        return "an event is of a site that is not there"
    if when.min() < -1 or when.max() >= MOST_ITERATIONS:
        return f"events have iterations from {when.min()} to {when.max()}"
    if not np.isin(events["transposed"], (0, 1)).all():
        return "an event is neither transposed nor not"
    for at in np.unique(number).tolist():
        site = segment.sites[at]
        payload = events["payload"][number == at]
        if site.operation == ROUTING:
            rows = len(segment.demand.get(site.experts, ()))
        elif site.operation == ALL_TO_ALL:
            rows = len(segment.splits.get(len(segment.groups[site.group].ranks), ()))
        else:
            if payload.min() < -1 or payload.max() > MOST_BYTES:
                return f"a {site.operation} has {payload.max()} bytes"
            continue
        if payload.min() < 0 or payload.max() >= rows:
            return f"an event has row {payload.max()} of {rows}"
    return ""


def _steps(segment: Segment) -> str:
    when = segment.steps["iteration"]
    if not set(segment.kinds) <= set(STEP_KINDS):
        return f"kinds of steps {sorted(set(segment.kinds))[:5]}"
    if len(when) and (when.min() < 0 or when.max() >= MOST_ITERATIONS):
        return f"steps are iterations from {when.min()} to {when.max()}"
    if len(np.unique(when)) < len(when):
        return "an iteration is there twice"
    return ""


def _shards(segment: Segment) -> str:
    """Check the segment of a virtual run: each routing and step has a row per rank."""
    shards, rows = segment.shards, [len(panel) for panel in segment.demand.values()]
    if shards != segment.meta.world or len(segment.sites) % 2:
        return f"it stands for {shards} of {segment.meta.world} ranks"
    first, sites = segment.events["payload"], segment.events["site"]
    if len(first) and (
        len(rows) != 1
        or not 0 <= first.min() <= first.max() <= rows[0] - shards
        or not 0 <= sites.min() <= sites.max() < len(segment.sites)
    ):
        return "a routing has not a row a rank"
    if len(segment.steps) % shards:
        return f"{len(segment.steps)} steps are not a row a rank"
    when = segment.steps["iteration"][::shards]
    every = np.concatenate([when, segment.events["iteration"]])
    if len(every) and (every.min() < -1 or every.max() >= MOST_ITERATIONS):
        return f"iterations are from {every.min()} to {every.max()}"
    if not set(segment.kinds) <= set(STEP_KINDS):
        return f"kinds of steps {sorted(set(segment.kinds))[:5]}"
    return ""


def _placements(segment: Segment) -> str:
    if not placements_valid(segment.placements, segment.groups):
        return "an expert is placed twice, or on a rank that is not in its group"
    if not clocks_valid(segment.clocks, segment.meta.world):
        return "a clock is of no rank, or a hundred years off"
    return ""

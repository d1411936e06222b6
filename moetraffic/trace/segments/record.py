"""Record of a run: events and steps of all ranks' segments in common tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Bool
from moetraffic.trace.model import PLACEMENT, Group, Meta, Site, SiteNumbers

from .segment import EVENT, STEP, Segment

Table = npt.NDArray[Any]

RANK_EVENT = np.dtype(
    [
        *((name, EVENT[name]) for name in EVENT.names or ()),
        ("rank", "<i4"),
        ("member", "<i4"),  # group rank
        ("segment", "<i4"),
        ("occurrence", "<i8"),
    ]
)
RANK_STEP = np.dtype(
    [
        *((name, STEP[name]) for name in STEP.names or ()),
        ("kind", "U16"),
        ("rank", "<i4"),
        ("segment", "<i4"),
    ]
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Record:
    """Events and steps of all ranks, with common group and site numbers.

    Sites that differ only in their sources are one, with the weakest of them.  They
    have no call index yet: the calls of a site in an iteration are counted when
    occurrences are assembled.
    """

    meta: Meta  # of the first segment
    segments: Sequence[Segment]  # by rank, and by index within a rank
    groups: tuple[Group, ...]
    sites: tuple[Site, ...]
    events: Table  # [n] RANK_EVENT, by segment; ``site`` indexes ``sites``
    steps: Table  # [s] RANK_STEP
    placements: Table  # [p] PLACEMENT
    continued: Bool  # by segment: its first iteration began in the previous one

    @property
    def ranks(self) -> list[int]:
        """Ranks that wrote segments, in ascending order."""
        return sorted({s.rank for s in self.segments})

    def site_mask(self, wanted: Sequence[object]) -> Bool:
        """Return a mask of the events whose site is true in ``wanted``, ``[n]``."""
        by_site = np.array([bool(w) for w in wanted], bool)
        return np.asarray(by_site[self.events["site"]], bool)


def gather_record(segments: Sequence[Segment]) -> Record:
    """Join the segments of all ranks; equal groups and equal sites are merged.

    There is at least one, sorted by rank, and by index within a rank.
    """
    groups = sorted(
        {g for segment in segments for g in segment.groups},
        key=lambda g: (g.kind, g.ranks),
    )
    numbers = {group: number for number, group in enumerate(groups)}
    sites = SiteNumbers()
    events, steps = [np.zeros(0, RANK_EVENT)], [np.zeros(0, RANK_STEP)]
    placements = [np.zeros(0, PLACEMENT)]
    for number, segment in enumerate(segments):
        group_of = np.array([numbers[g] for g in segment.groups], np.int64)
        common = [replace(s, group=int(group_of[s.group])) for s in segment.sites]
        site_of = np.array([sites.add(s) for s in common], np.int64)
        members = [groups[s.group].ranks.index(segment.rank) for s in common]
        local = segment.events["site"]
        rows = _with_source(segment.events, RANK_EVENT, segment.rank, number)
        rows["site"] = site_of[local]
        rows["member"] = np.array(members, np.int64)[local]
        events.append(rows)
        rows = _with_source(segment.steps, RANK_STEP, segment.rank, number)
        rows["kind"] = segment.kinds
        steps.append(rows)
        rows = segment.placements.copy()
        rows["group"] = group_of[rows["group"]]
        placements.append(rows)
    return Record(
        meta=segments[0].meta,
        segments=segments,
        groups=tuple(groups),
        sites=tuple(sites.sites),
        events=np.concatenate(events),
        steps=np.concatenate(steps),
        placements=np.unique(np.concatenate(placements)),
        continued=np.array([s.continued for s in segments], bool),
    )


def _with_source(rows: Table, dtype: Any, rank: int, segment: int) -> Table:
    """Copy the rows of a segment, with the rank and number of the segment."""
    out = np.zeros(len(rows), dtype)
    for name in rows.dtype.names or ():
        out[name] = rows[name]
    out["rank"], out["segment"] = rank, segment
    return out

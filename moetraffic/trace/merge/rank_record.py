"""Record of one rank, with tables of calls and steps, and the record of all ranks.

The log of a captured rank (:mod:`.rank_log`) and imported files
(:mod:`moetraffic.interop`) become a :class:`RankRecord`; merging needs nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Bool
from moetraffic.trace.choices import ExpertIds
from moetraffic.trace.model import CLOCK, PLACEMENT, Group, Meta, Site, SiteNumbers

Table = npt.NDArray[Any]

CALL = np.dtype(
    [
        ("iteration", "<i8"),  # -1 if the end of the step is unknown
        ("site", "<i4"),  # index into the record's own sites
        ("sequence", "<i8"),  # n-th collective of its group on this rank, -1 for none
        ("issue", "<i8"),  # ns, the rank's clock
        ("start", "<i8"),
        ("end", "<i8"),
        ("payload", "<i8"),  # row of splits or demand; bytes for other collectives
        ("transposed", "|u1"),  # 1: the row's send and receive are swapped
        ("thread", "<i4"),  # number of the thread, in the order of first calls
        ("grad", "|i1"),  # 1: autograd recorded the call; 0: it did not; -1: unknown
        ("link", "<i8"),  # equal for a forward call and its backward; -1: unknown
        # of the calling module: twice its number from 1 on, + 1 in every other call of
        # it; 0: unknown
        ("module_call", "<i4"),
        ("evaluates", "|u1"),  # 1: autograd does not record, 2: the module evaluates
    ]
)

STEP = np.dtype(
    [
        ("iteration", "<i8"),
        ("loss", "<f8"),
        ("tokens", "<i8"),
        ("start", "<i8"),
        ("end", "<i8"),
        ("source", "|u1"),  # Source of the step's boundaries and kind
        ("kind", "U16"),
    ]
)

MEMBER_CALL = np.dtype(
    [
        *((name, CALL[name]) for name in CALL.names or ()),
        ("rank", "<i4"),
        ("member", "<i4"),  # group rank
        ("occurrence", "<i8"),
    ]
)
RANK_STEP = np.dtype([*((n, STEP[n]) for n in STEP.names or ()), ("rank", "<i4")])


@dataclass(frozen=True, kw_only=True, slots=True)
class CallingModule:
    """Module of a model that makes all-to-alls."""

    name: str = ""  # path in its model ("decoder.layers.3.mlp")
    model: int = -1  # number of the outermost module in its process
    order: tuple[int, ...] = ()  # index of each module of the path among its siblings
    stage: int = -1  # pipeline stage of the model, -1: unknown


@dataclass(frozen=True, kw_only=True, eq=False)
class RankRecord:
    """Calls and steps of one rank, and how its recording ended.

    Negative bytes and counts are unknown; of a capture only dropped copies may be.
    """

    rank: int
    meta: Meta
    groups: tuple[Group, ...]
    sites: tuple[Site, ...]  # without slots: merging counts them
    calls: Table  # [n] CALL, in the order of the calls
    steps: Table  # [s] STEP
    splits: Mapping[int, npt.NDArray[Any]] = field(default_factory=dict)
    """By group size W: ``[m, 2, W]`` bytes sent to and received from each member."""
    demand: Mapping[int, npt.NDArray[Any]] = field(default_factory=dict)
    """By experts E: ``[m, 2, E]`` copies routed, of these dropped (< 0: unknown)."""
    chosen: Mapping[int, ExpertIds] = field(default_factory=dict)
    """By experts E: ``[m, S, k]`` expert ids of sampled tokens, a row for each of the
    demand; absent where no tokens are sampled."""
    group_names: tuple[str, ...] = ()  # the same on all ranks of a group; (): unnamed
    modules: tuple[CallingModule, ...] = ()
    placements: Table = field(default_factory=lambda: np.zeros(0, PLACEMENT))
    placed: Mapping[int, Sequence[int]] | None = None
    """Group rank of each expert by layer, contiguous for other layers of routings;
    None: only ``placements`` are known."""
    clocks: Table = field(default_factory=lambda: np.zeros(0, CLOCK))
    node: str = ""
    gaps: tuple[int, ...] = ()  # calls before which others were lost, by position
    closed: bool = True  # the rank ended its recording itself
    ended: str = ""  # reason of an early end ("interrupted by SIGINT")
    lost_steps: int = 0  # ended steps that are not in the record
    lost_calls: int = 0  # calls that could not be written
    stopped_at: int = -1  # first iteration after the maximum size was reached
    omitted: Mapping[str, int] = field(default_factory=dict)  # records by kind
    reasons: Mapping[str, str] = field(default_factory=dict)  # of the first of a kind
    recording: bool = False  # the rank still records
    capture: str = ""  # the same on all ranks of a capture; "": unknown
    routed_k: int = 0  # experts per token of all expert ids; 0: unknown, -1: differ
    damage: str = ""  # where the log is damaged, after which records are lost


@dataclass(frozen=True, kw_only=True, eq=False)
class Record:
    """Calls and steps of all ranks, with common group and site numbers.

    Sites that differ only in their sources are one, with the weakest of them.  They
    have no call index yet: the calls of a site in an iteration are counted when
    occurrences are assembled.
    """

    meta: Meta  # of the first rank
    ranks: Mapping[int, RankRecord]  # ascending, without their calls and steps
    groups: tuple[Group, ...]
    sites: tuple[Site, ...]
    calls: Table  # [n] MEMBER_CALL, by rank; ``site`` indexes ``sites``
    steps: Table  # [s] RANK_STEP
    placements: Table  # [p] PLACEMENT, that imported files state
    after_gap: Bool  # [n] calls were lost before this one

    def site_mask(self, wanted: Sequence[object]) -> Bool:
        """Return a mask of the calls whose site is true in ``wanted``, ``[n]``."""
        by_site = np.array([bool(w) for w in wanted], bool)
        return np.asarray(by_site[self.calls["site"]], bool)

    @cached_property
    def calls_of(self) -> dict[int, slice]:
        """Range of the calls of each rank."""
        edges = np.searchsorted(self.calls["rank"], [*self.ranks, self.meta.world])
        ranges = map(slice, edges[:-1].tolist(), edges[1:].tolist())
        return dict(zip(self.ranks, ranges, strict=True))


def join_ranks(records: Sequence[RankRecord]) -> Record:
    """Join the records of all ranks; equal groups and equal sites are merged.

    There is at least one, sorted by rank, and one of each rank at most.
    """
    groups = sorted(
        {g for record in records for g in record.groups},
        key=lambda g: (g.kind, g.ranks, g.number),
    )
    numbers = {group: number for number, group in enumerate(groups)}
    sites = SiteNumbers()
    calls = np.zeros(sum(len(r.calls) for r in records), MEMBER_CALL)
    steps = np.zeros(sum(len(r.steps) for r in records), RANK_STEP)
    after_gap = np.zeros(len(calls), bool)
    placements = [np.zeros(0, PLACEMENT)]
    call = step = 0
    for record in records:
        group_of = np.array([numbers[g] for g in record.groups], np.int64)
        common = [replace(s, group=int(group_of[s.group])) for s in record.sites]
        site_of = np.array([sites.add(s) for s in common], np.int64)
        members = [groups[s.group].ranks.index(record.rank) for s in common]
        rows = calls[call : call + len(record.calls)]
        for name in CALL.names or ():
            rows[name] = record.calls[name]
        rows["site"] = site_of[record.calls["site"]]
        rows["member"] = np.array(members, np.int64)[record.calls["site"]]
        rows["rank"] = record.rank
        after_gap[[call + gap for gap in record.gaps if gap < len(rows)]] = True
        ended = steps[step : step + len(record.steps)]
        for name in STEP.names or ():
            ended[name] = record.steps[name]
        ended["rank"] = record.rank
        held = record.placements.copy()
        held["group"] = group_of[held["group"]]
        placements.append(held)
        call, step = call + len(rows), step + len(ended)
    none, no_steps = np.zeros(0, CALL), np.zeros(0, STEP)
    return Record(
        meta=records[0].meta,
        ranks={r.rank: replace(r, calls=none, steps=no_steps) for r in records},
        groups=tuple(groups),
        sites=tuple(sites.sites),
        calls=calls,
        steps=steps,
        placements=np.unique(np.concatenate(placements)),
        after_gap=after_gap,
    )


def no_record(rank: int, meta: Meta, damage: str) -> RankRecord:
    """Build the record of a rank whose log cannot be read."""
    return RankRecord(
        rank=rank,
        meta=meta,
        groups=(),
        sites=(),
        calls=np.zeros(0, CALL),
        steps=np.zeros(0, STEP),
        damage=damage,
    )


def narrow(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert integers to the smallest of int16, int32 and int64 that holds all."""
    for dtype in (np.int16, np.int32):
        limits = np.iinfo(dtype)
        if limits.min <= values.min(initial=0) and values.max(initial=0) <= limits.max:
            return values.astype(dtype, copy=False)
    return values.astype(np.int64, copy=False)

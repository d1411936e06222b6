"""Find the schedule of a run that nobody annotated: its steps, layers and phases.

Step 1 numbers the steps where they were not marked (``numbering``, ``period``).
Step 2 tells dispatches, combines, their gradients and what goes with them apart, and
which layer each belongs to (``programs``, ``roles``, ``gradients``, ``names``).
Step 3 binds routings that a router reported by itself to the group of their layer.
What was told stays as it was; what cannot be told stays without a name, and the meta's
``schedule`` says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from moetraffic.trace.model import ALL_TO_ALL, PLACEMENT, ROUTING, Group, Site
from moetraffic.trace.segments.calls import Calls, gather_calls, is_exchange
from moetraffic.trace.segments.segment import Segment

from . import markers
from .names import Naming, find_names
from .numbering import Numbered, number_steps

ROUTER = "router"
"""Label of a routing that a hook on the router reported, not the program itself."""

LONGEST = 2000  # characters of what is said


def find_schedule(segments: Sequence[Segment]) -> list[Segment]:
    """Number unmarked steps, and name all-to-alls that carry no phase.

    Parameters
    ----------
    segments
        Of all ranks, by rank, and by index within a rank.

    Returns
    -------
    list of Segment
        As many, in the same order, with the same events in the same order.
    """
    if not segments or segments[0].shards:
        return list(segments)
    segments = markers.filled(segments)
    by_rank: dict[int, list[Segment]] = {}
    for segment in segments:
        by_rank.setdefault(segment.rank, []).append(segment)
    marked = not any((s.events["iteration"] < 0).any() for s in segments)
    sites = [s for segment in segments for s in segment.sites]
    if marked and not any(_unnamed(s) or _unbound(s) for s in sites):
        return markers.with_kinds(segments)
    every = [gather_calls(mine) for mine in by_rank.values()]
    numbered: Mapping[int, Numbered] | None = None
    if not marked or markers.untold(segments):
        numbered = number_steps(every)
    if marked and (
        numbered is None or not markers.hide_evaluations(segments, numbered)
    ):
        numbered = None
    said: list[str] = []
    found = numbered is not None
    if numbered is not None:
        said.append(_steps_found(numbered))
    elif marked:
        numbered = _as_marked(every)
    else:
        said.append("no step could be told from the order of the calls")
        numbered = _one_step(every)
    naming = find_names(every, numbered, mixture=_has_experts(segments))
    said += _names_found(every, naming)
    changed: dict[tuple[int, int], Segment] = {}
    for calls in every:
        writer, last = _Writer(calls, naming), -1
        for number, segment in enumerate(by_rank[calls.rank]):
            new = writer.named(number, segment)
            if found:
                steps = numbered[calls.rank]
                new, last = markers.stepped(new, calls, steps, number, last)
            changed[segment.rank, segment.index] = new
    words = "; ".join(w for w in said if w)[:LONGEST]
    out = [changed[s.rank, s.index] for s in segments]
    if not found and marked:
        out = markers.with_kinds(out)
    return [replace(s, meta=replace(s.meta, schedule=words)) for s in out]


def _unnamed(site: Site) -> bool:
    return site.operation == ALL_TO_ALL and not site.phase and not site.label


def _unbound(site: Site) -> bool:
    return site.operation == ROUTING and site.label == ROUTER


def _has_experts(segments: Sequence[Segment]) -> bool:
    meta = segments[0].meta
    routed = any(s.operation == ROUTING for x in segments for s in x.sites)
    return bool(meta.experts or meta.workload or routed)


def _as_marked(every: Sequence[Calls]) -> dict[int, Numbered]:
    """The steps as they were marked."""
    return {
        c.rank: Numbered(step=c.table["iteration"].astype(np.int64), kinds=(), whole=())
        for c in every
    }


def _one_step(every: Sequence[Calls]) -> dict[int, Numbered]:
    return {
        c.rank: Numbered(
            step=np.zeros(len(c.table), np.int64), kinds=("train",), whole=(False,)
        )
        for c in every
    }


def _steps_found(numbered: Mapping[int, Numbered]) -> str:
    kinds = max((n.kinds for n in numbered.values()), key=len)
    told = [f"{kinds.count(k)} {k}" for k in dict.fromkeys(kinds)]
    return f"steps found by the period of the calls: {', '.join(told)}"


def _names_found(every: Sequence[Calls], naming: Naming) -> list[str]:
    """What was named, and what was left without a name."""
    named = left = 0
    kinds: dict[str, None] = {}
    for calls in every:
        mine = naming.of_call[calls.rank]
        bare = is_exchange(calls) & calls.where([_unnamed(s) for s in calls.sites])
        named += int((mine[bare] >= 0).sum())
        left += int((mine[bare] < 0).sum())
        for number in np.unique(mine[mine >= 0]).tolist():
            phase, _, label = naming.names[number]
            kinds.setdefault(phase or label)
    said = []
    if named:
        said.append(
            f"{', '.join(kinds)} found by the order and bytes of the all-to-alls"
        )
    if left:
        said.append(
            f"{left} of {named + left} all-to-all calls are left without a name"
        )
    return said + list(naming.remarks)


@dataclass
class _Writer:
    """Gives the events of a rank their new sites."""

    calls: Calls
    naming: Naming

    def __post_init__(self) -> None:
        calls, mine = self.calls, self.naming.of_call[self.calls.rank]
        self._group_of_layer: dict[int, Group] = {}
        for site in calls.sites:
            if site.phase == "dispatch":
                self._group_of_layer.setdefault(site.layer, calls.groups[site.group])
        dispatched = np.array([n[0] == "dispatch" for n in self.naming.names], bool)
        for at in np.flatnonzero((mine >= 0) & dispatched[mine]).tolist():
            layer = self.naming.names[mine[at]][1]
            if layer not in self._group_of_layer:
                site = calls.sites[calls.table["site"][at]]
                self._group_of_layer[layer] = calls.groups[site.group]

    def named(self, number: int, segment: Segment) -> Segment:
        """A segment whose sites have their names."""
        names = self.naming.of_call[self.calls.rank][self.calls.segment == number]
        groups = list(segment.groups)
        pairs, at = np.unique(
            np.stack([segment.events["site"], names]), axis=1, return_inverse=True
        )
        sites: list[Site] = list(segment.sites)
        bound: dict[int, tuple[int, int]] = {}
        new = []
        for old, name in pairs.T.tolist():
            site = segment.sites[old]
            if name >= 0:
                phase, layer, label = self.naming.names[name]
                site = replace(site, phase=phase, layer=layer, label=label)
            elif _unbound(site):
                group = self._group_of_layer.get(site.layer)
                if group is not None and group != groups[site.group]:
                    if group not in groups:
                        groups.append(group)
                    bound[old] = (site.group, groups.index(group))
                    site = replace(site, group=groups.index(group))
            new.append(old if site == segment.sites[old] else len(sites))
            if site != segment.sites[old]:
                sites.append(site)
        events = segment.events.copy()
        if len(events):
            events["site"] = np.array(new, np.int64)[at.reshape(-1)]
        placements = segment.placements
        for old, (before, after) in bound.items():
            placements = _replaced(
                placements, segment.sites[old], before, after, groups
            )
        used = np.unique(events["site"])
        lookup = np.zeros(len(sites), np.int64)
        lookup[used] = np.arange(len(used))
        if len(events):
            events["site"] = lookup[events["site"]]
        return replace(
            segment,
            events=events,
            groups=tuple(groups),
            sites=tuple(sites[n] for n in used.tolist()),
            placements=placements,
        )


def _replaced(
    rows: Any, site: Site, before: int, after: int, groups: Sequence[Group]
) -> Any:
    """Placements with those of a layer on the group that its dispatch has.

    Contiguous ones are contiguous on the new group; told ones name group ranks.
    """
    experts = site.experts
    mine = (rows["group"] == before) & (rows["layer"] == site.layer)
    wide, ranks = groups[before].ranks, groups[after].ranks
    told = rows[mine]
    holders: list[int] = []
    if len(told) == experts:
        members = [wide.index(r) for r in told["rank"].tolist()]
        contiguous = [e * len(wide) // experts for e in range(experts)]
        if members != contiguous and max(members) < len(ranks):
            holders = members
    if not holders and experts % len(ranks) == 0:
        holders = [e * len(ranks) // experts for e in range(experts)]
    fresh = np.array(
        [(after, site.layer, e, 0, ranks[m], 0) for e, m in enumerate(holders)],
        PLACEMENT,
    )
    return np.concatenate([rows[~mine], fresh])

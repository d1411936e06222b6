"""Layers and groups of the routings that hooks on routers report.

A hook numbers a router's layer by its place in the model.  A program that annotates the
all-to-alls may number layers differently (dense layers count too): the annotation takes
precedence for all calls of that layer.  A hook does not know the group of a layer: it
is that of the layer's dispatch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.trace.merge.rank_record import Record
from moetraffic.trace.model import (
    ALL_TO_ALL,
    PLACEMENT,
    ROUTING,
    Group,
    Site,
    SiteNumbers,
    Source,
)

AGAIN = ("backward", "recompute")
ROUTED, ANNOTATED = 1, 2
ROUTER = "router"
"""Label of the routings that the hook on a router reads."""

UNMATCHED = (
    "the layers of routers could not be matched with the annotated layers: call the "
    "router inside capture.at(layer=...) as well"
)


def with_annotated_layers(record: Record) -> tuple[Record, str]:
    """Give calls in a router's layer the layer that its dispatch is annotated with.

    Evidence is a routing that the next all-to-all of its rank, exchanges of integers
    aside, follows with an annotated layer.  Routers are matched only if each layer of a
    rank has one annotation in all steps, and no two layers have the same.

    Returns the record, and a remark if the layers of a rank could not be matched.
    """
    role = np.array([_role(site) for site in record.sites], np.int64)
    if not {ROUTED, ANNOTATED} <= set(role.tolist()):
        return record, ""
    layers, remark = dict[int, Mapping[int, int]](), ""
    for rank in record.ranks:
        called = record.calls["site"][record.calls_of[rank]]
        matched = _matched(record.sites, role, called)
        if matched is None:
            remark = UNMATCHED
        else:
            layers[rank] = matched
    return with_router_layers(record, layers), remark


def with_router_layers(
    record: Record, layers: Mapping[int, Mapping[int, int]]
) -> Record:
    """Change the layers that hooks report: by rank, the layer by the reported one."""
    if not any(layers.values()):
        return record
    sites, calls = SiteNumbers(record.sites), record.calls.copy()
    moved = set[tuple[int, int, int]]()
    for rank, of_rank in layers.items():
        own = calls[record.calls_of[rank]]
        called = own["site"].copy()
        for number in np.unique(called).tolist():
            site = record.sites[number]
            layer = of_rank.get(site.layer, site.layer)
            if site.source != Source.LINKED or layer == site.layer:
                continue
            if site.operation == ROUTING:
                moved.add((site.group, site.layer, layer))
            own["site"][called == number] = sites.add(replace(site, layer=layer))
    placements, before = record.placements, record.placements
    for group, reported, layer in sorted(moved):
        given = (before["group"] == group) & (before["layer"] == reported)
        known = (placements["group"] == group) & (placements["layer"] == layer)
        if not known.any():  # else configured by the number of the annotation
            rows = before[given].copy()
            rows["layer"] = layer
            placements = np.concatenate([placements, rows])
    used = {
        (sites.sites[n].group, sites.sites[n].layer)
        for n in np.unique(calls["site"]).tolist()
        if sites.sites[n].operation == ROUTING
    }
    left = {(group, reported) for group, reported, _ in moved} - used
    pairs = zip(placements["group"].tolist(), placements["layer"].tolist(), strict=True)
    kept = np.array([pair not in left for pair in pairs], bool)
    return replace(
        record, calls=calls, sites=tuple(sites.sites), placements=placements[kept]
    )


def without_read_routings(record: Record) -> Record:
    """Remove a rank's reading of a router that the program's first report replaces.

    The hook of a layer's router reads the first call before it knows of the report.
    """
    calls, sites = record.calls, record.sites
    routed = np.flatnonzero(record.site_mask([s.operation == ROUTING for s in sites]))
    layer = np.array([s.layer for s in sites], np.int64)[calls["site"][routed]]
    keys = np.stack([calls["rank"][routed], layer])
    order = np.lexsort(keys[::-1])  # by rank and layer, in the order of the calls
    routed, keys = routed[order], keys[:, order]
    read = record.site_mask([s.label == ROUTER for s in sites])[routed]
    reported = np.flatnonzero(~read)
    _, first = np.unique(keys[:, reported], axis=1, return_index=True)
    after = reported[first]
    after = after[(after > 0) & (keys[:, after - 1] == keys[:, after]).all(axis=0)]
    removed = routed[after - 1]
    if not len(removed):
        return record
    after_gap = record.after_gap.copy()
    after_gap[removed + 1] |= after_gap[removed]  # at least the report follows
    return replace(
        record,
        calls=np.delete(calls, removed),
        after_gap=np.delete(after_gap, removed),
    )


def with_groups(record: Record) -> Record:
    """Assign routings whose group is unknown to the group of their layer's dispatch.

    A program may also report a group whose ranks are those of the dispatch's group.
    """
    if not any(site.operation == ROUTING for site in record.sites):
        return record
    sites, calls = SiteNumbers(record.sites), record.calls.copy()
    wide = record.placements
    placements, rebound = wide, np.zeros(len(wide), bool)
    for rank in record.ranks:
        own = calls[record.calls_of[rank]]
        called = own["site"].copy()
        numbers, first = np.unique(called, return_index=True)
        used = [record.sites[n] for n in numbers[np.argsort(first)].tolist()]
        groups: dict[int, int] = {}
        for site in used:
            if site.phase == "dispatch":
                groups.setdefault(site.layer, site.group)
        for number in numbers.tolist():
            site = record.sites[number]
            group = groups.get(site.layer, site.group)
            same = record.groups[group].ranks == record.groups[site.group].ranks
            if site.operation != ROUTING or group == site.group:
                continue
            if not (same or _unbound(site, record)):
                continue
            placements = _rebound(placements, site, group, record.groups)
            rebound |= (wide["group"] == site.group) & (wide["layer"] == site.layer)
            new = sites.add(replace(site, group=group))
            own["site"][called == number] = new
            own["member"][called == number] = record.groups[group].ranks.index(rank)
    kept = np.ones(len(placements), bool)
    kept[: len(rebound)] = ~rebound
    return replace(
        record, calls=calls, sites=tuple(sites.sites), placements=placements[kept]
    )


def _unbound(site: Site, record: Record) -> bool:
    """Whether a routing may be of another group: a hook does not know the group.

    A program that reports a routing without a group reports it for all ranks; an
    imported file names them.
    """
    everyone = len(record.groups[site.group].ranks) == record.meta.world
    reported = everyone and record.meta.origin == "captured"
    return site.operation == ROUTING and (site.label == ROUTER or reported)


def _rebound(rows: Any, site: Site, after: int, groups: Sequence[Group]) -> Any:
    """Move the expert placement of a routing's layer to the group of its dispatch.

    A contiguous placement stays contiguous on the new group; others keep group ranks.
    """
    experts = site.experts
    wide, ranks = groups[site.group].ranks, groups[after].ranks
    before = (rows["group"] == site.group) & (rows["layer"] == site.layer)
    if ((rows["group"] == after) & (rows["layer"] == site.layer)).any():
        return rows
    holders: list[int] = []
    if before.sum() == experts:
        members = [wide.index(r) for r in rows["rank"][before].tolist()]
        contiguous = [e * len(wide) // experts for e in range(experts)]
        if members != contiguous and max(members) < len(ranks):
            holders = members
    if not holders and experts % len(ranks) == 0:
        holders = [e * len(ranks) // experts for e in range(experts)]
    fresh = [(after, site.layer, e, 0, ranks[m], 0) for e, m in enumerate(holders)]
    return np.concatenate([rows, np.array(fresh, PLACEMENT)])


def _role(site: Site) -> int:
    """Return what a call shows of the layers: ROUTED, ANNOTATED or 0."""
    if site.layer < 0 or site.direction in AGAIN:
        return 0
    linked = site.source == Source.LINKED
    if site.operation == ROUTING:
        return ROUTED if linked else 0
    return ANNOTATED if site.operation == ALL_TO_ALL and not linked else 0


def _matched(
    sites: Sequence[Site], role: Int64, called: Int64
) -> dict[int, int] | None:
    """Return the annotated layer by the layer of the hook, None if contradictory.

    ``called`` are the sites of a rank's calls in order, ``[n]``.
    """
    called = called[role[called] > 0]
    layer = np.array([site.layer for site in sites], np.int64)[called]
    follows = (role[called][:-1] == ROUTED) & (role[called][1:] == ANNOTATED)
    pairs = np.unique(np.stack([layer[:-1][follows], layer[1:][follows]]), axis=1)
    matched = dict(pairs.T.tolist())
    hooked = set(layer[role[called] != ANNOTATED].tolist())
    annotated = set(layer[role[called] == ANNOTATED].tolist())
    distinct = len(matched) == pairs.shape[1] == len(set(matched.values()))
    if distinct and not (hooked - matched.keys()) & set(matched.values()):
        return matched
    return {} if hooked <= annotated else None

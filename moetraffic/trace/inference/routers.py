"""Layers and groups of the routings that hooks on routers report.

A hook numbers a router's layer by its place in the model.  A program that annotates the
all-to-alls may number layers differently (dense layers count too): the annotation takes
precedence for all calls of that layer.  A hook does not know the group of a layer: it
is that of the layer's dispatch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from moetraffic.arrays import Bool, Int64
from moetraffic.trace.merge.rank_record import Record
from moetraffic.trace.model import ALL_TO_ALL, ROUTING, Site, SiteNumbers, Source

ROUTER = "router"
"""Label of the routings that the hook on a router reads."""

UNMATCHED = (
    "the layers of routers could not be matched with the annotated layers: call the "
    "router inside capture.at(layer=...) as well"
)


def with_sites(record: Record, change: Callable[[int, Site], Site]) -> Record:
    """Replace the sites of each rank's calls by ``change(rank, site)``."""
    sites, calls = SiteNumbers(record.sites), record.calls.copy()
    for rank, place in record.calls_of.items():
        own = calls[place]
        numbers, row = np.unique(own["site"], return_inverse=True)
        new = [change(rank, record.sites[number]) for number in numbers.tolist()]
        members = [record.groups[site.group].ranks.index(rank) for site in new]
        own["site"] = np.array([sites.add(site) for site in new], np.int64)[row]
        own["member"] = np.array(members, np.int64)[row]
    return replace(record, calls=calls, sites=tuple(sites.sites))


def with_annotated_layers(record: Record) -> tuple[Record, str]:
    """Give calls in a router's layer the layer that its dispatch is annotated with.

    Evidence is a routing that the next all-to-all of its rank follows with an annotated
    layer.  Routers are matched only if each layer of a rank has one annotation in all
    steps, and no two layers have the same.

    Returns the record, and a remark if the layers of a rank could not be matched.
    """
    sites = record.sites
    ahead = np.array(
        [s.layer >= 0 and s.direction in ("forward", "") for s in sites], bool
    )
    linked = np.array([s.source == Source.LINKED for s in sites], bool)
    operation = np.array([s.operation for s in sites], str)
    hooked = ahead & linked & (operation == ROUTING)
    stated = ahead & ~linked & (operation == ALL_TO_ALL)
    if not (hooked.any() and stated.any()):
        return record, ""
    layer_of = np.array([s.layer for s in sites], np.int64)
    layers, remark = dict[int, Mapping[int, int]](), ""
    for rank, place in record.calls_of.items():
        called = record.calls["site"][place]
        called = called[(hooked | stated)[called]]
        matched = _matched(layer_of[called], hooked[called])
        if matched is None:
            remark = UNMATCHED
        else:
            layers[rank] = matched
    return with_router_layers(record, layers), remark


def _matched(layer: Int64, hooked: Bool) -> dict[int, int] | None:
    """Return the annotated layer by the layer of the hook, None if contradictory.

    ``layer`` ``[n]`` are those of a rank's calls, ``hooked`` whether a hook reports it.
    """
    follows = hooked[:-1] & ~hooked[1:]
    pairs = np.unique(np.stack([layer[:-1][follows], layer[1:][follows]]), axis=1)
    matched = dict(pairs.T.tolist())
    reported, annotated = {*layer[hooked].tolist()}, {*layer[~hooked].tolist()}
    distinct = len(matched) == pairs.shape[1] == len({*matched.values()})
    if distinct and not (reported - matched.keys()) & {*matched.values()}:
        return matched
    return {} if reported <= annotated else None


def with_router_layers(
    record: Record, layers: Mapping[int, Mapping[int, int]]
) -> Record:
    """Change the layers that hooks report: by rank, the layer by the reported one."""

    def change(rank: int, site: Site) -> Site:
        if site.source != Source.LINKED:
            return site
        return replace(site, layer=layers.get(rank, {}).get(site.layer, site.layer))

    return with_sites(record, change) if any(layers.values()) else record


def without_read_routings(record: Record) -> Record:
    """Remove a rank's readings of a router whose routing the program reports itself.

    The hook of a layer's router reads the first call before it knows of the report.
    """
    calls, sites = record.calls, record.sites
    layer = np.array([s.layer for s in sites], np.int64)[calls["site"]]
    key = (calls["rank"].astype(np.int64) << 32) + layer
    routed = record.site_mask([s.operation == ROUTING for s in sites])
    read = routed & record.site_mask([s.label == ROUTER for s in sites])
    removed = np.flatnonzero(read & np.isin(key, key[routed & ~read]))
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

    A program that reports a routing without a group reports it for all ranks; it may
    also report a group whose ranks are those of the dispatch's group.
    """
    group_of: dict[tuple[int, int], int] = {}  # by rank and layer
    for rank, place in record.calls_of.items():
        numbers, first = np.unique(record.calls["site"][place], return_index=True)
        for number in numbers[np.argsort(first)].tolist():
            site = record.sites[number]
            if site.phase == "dispatch":
                group_of.setdefault((rank, site.layer), site.group)

    def change(rank: int, site: Site) -> Site:
        if site.operation != ROUTING:
            return site
        group = group_of.get((rank, site.layer), site.group)
        ranks = record.groups[site.group].ranks
        same = record.groups[group].ranks == ranks
        everyone = len(ranks) == record.meta.world and record.meta.origin == "captured"
        unbound = site.label == ROUTER or everyone
        return replace(site, group=group) if same or unbound else site

    return with_sites(record, change) if group_of else record

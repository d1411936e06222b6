"""Number the routers of MoE layers as the program annotates their all-to-alls.

A hook on a router numbers its layer by its place in the model, or by the order of
calls.  A program that annotates the all-to-alls may number layers differently (dense
layers count too): the annotation takes precedence for all calls of that layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from moetraffic.arrays import Int64
from moetraffic.trace.merge.rank_record import Record
from moetraffic.trace.model import ALL_TO_ALL, ROUTING, Site, SiteNumbers, Source

AGAIN = ("backward", "recompute")
ROUTED, ANNOTATED, HOOKED = 1, 2, 3
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

    Returns
    -------
    Record
        With the annotated layers; as given where they are not known.
    str
        Remark if the layers of a rank could not be matched, else "".
    """
    role = np.array([_role(site) for site in record.sites], np.int64)
    if not {ROUTED, ANNOTATED} <= set(role.tolist()):
        return record, ""
    sites, calls = SiteNumbers(record.sites), record.calls.copy()
    placements, moved, remark = record.placements, set[tuple[int, int, int]](), ""
    for rank in record.ranks:
        own = calls[record.calls_of[rank]]
        called = own["site"].copy()
        layers = _matched(record.sites, role, called)
        if layers is None:
            remark = UNMATCHED
            continue
        for number in np.unique(called).tolist():
            site = record.sites[number]
            layer = layers.get(site.layer, site.layer)
            if site.source != Source.LINKED or layer == site.layer:
                continue
            if site.operation == ROUTING:
                moved.add((site.group, site.layer, layer))
            new = sites.add(replace(site, layer=layer))
            own["site"][called == number] = new
    for group, before, after in sorted(moved):
        given = (record.placements["group"] == group) & (
            record.placements["layer"] == before
        )
        known = (placements["group"] == group) & (placements["layer"] == after)
        if not known.any():  # else configured by the number of the annotation
            rows = record.placements[given].copy()
            rows["layer"] = after
            placements = np.concatenate([placements, rows])
    used = {
        (sites.sites[n].group, sites.sites[n].layer)
        for n in np.unique(calls["site"]).tolist()
        if sites.sites[n].operation == ROUTING
    }
    left = {(g, b) for g, b, _ in moved} - used
    pairs = zip(placements["group"].tolist(), placements["layer"].tolist(), strict=True)
    kept = np.array([pair not in left for pair in pairs], bool)
    return replace(
        record,
        calls=calls,
        sites=tuple(sites.sites),
        placements=placements[kept],
    ), remark


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


def _role(site: Site) -> int:
    """Return what a call shows of the layers: ROUTED, ANNOTATED, HOOKED or 0."""
    if site.layer < 0 or site.direction in AGAIN:
        return 0
    linked = site.source == Source.LINKED
    if site.operation == ROUTING:
        return ROUTED if linked else 0
    if site.operation != ALL_TO_ALL:
        return 0
    if not linked:
        return ANNOTATED
    # counts and indices are exchanged before the dispatch
    return 0 if site.dtype.startswith(("int", "uint")) else HOOKED


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
    found = dict(pairs.T.tolist())
    hooked = set(layer[role[called] != ANNOTATED].tolist())
    annotated = set(layer[role[called] == ANNOTATED].tolist())
    distinct = len(found) == pairs.shape[1] == len(set(found.values()))
    if distinct and not (hooked - found.keys()) & set(found.values()):
        return found
    return {} if hooked <= annotated else None

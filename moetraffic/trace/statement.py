"""State the bytes of every site as briefly as they allow, and check them on the way.

The ranks' splits are put together to matrices.  What one rank says that it sent,
another must say that it received.  A layer's exchanges must be transposes of each
other, and follow its routing where nothing is padded.  A statement that holds in all
occurrences takes the place of the matrices.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moetraffic.errors import TraceError

from .assemble import Events, out_of_step
from .model import (
    ALL_TO_ALL,
    ROUTING,
    TRANSPOSED_PHASES,
    Bool,
    Int64,
    Site,
    WireForm,
)
from .panel import ArrayPanel
from .trace import Trace
from .wire import told_by_demand

FOLLOWS_DEMAND = ("dropped", "dropless")
"""Dispatch forms whose bytes follow the routing."""

Layer = tuple[int, int, int]  # group, layer, slot


def state_bytes(draft: Trace, events: Events) -> tuple[Trace, list[str]]:
    """Give every site the briefest true statement of its bytes.

    Parameters
    ----------
    draft
        The trace without bytes.
    events
        What the ranks recorded.

    Returns
    -------
    Trace
        With statements, and panels of what no statement tells.
    list of str
        Where the records contradict each other, a sentence each.
    """
    sites, wrong = list(draft.sites), out_of_step(events)
    stored: dict[str, list[Int64]] = {}
    dispatched: dict[Layer, tuple[Site, Int64, Int64]] = {}
    for number, site in enumerate(draft.sites):
        if site.operation == ROUTING:
            continue
        w = len(draft.groups[site.group].ranks)
        of = np.flatnonzero(draft.occurrences.site == number)
        whole = np.asarray(draft.present(of).all(axis=1), bool)
        if site.operation == ALL_TO_ALL:
            splits = events.by_member(number, w, events.sent_and_received(number, w))
            values, received = splits[:, :, 0], splits[:, :, 1].transpose(0, 2, 1)
            wrong += _unequal(draft, site, of, values, received, whole)
            if site.phase:
                when = draft.occurrences.iteration[of[whole]]
                wrong += _not_transposed(site, when, values[whole], dispatched)
                sites[number] = _following_demand(draft, site, of[whole], values[whole])
                if sites[number].wire == WireForm.DEMAND:
                    continue
                wrong += _not_following(draft, site)
        else:
            values = events.by_member(number, w, events.volumes(number))
        if whole.all() and len(values) and (values == values[0]).all():
            sites[number] = replace(
                site,
                wire=WireForm.CONSTANT,
                constant=tuple(values[0].ravel().tolist()),
                wire_checked=len(values),
            )
        else:
            sites[number] = replace(site, wire=WireForm.STORED)
            kind = "wire" if site.operation == ALL_TO_ALL else "volume"
            stored.setdefault(f"{kind}_{w}", []).append(values)
    panels = dict(draft.panels)
    panels |= {n: ArrayPanel(np.concatenate(parts)) for n, parts in stored.items()}
    trace = Trace(
        meta=draft.meta,
        groups=draft.groups,
        sites=sites,
        occurrences=draft.occurrences,
        panels=panels,
        steps=draft.steps,
        programs=draft.programs,
        placements=draft.placements,
        clocks=draft.clocks,
    )
    return trace, wrong


def _following_demand(
    draft: Trace, site: Site, occurrences: Int64, sent: Int64
) -> Site:
    """The site, told by its routing if its bytes are (demand - dropped) x row bytes."""
    # the backward of a layer follows the routing of its forward
    key = (site.group, site.layer, site.slot)
    routing = next((n for n, r in enumerate(draft.sites) if _routes(r, key)), -1)
    if routing < 0 or not len(occurrences):
        return site
    when = draft.occurrences.iteration[occurrences]
    try:
        routed = draft.occurrences_at(np.full(len(when), routing), when)
        told = told_by_demand(draft, site, routed)
    except TraceError:
        return site  # no placement, or no routing in one of the iterations
    if not np.array_equal(told, sent):
        return site
    return replace(
        site, wire=WireForm.DEMAND, routing=routing, wire_checked=len(occurrences)
    )


def _routes(site: Site, key: Layer) -> bool:
    return (
        site.operation == ROUTING
        and site.direction == "forward"
        and (site.group, site.layer, site.slot) == key
    )


def _not_following(draft: Trace, site: Site) -> list[str]:
    """Complain where a run that is known not to pad sends what nobody routed."""
    key = (site.group, site.layer, site.slot)
    seen = any(_routes(s, key) for s in draft.sites)
    if draft.meta.dispatch not in FOLLOWS_DEMAND or not seen:
        return []
    return [
        f"layer {site.layer}, {site.phase}, micro-batch {site.slot}: the bytes are not "
        f"(demand - dropped) x {site.row_bytes}, though dispatch is "
        f"{draft.meta.dispatch}"
    ]


def _not_transposed(
    site: Site,
    when: Int64,
    sent: Int64,
    dispatched: dict[Layer, tuple[Site, Int64, Int64]],
) -> list[str]:
    """Complain where an exchange is not its layer's dispatch, or that transposed."""
    key = (site.group, site.layer, site.slot)
    if site.phase == "dispatch" and site.direction == "forward":
        dispatched[key] = (site, when, sent)
        return []
    if key not in dispatched:
        return []
    first, then, rows = dispatched[key]
    both, mine, its = np.intersect1d(when, then, return_indices=True)
    turned = sent[mine]
    if site.phase in TRANSPOSED_PHASES:
        turned = turned.transpose(0, 2, 1)
    # in bytes, for rows may differ in shape; in rows, where the types differ
    scale, other = 1, 1
    if site.dtype != first.dtype:
        scale, other = max(1, site.row_bytes), max(1, first.row_bytes)
    differ = (turned * other != rows[its] * scale).any(axis=(1, 2))
    if not differ.any():
        return []
    return [
        f"layer {site.layer}, {site.phase}, micro-batch {site.slot}: it is not the "
        f"dispatch matrix in {int(differ.sum())} of {len(both)} iterations, the first "
        f"is {int(both[differ][0])}"
    ]


def _unequal(
    draft: Trace, site: Site, of: Int64, sent: Int64, received: Int64, whole: Bool
) -> list[str]:
    """Complain where a rank did not receive what another says that it sent."""
    wrong = (sent != received) & whole[:, None, None]
    if not wrong.any():
        return []
    ranks = draft.groups[site.group].ranks
    at, source, destination = (int(v[0]) for v in np.nonzero(wrong))
    return [
        f"iteration {draft.occurrences.iteration[of[at]]}, layer {site.layer}, "
        f"{site.phase or site.label or site.operation}: rank {ranks[source]} sent "
        f"{sent[at, source, destination]} bytes to rank {ranks[destination]}, which "
        f"received {received[at, source, destination]} ({int(wrong.sum())} such pairs)"
    ]

"""Infer the steps, layers and phases of a run that was not annotated.

1. Number the layers of routers as the program annotates their all-to-alls
   (``router_layers``).
2. Number the steps where the program did not mark them (``numbering``, ``period``), and
   combine them with the program's own step markers.
3. Classify all-to-alls as dispatches, combines and their gradients, and assign them to
   layers (``programs``, ``phases``, ``gradients``, ``names``).
4. Assign routings that a hook on a router reported to the group of their layer.

Annotations are kept.  The meta's ``schedule`` states what was inferred and what is
unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from moetraffic.arrays import Bool
from moetraffic.trace.merge.rank_record import RANK_STEP, Record
from moetraffic.trace.model import (
    ALL_TO_ALL,
    PLACEMENT,
    ROUTING,
    UNKNOWN_TIME,
    Group,
    Site,
    SiteNumbers,
    Source,
)

from .calls import Calls, gather_calls
from .evidence import linked_forward, recorded_by_autograd
from .names import Naming, find_names
from .numbering import number_steps
from .period import NumberedSteps
from .router_layers import ROUTER, with_annotated_layers, without_read_routings
from .step_markers import check_sampling, unmarked_steps

TRAINED = 0.5  # minimum share of steps with a backward for classifying the others
LONGEST = 2000  # longest text of the remarks, in characters


def infer_schedule(record: Record) -> Record:
    """Number unmarked steps and infer the phases of unannotated all-to-alls.

    The calls stay in the same order; the ``schedule`` of the metadata states what was
    inferred.
    """
    record = without_read_routings(check_sampling(record))
    record, unmatched = with_annotated_layers(record)
    marked = not (record.calls["iteration"] < 0).any()
    if marked and not (any(map(_unnamed, record.sites)) or _misplaced(record)):
        remarks = [unmarked_steps(record), unmatched]
        return _with_schedule(_infer_kinds(record), remarks)
    every = [gather_calls(record, rank) for rank in record.ranks]
    numbered: Mapping[int, NumberedSteps] | None = None
    if not marked or (_steps_bare(record) and record.meta.every == 1):
        numbered = number_steps(every)
    if marked and (numbered is None or not _hide_evaluations(record, numbered)):
        numbered = None
    inferred, remarks = numbered is not None, list[str]()
    if numbered is not None:
        kinds = max((n.kinds for n in numbered.values()), key=len)
        counts = [f"{kinds.count(k)} {k}" for k in dict.fromkeys(kinds)]
        remarks = [f"steps inferred from the period of the calls: {', '.join(counts)}"]
    else:
        remarks = [unmarked_steps(record)]
        # without markers, all calls form one step
        steps = [np.where(marked, c.table["iteration"], 0) for c in every]
        numbered = {
            c.rank: NumberedSteps(step=step.astype(np.int64), kinds=(), whole=())
            for c, step in zip(every, steps, strict=True)
        }
        if not marked:
            remarks = ["steps could not be inferred from the order of the calls"]
    meta = record.meta
    routed = any(s.operation == ROUTING for s in record.sites)
    mixture = bool(meta.experts or meta.workload or routed)
    known = inferred or marked
    naming = find_names(every, numbered, mixture=mixture, steps_known=known)
    remarks += [*_names_found(every, naming), unmatched]
    record = _with_names(record, every, naming)
    if inferred:
        record = _with_inferred_steps(record, every, numbered)
    elif marked:
        record = _infer_kinds(record)
    return _with_schedule(record, remarks)


def _with_schedule(record: Record, remarks: Sequence[str]) -> Record:
    """Set what was inferred, and what is unknown, in the metadata."""
    schedule = "; ".join(r for r in remarks if r)[:LONGEST]
    return replace(record, meta=replace(record.meta, schedule=schedule))


def _unnamed(site: Site) -> bool:
    return site.operation == ALL_TO_ALL and not site.phase and not site.label


def _unbound(site: Site, record: Record) -> bool:
    """Whether a routing may be of another group: a hook does not know the group.

    A program that reports a routing without a group reports it for all ranks; an
    imported file names them.
    """
    ranks, meta = record.groups[site.group].ranks, record.meta
    every = len(ranks) == meta.world and meta.origin == "captured"
    return site.operation == ROUTING and (site.label == ROUTER or every)


def _misplaced(record: Record) -> bool:
    """Whether a routing may be of another group than that of its layer's dispatch."""
    sites = record.sites
    group = {s.layer: s.group for s in sites if s.phase == "dispatch"}
    return any(
        _unbound(s, record)
        and (s.label == ROUTER or group.get(s.layer, s.group) != s.group)
        for s in sites
    )


def _names_found(every: Sequence[Calls], naming: Naming) -> list[str]:
    """Describe how many all-to-alls have an inferred phase, as remarks.

    Each member of a group counts for its share of a call.
    """
    named = left = 0.0
    kinds: dict[str, None] = {}
    for calls in every:
        mine = naming.of_call[calls.rank]
        bare = calls.exchange & calls.where([_unnamed(s) for s in calls.sites])
        share = np.array([1 / len(calls.groups[s.group].ranks) for s in calls.sites])
        shares = share[calls.table["site"]]
        named += float(shares[bare & (mine >= 0)].sum())
        left += float(shares[bare & (mine < 0)].sum())
        for number in np.unique(mine[mine >= 0]).tolist():
            phase, _, label = naming.names[number]
            kinds.setdefault(phase or label)
    remarks = []
    if named:
        remarks.append(
            f"{', '.join(kinds)} inferred from order and bytes of the all-to-alls"
        )
    if left:
        of = max(1, round(named + left))
        remarks.append(
            f"phase unknown for {max(1, round(left))} of {of} all-to-alls without "
            "annotation"
        )
    return remarks + list(naming.remarks)


def _with_names(record: Record, every: Sequence[Calls], naming: Naming) -> Record:
    """Assign inferred sites to calls, and routings to their layer's group."""
    sites = SiteNumbers(record.sites)
    table, placements = record.calls.copy(), record.placements
    numbers = {group: number for number, group in enumerate(record.groups)}
    rebound = np.zeros(len(placements), bool)
    for calls in every:
        names = naming.of_call[calls.rank]
        groups = _groups_of_layers(calls, naming)
        pairs, at = np.unique(
            np.stack([calls.table["site"], names]), axis=1, return_inverse=True
        )
        new = []
        for old, name in pairs.T.tolist():
            site = calls.sites[old]
            group = groups.get(site.layer)
            if name >= 0:
                phase, layer, label = naming.names[name]
                site = replace(
                    site,
                    phase=phase,
                    layer=layer,
                    label=label,
                    source=Source.INFERRED,
                )
            elif (
                _unbound(site, record) and group and group != record.groups[site.group]
            ):
                placements = _rebound(placements, site, numbers[group], record.groups)
                wide = record.placements
                rebound |= (wide["group"] == site.group) & (wide["layer"] == site.layer)
                site = replace(site, group=numbers[group])
            new.append(sites.add(site))
        table["site"][calls.place] = np.array(new, np.int64)[at.reshape(-1)]
    kept = np.ones(len(placements), bool)
    kept[: len(rebound)] = ~rebound
    members = [record.groups[s.group].ranks for s in sites.sites]
    pairs, at = np.unique(
        np.stack([table["site"], table["rank"]]), axis=1, return_inverse=True
    )
    member = [members[site].index(rank) for site, rank in pairs.T.tolist()]
    table["member"] = np.array(member, np.int64)[at.reshape(-1)]
    return replace(
        record, calls=table, sites=tuple(sites.sites), placements=placements[kept]
    )


def _groups_of_layers(calls: Calls, naming: Naming) -> dict[int, Group]:
    """Return the process group of each layer's annotated or inferred dispatch."""
    found: dict[int, Group] = {}
    for site in calls.sites:
        if site.phase == "dispatch":
            found.setdefault(site.layer, calls.groups[site.group])
    names = naming.of_call[calls.rank]
    pairs, first = np.unique(
        np.stack([calls.table["site"], names]), axis=1, return_index=True
    )
    for site, name in pairs[:, np.argsort(first)].T.tolist():
        phase, layer, _ = naming.names[name] if name >= 0 else ("", -1, "")
        if phase == "dispatch":
            found.setdefault(layer, calls.groups[calls.sites[site].group])
    return found


def _rebound(rows: Any, site: Site, after: int, groups: Sequence[Group]) -> Any:
    """Move the expert placement of a routing's layer to the group of its dispatch.

    A contiguous placement stays contiguous on the new group; others keep group ranks.
    """
    experts = site.experts
    wide, ranks = groups[site.group].ranks, groups[after].ranks
    ours = (rows["group"] == after) & (rows["layer"] == site.layer)
    mine = (rows["group"] == site.group) & (rows["layer"] == site.layer)
    if ours.any():
        return rows
    holders: list[int] = []
    if mine.sum() == experts:
        members = [wide.index(r) for r in rows["rank"][mine].tolist()]
        contiguous = [e * len(wide) // experts for e in range(experts)]
        if members != contiguous and max(members) < len(ranks):
            holders = members
    if not holders and experts % len(ranks) == 0:
        holders = [e * len(ranks) // experts for e in range(experts)]
    fresh = np.array(
        [(after, site.layer, e, 0, ranks[m], 0) for e, m in enumerate(holders)],
        PLACEMENT,
    )
    return np.concatenate([rows, fresh])


def _steps_bare(record: Record) -> bool:
    """Return whether the marked steps lack losses, token counts and kinds."""
    steps = record.steps
    return bool(
        np.isnan(steps["loss"]).all()
        and (steps["tokens"] < 0).all()
        and (steps["kind"] == "train").all()
    )


def _hide_evaluations(record: Record, numbered: Mapping[int, NumberedSteps]) -> bool:
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


def _infer_kinds(record: Record) -> Record:
    """Classify marked training steps without a backward as evaluation or skipped.

    In a run whose steps have backward calls, a step without one is an evaluation if it
    has all-to-alls or routings that autograd is not known to have recorded, and was
    skipped if it has no call at all.
    """
    steps = record.steps.copy()
    when = steps["iteration"]

    def with_calls(mask: Bool | slice) -> Bool:
        return np.isin(when, record.calls["iteration"][mask])

    exchanged = [s.operation in (ALL_TO_ALL, ROUTING) for s in record.sites]
    again = [s.direction in ("backward", "recompute") for s in record.sites]
    backward = with_calls(record.site_mask(again))
    trained = len(np.unique(when[backward]))
    if not trained or trained < TRAINED * len(np.unique(when)):
        return record
    lacking = (steps["kind"] == "train") & ~backward
    shown = with_calls(record.site_mask(exchanged))
    recorded = with_calls(_recorded(record, record.site_mask(exchanged)))
    for kind, changed in (
        ("evaluation", lacking & shown & ~recorded),
        ("skipped", lacking & ~with_calls(slice(None))),
    ):
        steps["kind"][changed], steps["source"][changed] = kind, Source.INFERRED
    return replace(record, steps=steps)


def _recorded(record: Record, wanted: Bool) -> Bool:
    """Return a mask of the wanted forward calls that autograd recorded, ``[n]``."""
    recorded = np.zeros(len(record.calls), bool)
    forward = record.site_mask([s.direction == "forward" for s in record.sites])
    backward = record.site_mask([s.direction == "backward" for s in record.sites])
    for rank in record.ranks:
        own = record.calls_of[rank]
        calls, ahead = record.calls[own], forward[own]
        of_backward = linked_forward(ahead, backward[own], calls["link"])
        recorded[own] = recorded_by_autograd(
            ahead & wanted[own], calls["grad"], of_backward
        )
    return recorded


def _with_inferred_steps(
    record: Record, every: Sequence[Calls], numbered: Mapping[int, NumberedSteps]
) -> Record:
    """Assign inferred step numbers to calls, and list the complete steps."""
    table, rows = record.calls.copy(), []
    for calls in every:
        steps = numbered[calls.rank]
        table["iteration"][calls.place] = steps.step
        # steps never decrease
        ends = np.searchsorted(steps.step, np.arange(len(steps.whole) + 1))
        # what precedes the first call of a pass is set-up, and no part of a step
        of_pass = calls.exchange | calls.routing | calls.backward
        ends[:1] = np.maximum(ends[:1], np.argmax(of_pass))
        for number, whole in enumerate(steps.whole):
            own = calls.table[ends[number] : ends[number + 1]]
            if whole and len(own):
                times = np.concatenate([own["issue"], own["end"]])
                times = times[times != UNKNOWN_TIME]
                span = (times.min(), times.max()) if len(times) else (UNKNOWN_TIME,) * 2
                made = (Source.INFERRED, steps.kinds[number], calls.rank)
                rows.append((number, np.nan, -1, *span, *made))
    return replace(record, calls=table, steps=np.array(rows, RANK_STEP))

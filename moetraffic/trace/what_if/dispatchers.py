"""Recompute a trace for another algorithm that dispatches the same tokens to experts.

The routing decides which token goes to which expert; the dispatcher decides which
messages carry it.  With P[i, j] token copies from rank i to the experts of rank j,
ranks of a node numbered (node, place), in the direction of the dispatch:

=============== ==================================================================
dispatcher      all-to-alls of an exchange
=============== ==================================================================
plain           one, of P
padded          one; each expert gets the rows of the fullest, from every rank
by-rank         one; each token once for each rank on which it has an expert (as
                DeepEP's kernels inside a node)
two-level       inside each node, rank (n, l) sends (n, p) what it has for all (m, p);
                then between nodes, among the ranks of each place
deduplicated    between nodes, among the ranks of each place: each token once for a
                node on which it has an expert; then inside each node, once for each
                rank on which it has one (as DeepEP's kernels between nodes)
=============== ==================================================================

Phases in which rows return (combine, gradient of the dispatch) have the transposed
matrices, in the reversed order.  Sampled tokens give the share of the copies between
two ranks or nodes whose token is there already, and copies are reduced by it.

References
----------
He et al., "FasterMoE", PPoPP 2022; Nie et al., "HetuMoE", arXiv 2203.14685 (two-level);
DeepSeek-AI, "DeepSeek-V3", arXiv 2412.19437, section 3.2.2 (once for each node).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Int64
from moetraffic.errors import TraceError
from moetraffic.spelling import check_choice
from moetraffic.trace.choices import expert_mask
from moetraffic.trace.matrix import between_ranks, in_bytes
from moetraffic.trace.model import (
    ROUTING,
    TRANSPOSED_PHASES,
    UNKNOWN_TIME,
    Occurrences,
    Site,
)
from moetraffic.trace.panel import ArrayPanel, Panel, stacked
from moetraffic.trace.storage import table_of
from moetraffic.trace.trace import TIMES, Trace

BY_NODE = ("two-level", "deduplicated")
DISPATCHERS = ("plain", "padded", "by-rank", *BY_NODE)

_AllToAll = tuple[int, str, int, list[int], int]
"""Step, label, group, its members, and row of the matrix less the number of the
routing."""


def redispatch(trace: Trace, dispatcher: str, *, ranks_per_node: int = 0) -> Trace:
    """Compute the trace of the same routing with another dispatcher.

    All-to-alls of one exchange share its time equally, one after the other.  Other
    collectives stay as they are; the result has no routings.

    Parameters
    ----------
    trace
        With the demand, that is the routing, of its exchanges.
    dispatcher
        One of :data:`DISPATCHERS`.
    ranks_per_node
        Consecutive world ranks of a node; 0: nodes as the trace names them.

    Raises
    ------
    TraceError
        If the dispatcher is unknown, the trace has no demand or no nodes, or tokens of
        several experts are to be de-duplicated and the trace has no sample of tokens.
    """
    check_choice("the dispatcher", dispatcher, DISPATCHERS, TraceError)
    routings = trace.find(operation=ROUTING, direction="forward", kind=None)
    routing_of = {
        (s.layer, s.slot, s.group): number
        for number in np.unique(trace.occurrences.site[routings]).tolist()
        for s in [trace.sites[number]]
    }
    keys = {(s.layer, s.slot, s.group) for s in trace.sites if s.phase}
    if not keys & routing_of.keys():
        raise TraceError(
            f"a dispatcher moves the tokens that a router chose, but {trace.name} has "
            "no exchange with its demand: capture with a router hook or annotation"
        )
    node_of = _nodes(trace, ranks_per_node if dispatcher in BY_NODE else 1)
    groups, panels = list(trace.groups), defaultdict[str, list[Panel]](list)
    panels |= {
        name: [panel]
        for name, panel in trace.panels.items()
        if name.endswith(("/wire", "/volume"))
    }

    @cache
    def all_to_alls(routing: int, row_bytes: int) -> list[_AllToAll]:
        site = trace.sites[routing]
        own, found = trace.groups[site.group], []
        routed = np.flatnonzero(trace.occurrences.site == routing)
        steps = _steps(trace, site, routed, dispatcher, node_of)
        for step, (label, parts, copies) in enumerate(steps):
            for members in parts:
                ranks = tuple(own.ranks[member] for member in members)
                group = replace(own, kind=label or own.kind, ranks=ranks)
                if group not in groups:
                    groups.append(group)
                into = panels[f"call_{len(members)}/wire"]
                row = sum(panel.shape[0] for panel in into) - int(routed[0])
                wire = in_bytes(copies[:, members][:, :, members], row_bytes)
                into.append(ArrayPanel(wire))
                found.append((step, label, groups.index(group), members, row))
        return found

    sites: list[Site] = []
    every: list[Occurrences] = []
    for number, site in enumerate(trace.sites):
        calls = np.flatnonzero(trace.occurrences.site == number)
        if not len(calls) or site.operation == ROUTING:
            continue
        of, back = trace.occurrences[calls], site.phase in TRANSPOSED_PHASES
        routing = routing_of.get((site.layer, site.slot, site.group), -1)
        parts: list[_AllToAll] = [(0, "", site.group, [*range(trace.width[number])], 0)]
        moved = routing >= 0 and bool(site.phase)
        if moved:
            parts = all_to_alls(routing, site.row_bytes)
            routed = trace.at(np.full(len(calls), routing), of.iteration)
            of = replace(of, transposed=np.full(len(of), back))
        last = parts[-1][0]
        parts = sorted(parts, key=lambda part: part[0], reverse=back)
        for step, label, group, members, row in parts:
            at = last - step if back else step
            times = _part_of(trace, calls, members, at, last + 1)
            table = table_of(replace(site, group=group), groups)
            for name, column in zip(("present", *TIMES), times, strict=True):
                panels[f"{table}/{name}"].append(ArrayPanel(column))
            new = replace(of, site=np.full(len(of), len(sites), np.int32))
            if moved:  # bytes are unknown where there is no routing
                new = replace(new, matrix=np.where(routed < 0, -1, row + routed))
            every.append(new)
            sites.append(replace(site, group=group, label=label or site.label))
    parts_of = [vars(of) for of in every]
    columns = {
        name: np.concatenate([part[name] for part in parts_of])
        for name in vars(trace.occurrences)
    }
    columns["sequence"] = np.full(len(columns["site"]), -1)
    return trace.replaced(
        groups=groups,
        sites=sites,
        occurrences=Occurrences(**columns),
        panels={name: stacked(found) for name, found in panels.items()},
        placements=None,
        runs=None,
    )


def _part_of(
    trace: Trace, calls: Int64, members: list[int], at: int, many: int
) -> tuple[npt.NDArray[Any], ...]:
    """Return presence and times of some members, in one of equal parts of the time."""
    issue, start, end = (t[:, members] for t in trace.times(calls, own_clock=True))
    known = (issue != UNKNOWN_TIME) & (end != UNKNOWN_TIME)
    took = np.where(known, end - issue, 0)
    begin = np.where(known, issue + took * at // many, issue)
    until = np.where(known, issue + took * (at + 1) // many, end)
    present = trace.presence(calls)[:, members]
    return present, begin, begin if at else start, until


def _nodes(trace: Trace, ranks_per_node: int) -> Int64:
    """Number the node of each world rank, ``[R]``."""
    world, names = trace.meta.world, trace.meta.nodes
    if ranks_per_node:
        return np.arange(world) // ranks_per_node
    if len(names) != world or not all(names):
        raise TraceError(
            "a dispatcher between and inside nodes needs the node of each rank, but "
            f"{trace.name} names none: give --ranks-per-node"
        )
    return np.unique(np.array(names), return_inverse=True)[1]


# ---- copies -----------------------------------------------------------------------


def _steps(
    trace: Trace, site: Site, routed: Int64, dispatcher: str, node_of: Int64
) -> list[tuple[str, list[list[int]], Int64]]:
    """Compute the all-to-alls of a routing, in the direction of the dispatch.

    These are the label, the members of each group, and the copies between members of
    one group, ``[n, W, W]``.
    """
    when = trace.occurrences.iteration[routed]
    copies = trace.kept(routed)
    if dispatcher == "padded":
        rows = copies.max(axis=(1, 2), keepdims=True)
        copies = np.broadcast_to(rows, copies.shape)
    plain = between_ranks(trace, site.layer, site.group, when, copies)
    width = plain.shape[1]
    if dispatcher == "by-rank":
        plain, _ = _distinct(trace, site, routed, plain, np.zeros(width, np.int64))
    if dispatcher not in BY_NODE:
        return [("", [[*range(width)]], plain)]
    own = node_of[list(trace.groups[site.group].ranks)]
    node = np.unique(own, return_inverse=True)[1]
    inside = [np.flatnonzero(node == n).tolist() for n in np.unique(node)]
    if len({len(members) for members in inside}) > 1:
        raise TraceError(
            "each node must hold as many ranks of an expert-parallel group, but they "
            f"hold {', '.join(str(len(m)) for m in inside)}: change --ranks-per-node"
        )
    across = [list(members) for members in zip(*inside, strict=True)]
    place = np.zeros(width, np.int64)
    for members in inside:
        place[members] = np.arange(len(members))
    if dispatcher == "two-level":
        # [n, member, place]: what a member has for all ranks of each place
        first = _summed(plain, place)
        intra = np.where(node[:, None] == node, first[:, :, place], 0)
        # what ranks of a member's node have for a member of its own place
        held = _summed(plain.transpose(0, 2, 1), node).transpose(0, 2, 1)
        inter = np.where(place[:, None] == place, held[:, node], 0)
        return [("intra-node", inside, intra), ("inter-node", across, inter)]
    once, at_node = _distinct(trace, site, routed, plain, node)
    inter = np.where(place[:, None] == place, at_node[:, :, node], 0)
    # tokens that arrived at a member's place, for each rank of its node
    arrived = _summed(once.transpose(0, 2, 1), place).transpose(0, 2, 1)
    intra = np.where(node[:, None] == node, arrived[:, place], 0)
    return [("inter-node", across, inter), ("intra-node", inside, intra)]


def _summed(copies: Int64, part: Int64) -> Int64:
    """Sum the last axis by part, from 0: ``[n, W, W]`` to ``[n, W, parts]``."""
    chosen = part[:, None] == np.arange(part.max() + 1)
    return np.asarray(copies @ chosen.astype(np.int64), np.int64)


def _distinct(
    trace: Trace, site: Site, routed: Int64, plain: Int64, node: Int64
) -> tuple[Int64, Int64]:
    """Count tokens instead of copies: ``[n, W, W]`` by rank, ``[n, W, nodes]``."""
    by_node = _summed(plain, node)
    if trace.meta.k == 1:
        return plain, by_node
    if not site.token_sample:
        raise TraceError(
            "sending a token once to a rank or a node needs the experts of single "
            f"tokens, but {trace.name} has no sample of tokens: capture with "
            "--token-sample"
        )
    once, at_node = np.empty_like(plain), np.empty_like(by_node)
    for row, occurrence in enumerate(routed.tolist()):
        ids = trace.chosen(routed[row : row + 1])[0]
        chosen = expert_mask(ids, site.experts).astype(np.int64)  # [W, S, E]
        when = int(trace.occurrences.iteration[occurrence])
        holder = trace.holder(site.layer, site.group, when)
        held = (holder[:, None] == np.arange(plain.shape[1])).astype(np.int64)  # [E, W]
        once[row] = _reduced(plain[row], chosen @ held)
        at_node[row] = _reduced(by_node[row], chosen @ _summed(held, node))
    return once, at_node


def _reduced(copies: Int64, sampled: Int64) -> Int64:
    """Reduce copies ``[W, P]`` by the share of distinct tokens ``[W, S, P]``."""
    some, total = (sampled > 0).sum(axis=1), sampled.sum(axis=1)
    overall = some.sum() / max(int(total.sum()), 1)
    share = np.where(total > 0, some / np.maximum(total, 1), overall)
    tokens = np.rint(copies * share).astype(np.int64)
    return np.asarray(np.clip(tokens, copies > 0, copies), np.int64)

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
matrices, in the reversed order.  Which experts a token has is taken from the trace's
samples of tokens: a share of the copies between two ranks or nodes are of tokens that
are there already, and copies are reduced by that share.  It is exact where the sample
has all tokens, and where each token has one expert.

References
----------
He et al., "FasterMoE", PPoPP 2022; Nie et al., "HetuMoE", arXiv 2203.14685 (two-level);
DeepSeek-AI, "DeepSeek-V3", arXiv 2412.19437, section 3.2.2 (once for each node).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64, Int64, UInt8
from moetraffic.errors import TraceError
from moetraffic.spelling import check_choice
from moetraffic.trace.choices import unpack
from moetraffic.trace.model import (
    ALL_TO_ALL,
    ROUTING,
    TRANSPOSED_PHASES,
    UNKNOWN_TIME,
    Group,
    Occurrences,
    Program,
    Site,
    WireForm,
)
from moetraffic.trace.panel import ArrayPanel, take
from moetraffic.trace.placement import between_ranks
from moetraffic.trace.rows import TIMES
from moetraffic.trace.trace import Trace
from moetraffic.trace.wire import in_bytes

BY_NODE = ("two-level", "deduplicated")
DISPATCHERS = ("plain", "padded", "by-rank", *BY_NODE)


@dataclass(frozen=True, kw_only=True)
class _ExchangeStep:
    """One all-to-all of an exchange: its label, groups of members, and its copies."""

    label: str
    groups: tuple[tuple[int, ...], ...]  # members of the expert-parallel group
    copies: Int64  # [n, W, W] between members of one group, in the dispatch's direction


@dataclass(frozen=True, kw_only=True)
class _StepCall:
    """A site of the new trace, with its occurrences' bytes and times."""

    site: Site
    iteration: Int64  # [n]
    wire: Int64  # [n, V, V]
    present: UInt8  # [n, V]
    times: tuple[Int64, Int64, Int64]  # issue, start, end, each [n, V]


def redispatch(trace: Trace, dispatcher: str, *, ranks_per_node: int = 0) -> Trace:
    """Compute the trace of the same routing with another dispatcher.

    Other collectives stay as they are.  All-to-alls of one exchange share its time
    equally, one after the other.

    Parameters
    ----------
    trace
        With the demand, that is the routing, of its exchanges.
    dispatcher
        One of :data:`DISPATCHERS`.
    ranks_per_node
        Consecutive world ranks of a node; 0: nodes as the trace names them.

    Returns
    -------
    Trace
        In memory, without routings.

    Raises
    ------
    TraceError
        If the dispatcher is unknown, the trace has no demand or no nodes, or tokens of
        several experts are to be de-duplicated and the trace has no sample of tokens.
    """
    check_choice("the dispatcher", dispatcher, DISPATCHERS, TraceError)
    routings = [_routing(trace, site) for site in trace.sites]
    exchanges = [n for n, routing in enumerate(routings) if routing >= 0]
    if not exchanges:
        raise TraceError(
            f"a dispatcher moves the tokens that a router chose, but {trace.name} has "
            "no exchange with its demand: capture with a router hook or annotation"
        )
    others = [
        n
        for n, s in enumerate(trace.sites)
        if n not in exchanges and s.operation != ROUTING
    ]
    node_of = np.zeros(0, np.int64)
    if dispatcher in BY_NODE:
        node_of = _nodes(trace, ranks_per_node)
    groups = list(trace.groups)
    number = {(g.kind, g.ranks): n for n, g in enumerate(groups)}
    calls: list[_StepCall] = []
    made: dict[int, list[int]] = {}  # new sites of a site of the trace, in order
    for n in exchanges:
        own = trace.groups[trace.sites[n].group]
        for step, at in _steps(trace, n, routings[n], dispatcher, node_of):
            for members in step.groups:
                ranks = tuple(own.ranks[m] for m in members)
                key = step.label or own.kind, ranks
                if key not in number:
                    number[key] = len(groups)
                    groups.append(Group(kind=key[0], ranks=ranks))
                made.setdefault(n, []).append(len(others) + len(calls))
                calls.append(_call(trace, n, step, at, members, number[key]))
    return _assembled(trace, others, calls, made, groups)


def _routing(trace: Trace, site: Site) -> int:
    """Find the routing site whose tokens an exchange moves; -1 if there is none."""
    if site.operation != ALL_TO_ALL or not site.phase:
        return -1
    if site.routing >= 0:
        return site.routing
    same = (
        n
        for n, s in enumerate(trace.sites)
        if s.operation == ROUTING
        and (s.layer, s.slot, s.group) == (site.layer, site.slot, site.group)
    )
    return next(same, -1)


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
    return np.unique(np.array(names), return_inverse=True)[1].astype(np.int64)


# ---- copies -----------------------------------------------------------------------


def _steps(
    trace: Trace, number: int, routing: int, dispatcher: str, node_of: Int64
) -> list[tuple[_ExchangeStep, tuple[int, int]]]:
    """Compute the all-to-alls of a site, each with its place among how many."""
    site = trace.sites[number]
    mine = np.flatnonzero(trace.occurrences.site == number)
    when = trace.occurrences.iteration[mine]
    routed = trace.rows.at(np.full(len(mine), routing), when)
    copies = trace.demand(routed).astype(np.int64)
    if trace.any_dropped(routed):
        copies = copies - trace.dropped(routed)

    def by_rank(by_expert: Int64) -> Int64:
        found = between_ranks(trace, site.layer, site.group, when, by_expert)
        return np.asarray(found, np.int64)

    everyone = (tuple(range(copies.shape[1])),)
    plain = by_rank(copies)
    if dispatcher == "plain":
        steps = [_ExchangeStep(label="", groups=everyone, copies=plain)]
    elif dispatcher == "padded":
        rows = copies.max(axis=(1, 2), keepdims=True)
        padded = by_rank(np.broadcast_to(rows, copies.shape).astype(np.int64))
        steps = [_ExchangeStep(label="", groups=everyone, copies=padded)]
    elif dispatcher == "by-rank":
        once, _ = _distinct(trace, site, routed, plain, np.zeros(len(plain[0]), int))
        steps = [_ExchangeStep(label="", groups=everyone, copies=once)]
    else:
        inside, across, place = _levels(trace, site, node_of)
        own = node_of[list(trace.groups[site.group].ranks)]
        node = np.unique(own, return_inverse=True)[1]
        if dispatcher == "two-level":
            # [n, member, place]: what a member has for all ranks of each place
            first = _summed(plain, place)
            intra = np.where(node[:, None] == node, first[:, :, place], 0)
            # what ranks of a member's node have for a member of its own place
            held = _summed(plain.transpose(0, 2, 1), node).transpose(0, 2, 1)
            inter = np.where(place[:, None] == place, held[:, node], 0)
            steps = [
                _ExchangeStep(label="intra-node", groups=inside, copies=intra),
                _ExchangeStep(label="inter-node", groups=across, copies=inter),
            ]
        else:
            once, at_node = _distinct(trace, site, routed, plain, node)
            inter = np.where(place[:, None] == place, at_node[:, :, node], 0)
            # tokens that arrived at a member's place, for each rank of its node
            arrived = _summed(once.transpose(0, 2, 1), place).transpose(0, 2, 1)
            intra = np.where(node[:, None] == node, arrived[:, place], 0)
            steps = [
                _ExchangeStep(label="inter-node", groups=across, copies=inter),
                _ExchangeStep(label="intra-node", groups=inside, copies=intra),
            ]
    if site.phase in TRANSPOSED_PHASES:
        steps = [
            replace(s, copies=s.copies.transpose(0, 2, 1)) for s in reversed(steps)
        ]
    return [(step, (n, len(steps))) for n, step in enumerate(steps)]


def _levels(
    trace: Trace, site: Site, node_of: Int64
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...], Int64]:
    """Divide a group's members by node, and by their place on it."""
    node = node_of[list(trace.groups[site.group].ranks)]
    inside = tuple(
        tuple(np.flatnonzero(node == n).tolist()) for n in np.unique(node).tolist()
    )
    if len({len(members) for members in inside}) > 1:
        raise TraceError(
            "each node must hold as many ranks of an expert-parallel group, but they "
            f"hold {', '.join(str(len(m)) for m in inside)}: change --ranks-per-node"
        )
    place = np.zeros(len(node), np.int64)
    for members in inside:
        place[list(members)] = np.arange(len(members))
    return inside, tuple(zip(*inside, strict=True)), place


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
    sampled = trace.sites[int(trace.occurrences.site[routed[0]])]
    if not sampled.choices:
        raise TraceError(
            "sending a token once to a rank or a node needs the experts of single "
            f"tokens, but {trace.name} has no sample of tokens: capture with "
            "--token-sample"
        )
    once, at_node = np.empty_like(plain), np.empty_like(by_node)
    for row, occurrence in enumerate(routed.tolist()):
        at = np.array([occurrence])
        chosen = unpack(trace.choice_bits(at), sampled.experts)[0]  # [W, S, E]
        when = int(trace.occurrences.iteration[occurrence])
        holder = trace.holder(site.layer, site.group, when)
        held = holder[:, None] == np.arange(plain.shape[1])  # [E, W]
        there = held.astype(np.int64) @ (node[:, None] == np.arange(node.max() + 1))
        for into, of, where in ((once, plain, held), (at_node, by_node, there)):
            found = chosen.astype(np.int64) @ where.astype(np.int64)  # [W, S, parts]
            into[row] = _reduced(of[row], found)
    return once, at_node


def _reduced(copies: Int64, sampled: Int64) -> Int64:
    """Reduce copies ``[W, P]`` by the share of distinct tokens ``[W, S, P]``."""
    some, total = (sampled > 0).sum(axis=1), sampled.sum(axis=1)
    overall = some.sum() / max(int(total.sum()), 1)
    share: Float64 = np.where(total > 0, some / np.maximum(total, 1), overall)
    tokens = np.rint(copies * share).astype(np.int64)
    return np.asarray(np.clip(tokens, copies > 0, copies), np.int64)


# ---- the new trace ------------------------------------------------------------------


def _call(
    trace: Trace,
    number: int,
    step: _ExchangeStep,
    at: tuple[int, int],
    members: tuple[int, ...],
    group: int,
) -> _StepCall:
    """Build one all-to-all of some members of an exchange's group."""
    site, columns = trace.sites[number], list(members)
    mine = np.flatnonzero(trace.occurrences.site == number)
    copies = step.copies[:, columns][:, :, columns]
    issue, start, end = (t[:, columns] for t in trace.times(mine, own_clock=True))
    known = (issue != UNKNOWN_TIME) & (end != UNKNOWN_TIME)
    took = np.where(known, end - issue, 0)
    begin = np.where(known, issue + took * at[0] // at[1], issue)
    until = np.where(known, issue + took * (at[0] + 1) // at[1], end)
    return _StepCall(
        site=replace(
            site,
            group=group,
            label=step.label or site.label,
            routing=-1,
            wire=WireForm.STORED,
            wire_checked=0,
            constant=(),
        ),
        iteration=trace.occurrences.iteration[mine],
        wire=in_bytes(copies, site.row_bytes),
        present=trace.present(mine)[:, columns].astype(np.uint8),
        times=(begin, np.where(at[0] == 0, start, begin), until),
    )


def _assembled(
    trace: Trace,
    others: list[int],
    calls: list[_StepCall],
    made: dict[int, list[int]],
    groups: list[Group],
) -> Trace:
    """Put the unchanged sites and the new calls together."""
    sites = [replace(trace.sites[n], routing=-1) for n in others]
    sites += [c.site for c in calls]
    kept = [np.flatnonzero(trace.occurrences.site == n) for n in others]
    counts = [*map(len, kept), *(len(c.iteration) for c in calls)]
    parts: dict[str, list[npt.NDArray[Any]]] = {}
    for n, at in zip(others, kept, strict=True):
        width = len(trace.groups[trace.sites[n].group].ranks)
        square = trace.sites[n].operation == ALL_TO_ALL
        names = ["present", *TIMES]
        if trace.sites[n].wire == WireForm.STORED:
            names.append("wire" if square else "volume")
        for panel in (f"{name}_{width}" for name in names):
            rows = trace.rows_of(panel)[at]
            parts.setdefault(panel, []).append(take(trace.panels[panel], rows))
    for call in calls:
        width = call.wire.shape[1]
        arrays: tuple[npt.NDArray[Any], ...] = (call.present, call.wire, *call.times)
        for name, array in zip(("present", "wire", *TIMES), arrays, strict=True):
            parts.setdefault(f"{name}_{width}", []).append(array)
    place = {n: [at] for at, n in enumerate(others)} | made

    def joins(site: int, rank: int) -> bool:
        return rank in groups[sites[site].group].ranks

    return Trace(
        meta=trace.meta,
        groups=groups,
        sites=sites,
        occurrences=Occurrences(
            iteration=np.concatenate(
                [*(trace.occurrences.iteration[at] for at in kept)]
                + [c.iteration for c in calls]
            ),
            site=np.repeat(np.arange(len(sites), dtype=np.int32), counts),
            sequence=np.full(sum(counts), -1, np.int64),
        ),
        panels={n: ArrayPanel(np.concatenate(p)) for n, p in parts.items()},
        steps=trace.steps,
        clocks=trace.clocks,
        programs=[
            Program(
                rank=p.rank,
                kind=p.kind,
                sites=tuple(
                    new
                    for old in p.sites
                    for new in place.get(old, [])
                    if joins(new, p.rank)
                ),
            )
            for p in trace.programs
        ],
        container=trace.container,
    )

"""Convert a computed traffic pattern to a trace.

The trace has no times, routing or losses.  Bytes are the same in every iteration.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic import __version__
from moetraffic.arrays import Int64
from moetraffic.errors import LayoutError
from moetraffic.patterns.pattern import Call, Pattern
from moetraffic.patterns.traffic import exchange_matrix
from moetraffic.trace import (
    ALL_TO_ALL,
    Group,
    Meta,
    Occurrences,
    Site,
    Source,
    Steps,
    Trace,
)
from moetraffic.trace.model import PLACEMENT
from moetraffic.trace.order import merged
from moetraffic.trace.panel import ArrayPanel, DistinctRows
from moetraffic.trace.routed import blank_panels

SENDS = "send_recv"
MOST_CALLS = 1 << 22


def pattern_trace(pattern: Pattern, *, iterations: int = 1, tokens: int = -1) -> Trace:
    """Convert a number of iterations of a traffic pattern to a trace.

    ``tokens``: Tokens per rank and iteration; -1: unknown.

    The trace is in memory; its ``meta.origin`` is "generated".

    Raises
    ------
    LayoutError
        If there are no iterations, or more calls than a trace can hold.
    """
    if iterations < 1:
        raise LayoutError(
            f"a trace has at least one iteration, but there are {iterations}: raise it"
        )
    groups, calls = _calls(pattern)
    if len(calls) * iterations > MOST_CALLS:
        raise LayoutError(
            f"a trace holds {MOST_CALLS} calls at most, but {iterations} iterations of "
            f"this pattern are {len(calls) * iterations}: lower --accumulation, "
            "--iterations or the ranks"
        )
    sites = [site for site, _, _ in calls]
    site = np.repeat(np.arange(len(sites), dtype=np.int32), iterations)
    panels = blank_panels(groups, sites, site)
    known: dict[str, DistinctRows] = {}
    distinct: dict[str, list[Int64]] = {}
    matrix = np.zeros(len(sites), np.int64)
    transposed = np.zeros(len(sites), bool)
    for n, (_, sent, _) in enumerate(calls):
        name = f"call_{len(sent)}/{'wire' if sent.ndim == 2 else 'volume'}"
        numbers = known.setdefault(name, DistinctRows())
        (matrix[n],), (transposed[n],), new = numbers.add(sent[None])
        distinct.setdefault(name, []).extend(new)
    panels |= {name: ArrayPanel(np.stack(rows)) for name, rows in distinct.items()}
    # a group's collectives are numbered through all iterations
    index = np.array([number for _, _, number in calls], np.int64)[:, None]
    group = np.array([s.group for s in sites], np.int64)
    each = np.bincount(group[index[:, 0] >= 0], minlength=len(groups))
    number = index + np.arange(iterations) * each[group][:, None]
    return Trace(
        meta=_meta(pattern),
        groups=groups,
        sites=sites,
        occurrences=Occurrences(
            iteration=np.tile(np.arange(iterations, dtype=np.int64), len(sites)),
            site=site,
            sequence=np.where(index < 0, -1, number).ravel(),
            matrix=matrix[site],
            transposed=transposed[site],
        ),
        panels=panels,
        steps=Steps.of_training(
            np.arange(iterations), pattern.grid.world, tokens=tokens
        ),
        placements=_placements(pattern, groups),
    )


def call_sites(call: Call, *, group: int, slot: int, width: int) -> list[Site]:
    """Build the sites of a call: one, or one per point-to-point message."""
    site = Site(
        group=group,
        operation=call.operation,
        phase=call.phase,
        layer=call.layer,
        direction=call.direction,
        slot=slot,
        dtype=call.dtype,
        row_bytes=call.row_bytes,
        label=call.label,
        source=Source.ANNOTATED,
    )
    if call.operation != SENDS:
        return [site]
    return [replace(site, peers=peers) for peers in call.messages(width)]


def _sent(call: Call, site: Site, width: int) -> Int64:
    """Return the bytes of a call's site, ``[W, W]`` of an all-to-all, else ``[W]``."""
    if call.operation == ALL_TO_ALL:
        return exchange_matrix(call, width)
    senders = [site.peers[0]] if call.operation == SENDS else range(width)
    return np.where(np.isin(np.arange(width), senders), call.size, 0)


def _calls(pattern: Pattern) -> tuple[list[Group], list[tuple[Site, Int64, int]]]:
    """Find the groups and the call sites of a pattern, in an order of all programs.

    Each site has its bytes, and its number among the collectives of its group, -1 for
    messages.  The n-th identical call of a group is the site with call index n, as in
    a capture.
    """
    found: list[tuple[Site, Int64, int]] = []
    orders: list[Int64] = []  # of each rank: indices into ``found``
    numbers: dict[tuple[str, tuple[int, ...]], int] = {}
    known: dict[tuple[int, Call, int], range] = {}
    spots: dict[Call, Call] = {}  # identical calls may differ in size
    mine = {
        (rank, kind): ranks
        for kind in pattern.kinds
        for ranks in pattern.grid.groups(kind)
        for rank in ranks
    }
    for rank in range(pattern.grid.world):
        order: list[int] = []
        seen: Counter[tuple[int, Call]] = Counter()
        called: Counter[int] = Counter()
        for call, _ in pattern.program(rank):
            ranks = mine[rank, call.group]
            group = numbers.setdefault((call.group, ranks), len(numbers))
            if call not in spots:
                spots[call] = replace(call, size=0, root=0, exact=True)
            slot = seen[group, spots[call]]
            seen[group, spots[call]] += 1
            place = (group, spots[call], slot)
            sends = call.operation == SENDS
            if place not in known:
                made = call_sites(call, group=group, slot=slot, width=len(ranks))
                known[place] = range(len(found), len(found) + len(made))
                found += [
                    (
                        site,
                        _sent(call, site, len(ranks)),
                        -1 if sends else called[group],
                    )
                    for site in made
                ]
            member = ranks.index(rank)
            order += [
                number
                for number in known[place]
                if not sends or member in found[number][0].peers
            ]
            called[group] += not sends
        orders.append(np.array(order, np.int64))
    groups = [Group(kind=kind, ranks=ranks) for kind, ranks in numbers]
    return groups, [found[n] for n in merged(orders).tolist()]


def _meta(pattern: Pattern) -> Meta:
    grid = pattern.grid
    about: dict[str, Any] = dict(pattern.about)
    inexact = any(not e.call.exact for p in pattern.programs for e in p)
    return Meta(
        origin="generated",
        world=grid.world,
        dp=grid.dp,
        tp=grid.tp,
        pp=grid.pp,
        ep=grid.ep,
        cp=grid.cp,
        order=grid.order,
        moetraffic=__version__,
        source="computed from the configuration"
        + (", equal load of all experts assumed" if inexact else ""),
        **about,
    )


def _placements(pattern: Pattern, groups: list[Group]) -> npt.NDArray[Any]:
    """Build the contiguous placement of experts on the ranks of each EP group."""
    experts = dict(pattern.about).get("experts", 0)
    layers = sorted({e.call.layer for p in pattern.programs for e in p if e.call.phase})
    stage_layers = [
        {e.call.layer for e in program if e.call.phase} for program in pattern.programs
    ]
    rows = [
        (number, layer, expert, 0, group.ranks[expert * len(group.ranks) // experts], 0)
        for number, group in enumerate(groups)
        if group.kind == "ep" and isinstance(experts, int) and experts
        for layer in layers
        if layer in stage_layers[pattern.stage_of[group.ranks[0]]]
        for expert in range(experts)
    ]
    return np.array(rows, PLACEMENT)

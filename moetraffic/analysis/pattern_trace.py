"""Convert a computed traffic pattern to a trace.

The trace has no times, routing or losses.  Bytes are the same in every iteration, so
the wire of each site is stored once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from moetraffic import __version__
from moetraffic.errors import LayoutError
from moetraffic.patterns.pattern import Call, Pattern
from moetraffic.patterns.traffic import exchange_matrix
from moetraffic.trace import (
    ALL_TO_ALL,
    Group,
    Meta,
    Occurrences,
    Program,
    Site,
    Steps,
    Trace,
    WireForm,
)
from moetraffic.trace.model import MOST_SITES, PLACEMENT, Source
from moetraffic.trace.rows import recorded_panels

SENDS = "send_recv"


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
    programs = _Programs(pattern)
    world, sites = pattern.grid.world, programs.sites
    if len(sites) * iterations > MOST_SITES:
        raise LayoutError(
            f"a trace holds {MOST_SITES} calls at most, but {iterations} iterations of "
            f"this pattern are {len(sites) * iterations}: lower --accumulation, "
            "--iterations or the ranks"
        )
    occurrences = Occurrences(
        iteration=np.tile(np.arange(iterations, dtype=np.int64), len(sites)),
        site=np.repeat(np.arange(len(sites), dtype=np.int32), iterations),
        sequence=programs.sequence(iterations),
    )
    return Trace(
        meta=_meta(pattern),
        groups=programs.groups,
        sites=sites,
        occurrences=occurrences,
        panels=recorded_panels(programs.groups, sites, occurrences.site),
        steps=Steps.of_training(np.arange(iterations), world, tokens=tokens),
        programs=[
            Program(rank=rank, kind="train", sites=tuple(order))
            for rank, order in enumerate(programs.orders)
        ],
        placements=_placements(pattern, programs.groups),
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
        wire=WireForm.CONSTANT,
    ).with_sources(Source.ANNOTATED, Source.ANNOTATED, Source.ANNOTATED)
    if call.operation == ALL_TO_ALL:
        matrix = exchange_matrix(call, width)
        return [replace(site, constant=tuple(matrix.ravel().tolist()))]
    if call.operation != SENDS:
        return [replace(site, constant=(call.size,) * width)]
    made = []
    for source, destination in call.messages(width):
        constant = [0] * width
        constant[source] = call.size
        made.append(
            replace(site, peers=(source, destination), constant=tuple(constant))
        )
    return made


class _Programs:
    """Groups, sites and per-rank call order of the programs of a pattern.

    The n-th identical call of a group is the site with call index n, as in a capture.
    """

    def __init__(self, pattern: Pattern) -> None:
        self.sites: list[Site] = []
        self.counts: list[int] = []  # per site: index in its group's collectives, or -1
        self.orders: list[list[int]] = []
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
                    first = len(self.sites)
                    known[place] = range(first, first + len(made))
                    self.sites += made
                    self.counts += [-1 if sends else called[group]] * len(made)
                member = ranks.index(rank)
                order += [
                    number
                    for number in known[place]
                    if not sends or member in self.sites[number].peers
                ]
                called[group] += not sends
            self.orders.append(order)
        self.groups = [Group(kind=kind, ranks=ranks) for kind, ranks in numbers]

    def sequence(self, iterations: int) -> Any:
        """Number each call among the collectives of its group, ``[O]`` int64."""
        group = np.array([s.group for s in self.sites], np.int64)
        index = np.array(self.counts, np.int64)[:, None]
        each = np.bincount(group[index[:, 0] >= 0], minlength=len(self.groups))
        number = index + np.arange(iterations) * each[group][:, None]
        return np.where(index < 0, -1, number).ravel()


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


def _placements(pattern: Pattern, groups: list[Group]) -> Any:
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

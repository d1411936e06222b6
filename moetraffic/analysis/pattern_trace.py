"""Convert a computed traffic pattern to a trace.

The trace has no times, routing or losses.  Bytes are the same in every iteration, so
the wire of each site is stored once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from moetraffic import __version__
from moetraffic.errors import LayoutError
from moetraffic.patterns.pattern import Call, Pattern
from moetraffic.patterns.traffic import exchange_matrix
from moetraffic.trace import (
    ALL_TO_ALL,
    UNKNOWN_TIME,
    Group,
    Meta,
    Occurrences,
    Program,
    Site,
    Steps,
    Trace,
    WireForm,
)
from moetraffic.trace.model import MOST_SITES, PLACEMENT, Presence
from moetraffic.trace.panel import ArrayPanel

SENDS = "send_recv"


def pattern_trace(pattern: Pattern, *, iterations: int = 1, tokens: int = -1) -> Trace:
    """Convert a number of iterations of a traffic pattern to a trace.

    Parameters
    ----------
    pattern
        The collectives of one iteration.
    iterations
        Number of identical iterations.
    tokens
        Tokens per rank and iteration; -1: unknown.

    Returns
    -------
    Trace
        In memory; its ``meta.origin`` is "generated".

    Raises
    ------
    LayoutError
        If there are no iterations, or more calls than a trace can hold.
    """
    if iterations < 1:
        raise LayoutError(
            f"a trace has at least one iteration, but there are {iterations}: raise it"
        )
    draft = _Draft(pattern)
    world, sites = pattern.grid.world, draft.sites
    if len(sites) * iterations > MOST_SITES:
        raise LayoutError(
            f"a trace holds {MOST_SITES} calls at most, but {iterations} iterations of "
            f"this pattern are {len(sites) * iterations}: lower --accumulation, "
            "--iterations or the ranks"
        )
    occurrences = Occurrences(
        iteration=np.tile(np.arange(iterations, dtype=np.int64), len(sites)),
        site=np.repeat(np.arange(len(sites), dtype=np.int32), iterations),
        sequence=draft.sequence(iterations),
    )
    unknown = np.full((iterations, world), UNKNOWN_TIME, np.int64)
    return Trace(
        meta=_meta(pattern),
        groups=draft.groups,
        sites=sites,
        occurrences=occurrences,
        panels=draft.panels(iterations),
        steps=Steps(
            iteration=np.arange(iterations, dtype=np.int64),
            kind=("train",) * iterations,
            loss=np.full((iterations, world), np.nan),
            tokens=np.full((iterations, world), tokens, np.int64),
            start=unknown,
            end=unknown.copy(),
        ),
        programs=[
            Program(rank=rank, kind="train", sites=tuple(order))
            for rank, order in enumerate(draft.orders)
        ],
        placements=_placements(pattern, draft.groups),
    )


def call_sites(call: Call, *, group: int, slot: int, width: int) -> list[Site]:
    """Build the sites of a call of a pattern: one, or one per point-to-point message.

    Parameters
    ----------
    call
        A call of the pattern.
    group
        Index of its group.
    slot
        Call index.
    width
        Number of ranks of the group.
    """
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
    )
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


class _Draft:
    """Builder of the groups, sites and per-rank call order of a pattern's programs.

    The n-th identical call of a group is the site with call index n, as in a capture.
    """

    def __init__(self, pattern: Pattern) -> None:
        self.groups: list[Group] = []
        self.sites: list[Site] = []
        self.counts: list[
            int
        ] = []  # per site: index of the collective within its group
        self.orders: list[list[int]] = []
        self._number_of: dict[tuple[str, tuple[int, ...]], int] = {}
        known: dict[tuple[int, Call, int], list[int]] = {}
        spots: dict[Call, Call] = {}  # identical calls may differ in size
        mine: dict[tuple[int, str], tuple[int, ...]] = {}
        for kind in pattern.kinds:
            for ranks in pattern.grid.groups(kind):
                mine |= {(rank, kind): ranks for rank in ranks}
        for rank in range(pattern.grid.world):
            order: list[int] = []
            seen: dict[tuple[int, Call], int] = {}
            called: dict[int, int] = {}
            for call, _ in pattern.program(rank):
                ranks = mine[rank, call.group]
                group = self._group(call.group, ranks)
                if call not in spots:
                    spots[call] = replace(call, size=0, root=0, exact=True)
                spot = spots[call]
                slot = seen.get((group, spot), 0)
                seen[group, spot] = slot + 1
                place = (group, spot, slot)
                if place not in known:
                    known[place] = self._add(
                        call, group, ranks, slot, called.get(group, 0)
                    )
                order += [
                    number
                    for number in known[place]
                    if self._takes_part(number, ranks.index(rank))
                ]
                if call.operation != SENDS:
                    called[group] = called.get(group, 0) + 1
            self.orders.append(order)

    def _group(self, kind: str, ranks: tuple[int, ...]) -> int:
        if (kind, ranks) not in self._number_of:
            self._number_of[kind, ranks] = len(self.groups)
            self.groups.append(Group(kind=kind, ranks=ranks))
        return self._number_of[kind, ranks]

    def _add(
        self, call: Call, group: int, ranks: tuple[int, ...], slot: int, count: int
    ) -> list[int]:
        """Add the sites of a call: one, or one per message of a point-to-point send."""
        made = call_sites(call, group=group, slot=slot, width=len(ranks))
        first = len(self.sites)
        self.sites += made
        self.counts += [-1 if call.operation == SENDS else count] * len(made)
        return list(range(first, first + len(made)))

    def _takes_part(self, number: int, member: int) -> bool:
        peers = self.sites[number].peers
        return peers[0] < 0 or member in peers

    def sequence(self, iterations: int) -> Any:
        """Number each call among the collectives of its group, ``[O]`` int64."""
        group = np.array([s.group for s in self.sites], np.int64)
        count = np.array(self.counts, np.int64)
        each = np.bincount(group[count >= 0], minlength=len(self.groups))
        later = np.arange(iterations)[None, :] * each[group][:, None]
        told = count[:, None] + later
        return np.where(count[:, None] < 0, -1, told).ravel()

    def panels(self, iterations: int) -> dict[str, ArrayPanel]:
        """Build the presence panels and the panels of unknown times."""
        widths = np.array([len(self.groups[s.group].ranks) for s in self.sites])
        made: dict[str, ArrayPanel] = {}
        for width in np.unique(widths).tolist():
            here = np.flatnonzero(widths == width)
            present = np.full((len(here), width), Presence.RECORDED, np.uint8)
            for row, number in enumerate(here.tolist()):
                peers = self.sites[number].peers
                if peers[0] >= 0:
                    present[row] = Presence.ABSENT
                    present[row, list(peers)] = Presence.RECORDED
            made[f"present_{width}"] = ArrayPanel(
                np.repeat(present, iterations, axis=0)
            )
            for name in ("issue", "start", "end"):
                times = np.full((len(here) * iterations, width), UNKNOWN_TIME, np.int64)
                made[f"{name}_{width}"] = ArrayPanel(times)
        return made


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
        schedule="all experts are taken to get as much" if inexact else "",
        moetraffic=__version__,
        source="computed from the configuration",
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

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
from moetraffic.patterns.calls import Call, Pattern
from moetraffic.patterns.matrices import exchange_matrix
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

SEND_RECV = "send_recv"
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
    groups, sites, sequence = _sites(pattern)
    if len(sites) * iterations > MOST_CALLS:
        raise LayoutError(
            f"a trace holds {MOST_CALLS} calls at most, but {iterations} iterations of "
            f"this pattern are {len(sites) * iterations}: lower --accumulation, "
            "--iterations or the ranks"
        )
    site = np.repeat(np.arange(len(sites), dtype=np.int32), iterations)
    panels = blank_panels(groups, [s for s, _ in sites], site)
    numbers: dict[str, DistinctRows] = {}
    rows: dict[str, list[Int64]] = {}
    matrix = np.zeros(len(sites), np.int64)
    transposed = np.zeros(len(sites), bool)
    for n, (_, sent) in enumerate(sites):
        name = f"call_{len(sent)}/{'wire' if sent.ndim == 2 else 'volume'}"
        distinct = numbers.setdefault(name, DistinctRows())
        (matrix[n],), (transposed[n],), new = distinct.add(sent[None])
        rows.setdefault(name, []).extend(new)
    panels |= {name: ArrayPanel(np.stack(of_name)) for name, of_name in rows.items()}
    # a group's collectives are numbered through all iterations
    group = np.array([s.group for s, _ in sites], np.int64)
    in_iteration = np.bincount(group[sequence >= 0], minlength=len(groups))[group]
    counted = sequence[:, None] + np.arange(iterations) * in_iteration[:, None]
    return Trace(
        meta=_meta(pattern),
        groups=groups,
        sites=[s for s, _ in sites],
        occurrences=Occurrences(
            iteration=np.tile(np.arange(iterations, dtype=np.int64), len(sites)),
            site=site,
            sequence=np.where(sequence[:, None] < 0, -1, counted).ravel(),
            matrix=matrix[site],
            transposed=transposed[site],
        ),
        panels=panels,
        steps=Steps.of_training(
            np.arange(iterations), pattern.layout.world, tokens=tokens
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
    if call.operation != SEND_RECV:
        return [site]
    return [replace(site, peers=peers) for peers in call.messages(width)]


def _sent(call: Call, site: Site, width: int) -> Int64:
    """Return the bytes of a call's site, ``[W, W]`` of an all-to-all, else ``[W]``."""
    if call.operation == ALL_TO_ALL:
        return exchange_matrix(call, width)
    senders = [site.peers[0]] if call.operation == SEND_RECV else range(width)
    return np.where(np.isin(np.arange(width), senders), call.size, 0)


def _sites(pattern: Pattern) -> tuple[list[Group], list[tuple[Site, Int64]], Int64]:
    """Find the groups and call sites of a pattern, in an order of all programs.

    Each site has its bytes, and its number among the collectives of its group, -1 for
    messages.  The n-th identical call of a group is the site with call index n, as in
    a capture.
    """
    sites: list[tuple[Site, Int64]] = []
    sequence: list[int] = []
    orders: list[Int64] = []  # of each rank: indices into ``sites``
    groups: dict[tuple[str, tuple[int, ...]], int] = {}
    sites_of: dict[tuple[int, Call, int], range] = {}
    ranks_of = {
        (rank, kind): ranks
        for kind in pattern.kinds
        for ranks in pattern.layout.groups(kind)
        for rank in ranks
    }
    for rank in range(pattern.layout.world):
        order: list[int] = []
        slots: Counter[tuple[int, Call]] = Counter()
        collectives: Counter[int] = Counter()
        for call, _ in pattern.program(rank):
            ranks = ranks_of[rank, call.group]
            group = groups.setdefault((call.group, ranks), len(groups))
            # identical calls may differ in size
            kind = replace(call, size=0, root=0, exact=True)
            slot = slots[group, kind]
            slots[group, kind] += 1
            sends = call.operation == SEND_RECV
            if (group, kind, slot) not in sites_of:
                made = call_sites(call, group=group, slot=slot, width=len(ranks))
                sites_of[group, kind, slot] = range(len(sites), len(sites) + len(made))
                sites += [(site, _sent(call, site, len(ranks))) for site in made]
                sequence += [-1 if sends else collectives[group]] * len(made)
            member = ranks.index(rank)
            order += [
                number
                for number in sites_of[group, kind, slot]
                if not sends or member in sites[number][0].peers
            ]
            collectives[group] += not sends
        orders.append(np.array(order, np.int64))
    index = merged(orders)
    return (
        [Group(kind=kind, ranks=ranks) for kind, ranks in groups],
        [sites[number] for number in index.tolist()],
        np.array(sequence, np.int64)[index],
    )


def _meta(pattern: Pattern) -> Meta:
    grid = pattern.layout
    about: dict[str, Any] = dict(pattern.about)
    inexact = any(not e.call.exact for p in pattern.programs for e in p)
    return Meta(
        origin="generated",
        **{name: getattr(grid, name) for name in ("world", "dp", "tp", "pp", "ep")},
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
    layers = [
        sorted({e.call.layer for e in program if e.call.phase})
        for program in pattern.programs
    ]
    rows = [
        (number, layer, expert, 0, group.ranks[expert * len(group.ranks) // experts], 0)
        for number, group in enumerate(groups)
        if group.kind == "ep" and isinstance(experts, int) and experts
        for layer in layers[pattern.stage_of[group.ranks[0]]]
        for expert in range(experts)
    ]
    return np.array(rows, PLACEMENT)

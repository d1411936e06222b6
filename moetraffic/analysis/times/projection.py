"""Projection of a captured run's iteration time to more ranks.

Computing stays, communication takes longer by the network's efficiency: Cheng et al.,
SIGMETRICS'24; :func:`moetraffic.timemodel.projected_speedup` has the formula.
The efficiency is given, or follows from measured times of the run's own collectives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.errors import AnalysisError
from moetraffic.patterns.bandwidth import BandwidthTable
from moetraffic.patterns.collectives import COLLECTIVES, wire_bytes
from moetraffic.trace import Trace

from .traffic import world_matrices

NEGLIGIBLE = 0.01
"""Share of the bytes below which a collective needs no measurement."""


def collectives(trace: Trace, steps: Sequence[int]) -> list[dict[str, Any]]:
    """List the collectives of a captured run, by kind of group and operation.

    ``steps``: iteration numbers, over which calls and bytes are averaged.

    A row has the ``operation``, the ``ranks`` of a group, the mean ``size_bytes`` of a
    call as nccl-tests counts it, and the ``calls`` of a rank in an iteration.
    """
    site = trace.occurrences.site[np.isin(trace.occurrences.iteration, steps)]
    totals: Counter[tuple[str, str]] = Counter()
    for s, number in zip(
        trace.sites, np.bincount(site, minlength=len(trace.sites)), strict=True
    ):
        if s.operation in COLLECTIVES:
            totals[trace.groups[s.group].kind, s.operation] += int(number)
    rows = []
    for (kind, operation), total in totals.items():
        sent = world_matrices(trace, steps, kinds=[kind], operations=[operation])
        members = [len(g.ranks) for g in trace.groups if g.kind == kind]
        wire = float(sent.sum()) / len(steps) / sum(members)  # of a rank and step
        calls, ranks = total / len(steps) / len(members), max(members)
        if ranks > 1 and wire and calls:
            size = wire / calls / float(wire_bytes(operation, ranks, 1.0))
            row = {"operation": operation, "ranks": ranks}
            rows.append({**row, "size_bytes": size, "calls": calls})
    return rows


def measured_efficiency(
    rows: Sequence[Mapping[str, Any]],
    table: BandwidthTable,
    world: int,
    ranks: Sequence[int],
    *,
    gpus: int,
) -> Float64:
    """Network efficiency on more ranks, from measured times of the same collectives.

    ``sum calls T(g) / sum calls T(n)``: the groups grow in proportion to the ranks, the
    buffers stay.

    Parameters
    ----------
    rows
        Of :func:`collectives`.
    table
        Measurements of them, at the run's ranks and at the others.
    world, ranks
        Number of ranks of the run, and ``[k]`` other numbers.
    gpus
        Of a node.

    Returns
    -------
    ndarray
        ``[k]``.

    Raises
    ------
    AnalysisError
        If the run has no collectives with bytes, or the table lacks one.
    """
    volume = np.array([row["calls"] * row["size_bytes"] for row in rows])
    if not volume.sum():
        raise AnalysisError(
            "an efficiency from measurements needs collectives with bytes, but the run "
            "has none: give it as a number"
        )
    heavy = [
        row
        for row, share in zip(rows, volume / volume.sum(), strict=True)
        if share >= NEGLIGIBLE
    ]

    def total_s(number: int) -> float:
        total = 0.0
        for row in heavy:
            group = max(round(row["ranks"] * number / world), 2)
            measured = table.effective(
                row["operation"], group, row["size_bytes"], span=-(-group // gpus)
            )
            total += row["calls"] * float(measured.time_s)
        return total

    here = total_s(world)
    return np.array([here / total_s(number) for number in ranks])

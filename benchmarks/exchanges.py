"""A trace of exchanges with gaps, for benchmarks of a replay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moetraffic.trace.model import PHASES, Group, Meta, Occurrences, Site, Steps
from moetraffic.trace.panel import ArrayPanel, constant_panel
from moetraffic.trace.routed import blank_panels
from moetraffic.trace.trace import Trace


def exchanges(
    world: int, operations: int, *, bytes_a_rank: int, dense: bool, seed: int = 0
) -> Trace:
    """Exchanges of uneven sizes that end before the next begins, after random gaps."""
    rng = np.random.default_rng(seed)
    iterations = max(1, operations // 40)
    sites = []
    for number in range(40):
        layer, phase = divmod(number, len(PHASES))
        sites.append(
            Site(group=0, operation="all_to_all", phase=PHASES[phase], layer=layer)
        )
        if dense:
            sites.append(Site(group=1, operation="all_reduce", slot=number))
    count = len(sites) * iterations
    when = np.tile(np.arange(iterations, dtype=np.int64), len(sites))
    which = np.repeat(np.arange(len(sites), dtype=np.int32), iterations)
    turn = when * len(sites) + which
    gaps = rng.integers(500_000, 3_000_000, count)
    issue = (np.cumsum(gaps + 100_000))[turn]
    square = np.array([s.operation == "all_to_all" for s in sites])[which]
    exchanged = int(square.sum())
    groups = [Group(kind=kind, ranks=tuple(range(world))) for kind in ("ep", "dp")]
    panels = blank_panels(groups, sites, which)
    panels[f"call_{world}/wire"] = ArrayPanel(
        rng.integers(0, 2 * bytes_a_rank // world + 1, (exchanged, world, world))
    )
    panels[f"call_{world}/volume"] = constant_panel(
        (1, world), np.int64, bytes_a_rank // 4 * 4
    )
    for name, later in (("issue", 0), ("start", 0), ("end", 100_000)):
        times = np.repeat((issue + later)[:, None], world, axis=1)
        panels[f"call_{world}/{name}"] = ArrayPanel(times)
    return Trace(
        meta=Meta(world=world, dp=world),
        groups=groups,
        sites=sites,
        occurrences=Occurrences(
            iteration=when,
            site=which,
            sequence=np.full(count, -1, np.int64),
            matrix=np.where(square, np.cumsum(square) - 1, 0),
            transposed=np.zeros(count, bool),
        ),
        panels=panels,
        steps=replace(
            Steps.of_training(np.arange(iterations), world),
            start=np.zeros((iterations, world), np.int64),
            end=np.ones((iterations, world), np.int64),
        ),
    )

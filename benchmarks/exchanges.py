"""A trace of exchanges with gaps, for benchmarks of a replay."""

from __future__ import annotations

from typing import Any

import numpy as np

from moetraffic.trace.model import (
    PHASES,
    Group,
    Meta,
    Occurrences,
    Site,
    Steps,
    WireForm,
)
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.trace import Trace


def exchanges(
    world: int, operations: int, *, bytes_a_rank: int, dense: bool, seed: int = 0
) -> Trace:
    """Exchanges of uneven sizes that end before the next begins, after random gaps."""
    rng = np.random.default_rng(seed)
    iterations = max(1, operations // 40)
    sites = [
        Site(group=0, operation="all_to_all", phase=p, layer=n, wire=WireForm.STORED)
        for n in range(10)
        for p in PHASES
    ]
    each = len(sites)
    if dense:
        constant = (bytes_a_rank // 4 * 4,) * world
        sites += [
            Site(
                group=1,
                operation="all_reduce",
                slot=n,
                wire=WireForm.CONSTANT,
                constant=constant,
            )
            for n in range(each)
        ]
    count = len(sites) * iterations
    when = np.tile(np.arange(iterations, dtype=np.int64), len(sites))
    which = np.repeat(np.arange(len(sites), dtype=np.int32), iterations)
    # an all-reduce follows the exchange of its number
    order = np.argsort(np.arange(len(sites)) % each, kind="stable")
    place = np.empty(len(sites), np.int64)
    place[order] = np.arange(len(sites))
    turn = when * len(sites) + place[which]
    gaps = rng.integers(500_000, 3_000_000, count)
    issue = (np.cumsum(gaps + 100_000))[turn]
    wire = rng.integers(
        0, 2 * bytes_a_rank // world + 1, (each * iterations, world, world)
    )
    panels: dict[str, Any] = {
        f"present_{world}": ArrayPanel(np.ones((count, world), np.uint8)),
        f"wire_{world}": ArrayPanel(wire),
    }
    for name, later in (("issue", 0), ("start", 0), ("end", 100_000)):
        times = np.repeat((issue + later)[:, None], world, axis=1)
        panels[f"{name}_{world}"] = ArrayPanel(times)
    everyone = tuple(range(world))
    return Trace(
        meta=Meta(world=world, dp=world),
        groups=[Group(kind="ep", ranks=everyone), Group(kind="dp", ranks=everyone)],
        sites=sites,
        occurrences=Occurrences(
            iteration=when, site=which, sequence=np.full(count, -1, np.int64)
        ),
        panels=panels,
        steps=Steps(
            iteration=np.arange(iterations, dtype=np.int64),
            kind=("train",) * iterations,
            loss=np.full((iterations, world), np.nan),
            tokens=np.full((iterations, world), -1, np.int64),
            start=np.zeros((iterations, world), np.int64),
            end=np.ones((iterations, world), np.int64),
        ),
    )

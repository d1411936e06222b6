"""A small trace in memory, with everything that a trace can hold."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.trace import (
    PHASES,
    UNKNOWN_TIME,
    DroppedForm,
    Group,
    Meta,
    Occurrences,
    Program,
    Site,
    Steps,
    Trace,
    WireForm,
)
from moetraffic.trace.model import CLOCK, PLACEMENT
from moetraffic.trace.panel import ArrayPanel

ITERATIONS, LAYERS, RANKS, EXPERTS, ROW = 40, 2, 4, 8, 512


def make_trace(seed: int = 0, *, missing: tuple[int, int] | None = None) -> Trace:
    """Two layers over one group of 4; a stored all-gather on a group of 2.

    ``missing`` (iteration, rank): that rank's records from then on are absent.
    """
    rng = np.random.default_rng(seed)
    groups = [
        Group(kind="ep", ranks=(0, 1, 2, 3)),
        Group(kind="dp", ranks=(0, 2)),
    ]
    sites: list[Site] = []
    for layer in range(LAYERS):
        routing = len(sites)
        sites.append(
            Site(
                group=0,
                operation="routing",
                layer=layer,
                experts=EXPERTS,
                dropped=DroppedForm.STORED if layer else DroppedForm.NONE,
            )
        )
        sites += [
            Site(
                group=0,
                operation="all_to_all",
                phase=phase,
                layer=layer,
                direction="backward" if "grad" in phase else "forward",
                dtype="float32",
                row_bytes=ROW,
                wire=WireForm.DEMAND,
                routing=routing,
                wire_checked=ITERATIONS,
            )
            for phase in PHASES
        ]
    sites.append(
        Site(
            group=1,
            operation="all_reduce",
            label="gradient_sync",
            dtype="float32",
            row_bytes=4,
            wire=WireForm.CONSTANT,
            constant=(4096, 4096),
        )
    )
    sites.append(Site(group=1, operation="all_gather", wire=WireForm.STORED))
    sites.append(Site(group=0, operation="all_to_all", wire=WireForm.STORED))
    count = len(sites)
    every = Occurrences(
        iteration=np.tile(np.arange(ITERATIONS), count),
        site=np.repeat(np.arange(count), ITERATIONS).astype(np.int32),
        sequence=np.tile(np.arange(ITERATIONS), count),
    )
    demand = rng.multinomial(64, rng.dirichlet(np.ones(EXPERTS), (80, RANKS)))
    panels = {
        "demand_4x8": ArrayPanel(demand.astype(np.int32)),
        "dropped_4x8": ArrayPanel((demand[40:] // 8).astype(np.int32)),
        "volume_2": ArrayPanel(rng.integers(0, 1 << 40, (ITERATIONS, 2))),
        "wire_4": ArrayPanel(rng.integers(0, 1 << 40, (ITERATIONS, 4, 4))),
    }
    for width, rows in ((4, (count - 2) * ITERATIONS), (2, 2 * ITERATIONS)):
        issue = np.sort(rng.integers(0, 1 << 40, (rows, width)), axis=0)
        panels[f"issue_{width}"] = ArrayPanel(issue)
        panels[f"start_{width}"] = ArrayPanel(np.full_like(issue, UNKNOWN_TIME))
        panels[f"end_{width}"] = ArrayPanel(issue + 1000)
        present = np.ones((rows, width), np.uint8)
        if missing and width == 4:
            when = every.iteration[
                np.isin(every.site, (count - 3, count - 2), invert=True)
            ]
            present[when >= missing[0], missing[1]] = 0
        panels[f"present_{width}"] = ArrayPanel(present)
    placements = np.zeros(LAYERS * EXPERTS, PLACEMENT)
    placements["layer"] = np.repeat(range(LAYERS), EXPERTS)
    placements["expert"] = np.tile(range(EXPERTS), LAYERS)
    placements["rank"] = placements["expert"] // 2
    shape = (ITERATIONS, RANKS)
    return Trace(
        meta=Meta(world=RANKS, ep=4, dp=4, experts=EXPERTS, model="größe"),
        groups=groups,
        sites=sites,
        occurrences=every,
        panels=panels,
        steps=Steps(
            iteration=np.arange(ITERATIONS),
            kind=("train",) * (ITERATIONS - 1) + ("evaluation",),
            loss=rng.random(shape),
            tokens=np.full(shape, 64),
            start=np.zeros(shape, np.int64),
            end=np.ones(shape, np.int64),
        ),
        programs=[Program(rank=0, kind="train", sites=tuple(range(count)))],
        placements=placements,
        clocks=np.array([(1, 10, 5, 2), (1, 30, 25, 2)], CLOCK),
    )


@pytest.fixture
def trace() -> Trace:
    return make_trace()


@pytest.fixture
def ragged() -> Trace:
    """Rank 2's records end before iteration 30."""
    return make_trace(missing=(30, 2))

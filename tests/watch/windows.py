"""Segments of a small run, as its ranks would commit them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from moetraffic.trace.model import (
    ALL_TO_ALL,
    PLACEMENT,
    ROUTING,
    Group,
    Meta,
    Site,
    Source,
)
from moetraffic.trace.segments.segment import (
    EVENT,
    STEP,
    Segment,
    rank_folder,
    write_segment,
)

LAYERS, EXPERTS, ROW, TOKENS, K = 2, 4, 64, 96, 2
STEP_NS, CALL_NS = 1_000_000, 100_000


def routed(rank: int, step: int, layer: int) -> np.ndarray:
    """Token copies of a rank for each expert, ``[E]``."""
    rng = np.random.default_rng([rank, step, layer])
    return rng.multinomial(TOKENS * K, [0.4, 0.3, 0.2, 0.1])


def window(
    rank: int,
    index: int,
    calls: Sequence[tuple[int, int]],
    *,
    world: int = 2,
    k: int = K,
    final: bool = False,
    unmarked: bool = False,
) -> Segment:
    """Segment with (step, layer) calls; a step ends with its last layer."""
    group = Group(kind="ep", ranks=tuple(range(world)))
    sites = []
    for layer in range(LAYERS):
        sites += [
            Site(group=0, operation=ROUTING, layer=layer, experts=EXPERTS),
            Site(
                group=0,
                operation=ALL_TO_ALL,
                phase="dispatch",
                layer=layer,
                dtype="float32",
                row_bytes=ROW,
            ),
        ]
    events = np.zeros(2 * len(calls), EVENT)
    demand = np.zeros((len(calls), 2, EXPERTS), np.int32)
    splits = np.zeros((len(calls), 2, world), np.int64)
    held = EXPERTS // world
    steps = []
    for row, (step, layer) in enumerate(calls):
        mine = routed(rank, step, layer)
        demand[row, 0] = mine
        splits[row, 0] = ROW * mine.reshape(world, held).sum(axis=1)
        splits[row, 1] = [
            ROW * routed(r, step, layer)[rank * held : (rank + 1) * held].sum()
            for r in range(world)
        ]
        issue = STEP_NS * step + 3 * CALL_NS * layer + CALL_NS
        for kind in range(2):
            event = events[2 * row + kind]
            event["iteration"] = -1 if unmarked else step
            event["site"], event["payload"] = 2 * layer + kind, row
            event["sequence"] = LAYERS * step + layer
            event["issue"] = event["start"] = issue
            event["end"] = issue + CALL_NS
            event["grad"], event["link"] = 1, -1
        if layer == LAYERS - 1 and not unmarked:
            begin = STEP_NS * step
            end = begin + STEP_NS
            known = (step, 5.0 - step / 100, TOKENS, begin, end)
            steps.append((*known, Source.ANNOTATED))
    placement = [
        (0, layer, expert, 0, expert // held, 0)
        for layer in range(LAYERS)
        for expert in range(EXPERTS)
    ]
    return Segment(
        rank=rank,
        index=index,
        final=final,
        node=f"node{rank}",
        meta=Meta(world=world, k=k, experts=EXPERTS, ep=world, backend="gloo"),
        groups=(group,),
        sites=tuple(sites),
        events=events,
        steps=np.array(steps, STEP),
        kinds=("train",) * len(steps),
        splits={world: splits},
        demand={EXPERTS: demand},
        placements=np.array(placement, PLACEMENT),
        continued=bool(calls) and calls[0][1] > 0,
    )


def calls_of(steps: range) -> list[tuple[int, int]]:
    return [(step, layer) for step in steps for layer in range(LAYERS)]


def write(folder: Path, segment: Segment) -> Path:
    rank_folder(folder, segment.rank).mkdir(parents=True, exist_ok=True)
    return write_segment(segment, folder)


def put(folder: Path, rank: int, index: int, steps: range, **more: object) -> Path:
    return write(folder, window(rank, index, calls_of(steps), **more))  # type: ignore[arg-type]


def close(folder: Path, *ranks: int) -> None:
    for rank in ranks:
        (folder / f"rank-{rank:05d}" / "closed").touch()

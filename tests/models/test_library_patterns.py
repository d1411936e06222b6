"""torch's own wrappers and schedules call what is said of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moetraffic.patterns import Layout, ModelShape, Training, Workload
from moetraffic.patterns.calls import megatron_pattern, workload_pattern
from moetraffic.trace import Trace

Run = Callable[..., list[Any]]

SHAPE = ModelShape(layers=4, hidden=96, heads=2, sequence=32, experts=0)


def sent(trace: Trace, iteration: int, rank: int) -> dict[str, list[int]]:
    """Bytes of a rank's collectives of more than a norm's or a loss's, in order."""
    found: dict[str, list[int]] = {}
    for occurrence in trace.order(rank):
        site = trace.sites[trace.occurrences.site[occurrence]]
        if trace.occurrences.iteration[occurrence] == iteration:
            mine = trace.groups[site.group].ranks.index(rank)
            size = int(trace.volume(np.array([occurrence]))[0, mine])
            if size > 16:
                found.setdefault(site.operation, []).append(size)
    return found


@pytest.mark.parametrize(
    ("how", "options", "name", "asked"),
    [
        ("ddp", {}, "ddp", {}),
        ("ddp", {"bucket_cap_mb": 0.5}, "ddp", {"bucket_mib": 0.5}),
        ("fsdp1", {}, "fsdp1", {}),
        ("fsdp2", {"reshard_after_forward": False}, "fsdp2", {"keep": True}),
        ("fsdp2", {"reshard_after_forward": True}, "fsdp2", {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_wrapped_model_calls_what_was_predicted(
    how: str,
    options: dict[str, Any],
    name: str,
    asked: dict[str, Any],
    world: int,
    run_ranks: Run,
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.h5"
    run_ranks(
        "wrapped",
        world,
        shape=asdict(SHAPE),
        how=how,
        options={**options, "capture": str(path)},
    )
    work = Workload(
        model=SHAPE,
        layout=Layout(dp=world, synchronization=name, **asked),
        training=Training(micro_batch=2, clip=0.0),
    )
    pattern = workload_pattern(work)
    expected: dict[str, list[int]] = {}
    for call, _ in pattern.program(0):
        expected.setdefault(call.operation, []).append(call.size)
    with Trace.open(path) as trace:
        for rank in range(world):
            assert sent(trace, 2, rank) == expected
    assert len(expected) > 1 or len(expected["all_reduce"]) > 1


@pytest.mark.parametrize(
    ("stages", "virtual", "micro_batches"),
    [(3, 2, 6), pytest.param(4, 2, 4, marks=pytest.mark.slow)],
)
def test_an_interleaved_pipeline_has_a_wrap_around(
    stages: int, virtual: int, micro_batches: int, run_ranks: Run, tmp_path: Path
) -> None:
    path = tmp_path / "run.h5"
    shape = ModelShape(
        layers=2 * stages, hidden=16, heads=2, sequence=8, experts=0, tied=False
    )
    run_ranks(
        "interleaved",
        stages,
        shape=asdict(shape),
        virtual=virtual,
        micro_batches=micro_batches,
        capture=str(path),
    )
    plan = Layout(
        pp=stages,
        accumulation=micro_batches,
        virtual=virtual,
        dtype="float32",
    )
    pattern = megatron_pattern(shape, plan)
    with Trace.open(path) as trace:
        for rank in range(stages):
            expected = Counter(
                (call.peers, call.size)
                for call, _ in pattern.program(rank)
                if call.traffic == "PP"
            )
            seen: Counter[Any] = Counter()
            for occurrence in trace.order(rank):
                site = trace.sites[trace.occurrences.site[occurrence]]
                if trace.occurrences.iteration[occurrence] != 1 or site.peers[0] < 0:
                    continue
                volume = trace.volume(np.array([occurrence]))[0]
                seen[site.peers, int(volume[site.peers[0]])] += 1
            assert seen == expected
        around = [s for s in trace.sites if s.peers == (stages - 1, 0)]
        assert around

"""What a pattern says before a run is what the run's hook sees, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moetraffic.patterns import Workload
from moetraffic.patterns.calls import Pattern, workload_pattern
from moetraffic.trace import Trace

Run = Callable[..., list[Any]]
Small = Callable[..., Workload]
Called = dict[tuple[Any, ...], list[Any]]

PADDED = {"dispatch": "padded", "capacity_factor": 0.75}


def predicted(pattern: Pattern, rank: int) -> Called:
    """A rank's calls by group and operation, in order: (place, bytes, root or not)."""
    found: Called = {}
    for call, _ in pattern.program(rank):
        groups = pattern.layout.groups(call.group)
        group = next(ranks for ranks in groups if rank in ranks)
        key = (call.group, group, call.operation, call.peers)
        size = call.size if call.exact else "?"
        place = (call.phase or call.label, call.layer)
        found.setdefault(key, []).append((*place, size))
    return found


def captured(trace: Trace, rank: int, iteration: int = 1) -> Called:
    found: Called = {}
    for occurrence in trace.order(rank):
        if trace.occurrences.iteration[occurrence] != iteration:
            continue
        site = trace.sites[trace.occurrences.site[occurrence]]
        if site.operation == "routing":
            continue
        group = trace.groups[site.group]
        here, mine = np.array([occurrence]), group.ranks.index(rank)
        if site.operation == "all_to_all":
            size = int(trace.wire(here)[0, mine].sum())
        else:
            size = int(
                trace.volume(here)[0, mine if site.peers[0] < 0 else site.peers[0]]
            )
        key = (group.kind, group.ranks, site.operation, site.peers)
        found.setdefault(key, []).append((site.phase or site.label, site.layer, size))
    return found


def agree(pattern: Pattern, trace: Trace) -> int:
    """Every rank calls in iteration 1 what was predicted; how many calls that is."""
    calls = 0
    for rank in range(trace.meta.world):
        said, seen = predicted(pattern, rank), captured(trace, rank)
        assert set(said) == set(seen), rank
        for key, mine in said.items():
            theirs = [
                (*place, "?") if told[-1] == "?" else (*place, size)
                for told, (*place, size) in zip(mine, seen[key], strict=True)
            ]
            if key[2] == "reduce":  # a bucket is sent when its last gradient came
                mine, theirs = sorted(mine), sorted(theirs)
            assert mine == theirs, (rank, key)
            calls += len(mine)
    return calls


def holds(work: Workload, run_ranks: Run, folder: Path) -> int:
    path = folder / "run.h5"
    run_ranks("training", work.layout.world, workload=work.to_json(), capture=str(path))
    with Trace.open(path) as trace:
        return agree(workload_pattern(work), trace)


EIGHT = {"dp": 2, "ep": 2, "tp": 2, "pp": 2}


@pytest.mark.parametrize(
    ("layout", "changes"),
    [
        (EIGHT, {**PADDED, "accumulation": 3}),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ({"dp": 4, "ep": 2, "zero": 1}, {**PADDED, "recompute": True}),
                ({"dp": 4, "ep": 2, "zero": 2}, {"dispatch": "dropless"}),
                ({"dp": 4, "ep": 2, "zero": 3}, PADDED),
            )
        ),
    ],
    ids=str,
)
def test_a_run_calls_what_was_predicted(
    layout: dict[str, Any],
    changes: dict[str, Any],
    run_ranks: Run,
    small: Small,
    tmp_path: Path,
) -> None:
    assert holds(small(layout, **changes), run_ranks, tmp_path) > 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "changes"),
    [
        ({"dp": 2}, {"experts": 0, "bias": True, "norm_bias": True}),
        ({"dp": 3, "zero": 1}, {"experts": 0, "bias": True}),
        ({"dp": 3, "zero": 2}, {"experts": 0}),
        ({"dp": 3, "zero": 3}, {"experts": 0, "accumulation": 3}),
        ({"dp": 4, "ep": 4, "zero": 2}, PADDED),
        ({"dp": 4, "ep": 4, "zero": 3}, PADDED),
        ({"dp": 4, "ep": 2, "tp": 2, "zero": 1}, {**PADDED, "bias": True}),
        ({"dp": 4, "ep": 2, "tp": 2, "zero": 2}, {**PADDED, "bias": True}),
        ({"dp": 4, "ep": 2, "tp": 2, "zero": 3}, PADDED),
        ({"tp": 2}, {"recompute": True, "dispatch": "padded"}),
        ({"tp": 2}, {"recompute": True, "shared_ffn": 32, "dispatch": "padded"}),
        (
            {"tp": 2},
            {"recompute": True, "shared_ffn": 32, "shared_gate": True, **PADDED},
        ),
        ({"tp": 2, "dp": 2, "ep": 2}, {"shared_ffn": 32, "dispatch": "dropped"}),
        ({"pp": 4}, {"accumulation": 5, "experts": 0}),
        ({"pp": 3}, {"accumulation": 4, "tied": False}),
        ({"pp": 2, "dp": 4, "ep": 2, "zero": 1}, {"accumulation": 4}),
        ({**EIGHT, "order": "pp-tp-cp-ep-dp"}, PADDED),
        ({**EIGHT, "zero": 1, "order": "dp-ep-cp-pp-tp"}, {"recompute": True}),
        ({"dp": 2, "ep": 2}, {"balance_scope": "global"}),
        ({"dp": 2, "ep": 2}, {"router": "deepseek", "k": 2}),
        ({"dp": 2, "ep": 2}, {"router": "hash", "balance": 0.0, "z_loss": 0.0, "k": 1}),
        (
            {"dp": 2, "ep": 2, "tp": 2},
            {"router": "fairscale", "dispatch": "padded", "capacity_factor": 1.0},
        ),
        (
            {"dp": 2, "ep": 2, "tp": 2},
            {"dtype": "float32", "precision": "bfloat16", "dispatch": "padded"},
        ),
        ({"dp": 2}, {"clip": 0.0, "experts": 0}),
        ({"dp": 4, "ep": 2, "zero": 3}, {**PADDED, "recompute": True}),
        ({"dp": 4, "ep": 2, "zero": 2}, {**PADDED, "recompute": True}),
        ({"dp": 2, "tp": 2, "ep": 1, "zero": 3}, {"recompute": True, "experts": 0}),
        ({"dp": 2, "ep": 2}, {"balance_scope": "global", "recompute": True, **PADDED}),
        ({"dp": 2, "ep": 2, "tp": 2}, {"router": "expert-choice", **PADDED}),
        ({"dp": 2, "ep": 2}, {"router": "sinkhorn", "balance": 0.0, **PADDED}),
        (
            {"dp": 2, "ep": 2},
            {"encoder_layers": 2, "positions": "sinusoidal", **PADDED},
        ),
    ],
    ids=str,
)
def test_every_option_calls_what_was_predicted(
    layout: dict[str, Any],
    changes: dict[str, Any],
    run_ranks: Run,
    small: Small,
    tmp_path: Path,
) -> None:
    holds(small(layout, **changes), run_ranks, tmp_path)

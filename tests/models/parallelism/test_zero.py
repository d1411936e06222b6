from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from moetraffic.patterns import Workload
from moetraffic.trace import Trace

Run = Callable[..., list[Any]]
Small = Callable[..., Workload]
Sent = Callable[..., dict[Any, list[int]]]

ELEMENT = 8  # float64


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        {"dp": 2, "zero": 1},
        {"dp": 2, "zero": 2},
        {"dp": 4, "ep": 4, "zero": 2},
        {"dp": 4, "ep": 4, "zero": 3},
        {"dp": 3, "zero": 3},  # shards are of different sizes
        {"zero": 1},  # there is nothing to shard
        {"zero": 3},
    ],
    ids=str,
)
def test_a_sharded_run_equals_one_process(
    layout: dict[str, Any], run_as_one: Run, small: Small
) -> None:
    ranks = run_as_one(small(layout))
    for result in ranks[1:]:  # after a step all ranks hold the same, bit for bit
        for name, values in result["dense"].items():
            assert torch.equal(values, ranks[0]["dense"][name]), name


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "zero", [pytest.param(1, marks=SLOW), pytest.param(2, marks=SLOW), 3]
)
def test_what_each_stage_sends(
    zero: int, tmp_path: Path, run_as_one: Run, small: Small, sent: Sent
) -> None:
    path = tmp_path / "run.h5"
    work = small({"dp": 4, "ep": 2, "zero": zero})
    ranks = run_as_one(work, capture=str(path))
    m = work.training.accumulation
    psi = {  # bytes of a rank's dense parameters and of its experts
        "dp": ELEMENT * sum(p.numel() for p in ranks[0]["dense"].values()),
        "edp": ELEMENT * sum(p.numel() for p in ranks[0]["experts"].values()),
    }
    copies = {"dp": 4, "edp": 2}
    with Trace.open(path) as trace:
        for rank in range(4):
            found = sent(trace, rank)
            exchanges = {k: v for k, v in found.items() if k[0] == "ep"}
            phases = {k[2] for k in exchanges}
            assert {"dispatch", "combine", "combine_grad", "dispatch_grad"} <= phases
            for kind, total in psi.items():
                once = (-1, "forward", (-1, -1))
                again = (-1, "backward", (-1, -1))
                if zero == 1:  # all-reduce, a broadcast an owner
                    label = "gradient_sync" if kind == "dp" else "expert_gradient_sync"
                    assert found[(kind, "all_reduce", label, *once)] == [total]
                if zero == 2:  # a reduce an owner and micro-batch
                    reduced = found[(kind, "reduce", "zero", *again)]
                    assert len(reduced) == m * copies[kind]
                    assert sum(reduced) == m * total
                if zero < 3:
                    told = found[(kind, "broadcast", "zero", *once)]
                    assert len(told) == copies[kind]
                    assert sum(told) == total
                if zero == 3:  # gathered twice, scattered once, in each micro-batch
                    for place in (once, again):
                        parts = found[(kind, "all_gather", "zero", *place)]
                        assert sum(parts) * copies[kind] == m * total
                    scattered = found[(kind, "reduce_scatter", "zero", *again)]
                    assert sum(scattered) == m * total
            whole = [k for k in found if k[1] == "all_reduce" and "sync" in k[2]]
            assert bool(whole) == (zero == 1)

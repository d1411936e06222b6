"""Step time of the demo's model with a capture, compared with none.

Two ranks on gloo train the same model again and again, in turns with and without a
recorder (``--hook native`` or ``python``).  A pair is two neighboring trainings, whose
order alternates; its ratio is that of the median step times.  The result is the median
of the pairs' ratios with a distribution-free 95% interval.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from page import save
from scipy.stats import quantile_test

from moetraffic import Recorder
from moetraffic.models import connect, train
from moetraffic.patterns import Gating, Layout, ModelShape, Training, Workload

RANKS, STEPS, FIRST = 2, 60, 4
WORK = Workload(
    model=ModelShape(layers=4, hidden=128, experts=8, moe_every=2),
    gating=Gating(router="topk", k=2, dispatch="dropless"),
    layout=Layout(dp=RANKS, ep=RANKS),
    training=Training(iterations=STEPS, corpus="random"),
)


def step_s(path: Path | None, groups: Any) -> float:
    """Median step time of a training, captured into ``path`` if it is given."""
    ends: list[float] = []
    recorder = None
    if path is not None:
        recorder = Recorder(path, workload=WORK, groups=groups.by_kind()).start()
    train(WORK, recorder, lambda *_: ends.append(time.perf_counter()), groups=groups)
    if recorder is not None:
        recorder.close(merged=False)
    dist.barrier()
    return float(np.median(np.diff(ends)[FIRST:]))


def run_rank(rank: int, folder: str, pairs: int) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    groups = connect(WORK.layout)
    step_s(None, groups)
    found = []
    for pair in range(pairs):
        times = {}
        for captured in (True, False) if pair % 2 else (False, True):
            path = Path(folder, f"{pair}.h5") if captured else None
            times[captured] = step_s(path, groups)
        found.append([times[False], times[True]])
    dist.destroy_process_group()
    Path(folder, f"times-{rank}.json").write_text(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--hook", choices=("native", "python"), default="native")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    os.environ["MOETRAFFIC_HOOK"] = given.hook
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(run_rank, (folder, given.pairs), RANKS)
        times = np.array(
            [json.loads(p.read_text()) for p in sorted(Path(folder).glob("times-*"))]
        ).mean(axis=0)
    ratios = times[:, 1] / times[:, 0]
    interval = quantile_test(ratios).confidence_interval(0.95)
    result = {
        "hook": given.hook,
        "pairs": given.pairs,
        "step_ms": float(np.median(times[:, 0]) * 1e3),
        "ratio": float(np.median(ratios)),
        "low": float(interval.low),
        "high": float(interval.high),
        "load": [load, os.getloadavg()[0]],
    }
    print(
        f"step of {result['step_ms']:.1f} ms without; with a capture ({given.hook}) "
        f"{result['ratio']:.3f} times [{result['low']:.3f}, {result['high']:.3f}], "
        f"{given.pairs} pairs; load {load:.1f} to {result['load'][1]:.1f}"
    )
    if given.json:
        save(given.json, result)


if __name__ == "__main__":
    main()

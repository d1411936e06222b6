"""Does the time model, calibrated on 2 ranks, tell the iteration time of 4?

Each rank lives in a network namespace whose link a token bucket limits (veth, tc tbf);
namespaces meet at a bridge.  Ranks are pinned so that each has half a core, with 2 as
with 4 ranks.  At each rate: collectives are measured on 2 and 4 ranks, a training run
of 2 ranks is captured, the model takes computing and the constant overhead from that
run and bandwidths from the measurement, and its prediction stands beside a captured
run of 4 ranks.

Without the rights to make namespaces it says so and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from page import save
from rate_limited import Hosts, hosts, limit, ranks

from moetraffic import Trace
from moetraffic.analysis.times.calibration import StepTimes, calibrated
from moetraffic.patterns.bandwidth import BandwidthTable, Sample
from moetraffic.timemodel import MeasuredLinks, estimate

SIZES = (1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 23)
REPEATS = 5
QUIET = 0.2
DENSE = (
    *("--layers", "4", "--hidden", "128", "--heads", "4", "--sequence", "64"),
    *("--micro-batch", "2", "--experts", "0"),
)
SPARSE = (
    *("--layers", "4", "--hidden", "128", "--heads", "4", "--sequence", "128"),
    *("--micro-batch", "4", "--experts", "4", "--ffn", "128"),
)
WORKLOADS = {"data parallel": DENSE, "expert parallel": SPARSE}


def measure_collectives() -> None:
    """What a rank of the measurement does; rank 0 prints."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    rows = []
    for collective in ("all_reduce", "all_to_all"):
        for size in SIZES:
            given = torch.ones(size // 4)
            taken = torch.empty_like(given)
            times = []
            for _ in range(REPEATS + 1):
                dist.barrier()
                began = time.perf_counter()
                if collective == "all_reduce":
                    dist.all_reduce(given)
                else:
                    dist.all_to_all_single(taken, given)
                times.append(time.perf_counter() - began)
            # one connects and fills the bucket
            spent = torch.tensor(times[1:], dtype=torch.float64)
            dist.all_reduce(spent, dist.ReduceOp.MAX)
            rows.append((collective, world, size, float(spent.median()) * 1e6))
    if rank == 0:
        print(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


def table(names: Sequence[str], port: int) -> list[Sample]:
    """Measured collectives of 2 and 4 ranks."""
    program = [sys.executable, __file__, "--measure"]
    found = []
    for number in (2, 4):
        for row in json.loads(ranks(names[:number], program, port + number)):
            collective, world, size, time_us = row
            found.append(
                Sample(
                    collective=collective,
                    ranks=world,
                    span=world,  # a rank is a node here
                    size_bytes=size,
                    time_us=time_us,
                )
            )
    return found


def captured(
    names: Sequence[str], options: Sequence[str], path: Path, steps: int, port: int
) -> None:
    """Train, one rank a namespace, and capture it."""
    words = [sys.executable, "-m", "moetraffic", "capture", "-o", str(path)]
    grid = ["--nproc", str(len(names)), "--iterations", str(steps)]
    ranks(names, [*words, *grid, *options], port)


def quiet(measured: StepTimes) -> dict[str, float]:
    """Times of the quietest fifth of the steps: other processes only add to them."""
    return {
        "iteration": float(np.quantile(measured.whole.max(axis=1), QUIET)),
        "computing": float(np.quantile(measured.computing.mean(axis=1), QUIET)),
    }


def compare(at: Hosts, rate: int, steps: int, folder: Path) -> list[dict[str, Any]]:
    limit(at, rate)
    names = at.names
    port = 20_000 + rate % 10_000
    links = MeasuredLinks(table=BandwidthTable(table(names, port)), gpus=1)
    out = []
    for number, (what, options) in enumerate(WORKLOADS.items()):
        paths = {n: folder / f"{rate}-{number}-{n}.h5" for n in (2, 4)}
        for size, path in paths.items():
            captured(names[:size], options, path, steps, port + 10 * number + size + 5)
        with Trace.open(paths[2]) as two, Trace.open(paths[4]) as four:
            small, large = calibrated(two), calibrated(four)
        # computing is the 2-rank run's, and what its terms leave out a constant
        before, took = quiet(small.measured), quiet(large.measured)
        faster = small.measured.compute_s / before["computing"]
        share = small.system.utilization * faster
        system = replace(small.system, bandwidth=links, utilization=share)
        own = float(estimate(small.config, system).iteration)
        left = max(before["iteration"] - own, 0.0)
        system = replace(system, iteration_overhead_s=left)
        config = large.config
        told = estimate(config, system)
        whole = took["iteration"]
        out.append(
            {
                "workload": what,
                "rate_mbps": rate,
                "two_ranks_s": round(before["iteration"], 4),
                "measured_s": round(whole, 4),
                "predicted_s": round(float(told.iteration), 4),
                "error": round(float(told.iteration) / whole - 1, 4),
                "computing_2_ranks_s": round(before["computing"], 4),
                "computing_4_ranks_s": round(took["computing"], 4),
                "overhead_s": round(left, 4),
                "comm_share_measured": round(large.measured.comm_share, 3),
                "comm_share_predicted": round(float(told.comm_share), 3),
                "load": round(os.getloadavg()[0], 1),  # of all processes, on the cores
            }
        )
        print(json.dumps(out[-1]), file=sys.stderr, flush=True)
    return out


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--rates", default="25,50,100", help="Mbit/s, with commas")
    asked.add_argument("--steps", type=int, default=16)
    asked.add_argument("--json", type=Path, help="write the results to this file")
    asked.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    told = asked.parse_args()
    if told.measure:
        measure_collectives()
        return
    rows: list[dict[str, Any]] = []
    try:
        with hosts(4) as at, tempfile.TemporaryDirectory() as folder:
            for rate in map(int, told.rates.split(",")):
                rows += compare(at, rate, told.steps, Path(folder))
    except (OSError, subprocess.TimeoutExpired) as error:
        save(told.json, {"skipped": f"no rate-limited namespaces here: {error}"})
        return
    errors = np.abs([row["error"] for row in rows])
    largest = float(errors.max())
    save(told.json, {"rows": rows, "largest_error": largest, "bound": 0.15})


if __name__ == "__main__":
    main()

"""Make the traffic models that ship: capture runs on real text, fit, save to data/.

Each run trains a small MoE GPT on the text of Python's standard library over 8 virtual
ranks; "early" is fitted to its first iterations, "late" to its last.  For each model
the mean difference of four samples to the capture is printed, with seeds that the fit
did not use.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from moetraffic.generate import TrafficModel
from moetraffic.trace import Trace
from moetraffic.validation.downstream import difference, downstream
from moetraffic.validation.routing_counts import routing_counts

DATA = Path(__file__).parents[1] / "data"
ITERATIONS = 400
SHAPE = """--virtual --ep 8 --layers 4 --moe-every 1 --hidden 32 --sequence 64
--micro-batch 4 --seed 0"""
RUNS = {
    "top1-balanced": "--router switch --experts 8",
    "top1-unbalanced": "--router switch --experts 8 --balance 0",
    "top2-balanced": "--router topk --k 2 --experts 8",
    "top2-unbalanced": "--router topk --k 2 --experts 8 --balance 0",
    "top8-balanced": "--router topk --k 8 --experts 32",
    "top8-lossfree": "--router deepseek --k 8 --experts 32 --balance 0",
}
SEEDS = (1001, 1002, 1003, 1004)
PARTS = {"early": range(0, 200), "late": range(200, ITERATIONS)}


def capture(name: str, folder: Path) -> Path:
    """Train and record one run."""
    path = folder / f"{name}.h5"
    command = [sys.executable, "-m", "moetraffic", "capture", *SHAPE.split()]
    command += [*RUNS[name].split(), "--iterations", str(ITERATIONS), "-o", str(path)]
    subprocess.run(command, check=True)
    return path


def fit(name: str, path: Path) -> None:
    """Fit the run's parts and save a model of each."""
    for part, iterations in PARTS.items():
        with Trace.open(path) as trace:
            model = TrafficModel.fit(trace, iterations=iterations)
        source = f"own run {name}, iterations {iterations.start}-{iterations.stop - 1}"
        model = replace(model, scenario=replace(model.scenario, source=source))
        target = DATA / f"traffic-{name}-{part}.h5"
        model.save(target, force=True)
        size = target.stat().st_size
        print(f"{target.name}: {size} bytes; {evidence(model, path, iterations)}")


def evidence(model: TrafficModel, path: Path, iterations: range) -> str:
    """Differences of four samples to the capture, in one line."""
    with Trace.open(path) as trace:
        run = routing_counts(trace)
    cut = slice(iterations.start, iterations.stop)
    captured = run.counts[cut]
    like = {"holder": run.holder, "width": run.width, "copy_bytes": run.copy_bytes}
    real = downstream(captured, **like)
    found = []
    for seed in SEEDS:
        demand = model.sample(iterations=len(captured), seed=seed)
        counts = np.concatenate([block for _, block in demand.blocks()])
        found.append(difference(downstream(counts, **like), real))
    return ", ".join(
        f"{name} {np.mean([one[name] for one in found]):+.1%}" for name in found[0]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(RUNS))
    parser.add_argument("--captures", type=Path, help="keep captures, take those there")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.captures or Path(scratch)
        for name in asked.names:
            path = folder / f"{name}.h5"
            fit(name, path if path.exists() else capture(name, folder))


if __name__ == "__main__":
    main()

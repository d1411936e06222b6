"""Make the traffic models that ship: capture runs on real text, fit, save to data/.

Each run trains a small MoE GPT on the text of Python's standard library over 8 virtual
ranks; "early" is fitted to its first iterations, "late" to its last.  For each model
the mean difference of four samples to the capture is printed, with seeds that the fit
did not use::

    python benchmarks/traffic_presets.py --captures presets top2-balanced
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from synthetic import Run, difference, figures, read

from moetraffic.synthetic import TrafficModel
from moetraffic.trace import Trace

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
PARTS = {"early": range(200), "late": range(200, ITERATIONS)}


def capture(name: str, folder: Path) -> Path:
    """Train and record one run."""
    path = folder / f"{name}.h5"
    command = [sys.executable, "-m", "moetraffic", "capture", *SHAPE.split()]
    command += [*RUNS[name].split(), "--iterations", str(ITERATIONS), "-o", str(path)]
    subprocess.run(command, check=True)
    return path


def evidence(model: TrafficModel, run: Run) -> str:
    """Mean differences of samples to a run, a row of data/README.md, in percent."""
    captured = figures(run)
    made = []
    for seed in SEEDS:
        counts = np.concatenate([*model.sample(seed=seed).counts.blocks()])
        made.append(difference(figures(replace(run, counts=counts)), captured))
    return " | ".join(
        f"{100 * np.mean([sample[name] for sample in made]):+.0f}" for name in captured
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
            trace = Trace.open(path if path.exists() else capture(name, folder))
            for part, iterations in PARTS.items():
                model = TrafficModel.fit([trace], iterations=iterations)
                of = f"own run {name}, iterations {iterations[0]} to {iterations[-1]}"
                model = replace(model, scenario=replace(model.scenario, source=of))
                model.save(DATA / f"traffic-{name}-{part}.h5", force=True)
                run = read(trace, iterations)
                print(f"| `{name}-{part}` | {evidence(model, run)} |", flush=True)


if __name__ == "__main__":
    main()

"""Speed of drawing counts of fitted models over numpy's multinomial, and large runs.

The second part streams a run to disk in a process of its own and tells its peak memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from moetraffic.generate import (
    TrafficModel,
    preset_model,
    synthetic_trace,
    write_synthetic_trace,
)
from moetraffic.generate.shares import probabilities

TURNS = 16


PRESETS = {1: "top1-balanced-late", 2: "top2-balanced-late", 8: "top8-balanced-late"}
"""Shipped models, by experts per token, of which the benchmark's captures are made."""


def fitted(
    *, ranks: int, experts: int, layers: int, tokens: int, k: int, iterations: int = 64
) -> TrafficModel:
    """A model fitted to a run of this size, which is sampled from a shipped one.

    The shipped model has as many layers as it has; those asked for repeat them.
    """
    shipped = preset_model(PRESETS[k])
    have = len(shipped.scenario.layers)
    repeat = np.arange(layers) % have
    first = shipped.scenario.exchanges[0]
    d, r = shipped.dynamics, shipped.rows
    wide = replace(
        shipped,
        scenario=replace(
            shipped.scenario,
            tokens=tokens,
            exchanges=tuple(replace(first, layer=layer) for layer in range(layers)),
        ),
        dynamics=replace(
            d,
            level=d.level[:, repeat],
            variance=d.variance[:, repeat],
            saturation=d.saturation[:, repeat],
        ),
        rows=replace(
            r,
            factors=r.factors[:, repeat],
            own=r.own[:, repeat],
            alignment=r.alignment[:, repeat],
        ),
        rhythm=None,
    )
    with tempfile.TemporaryDirectory() as folder:
        demand = wide.sample(
            iterations=iterations, seed=0, ranks=ranks, experts=experts
        )
        trace = synthetic_trace(demand, Path(folder), seed=0)
        return TrafficModel.fit(trace)


def speed(asked: argparse.Namespace) -> dict[str, object]:
    """Rows a second of processor time, of the model and of numpy's multinomial.

    The two take turns, for a processor's speed drifts: the ratio is of neighbors.
    """
    made = fitted(
        ranks=asked.ranks,
        experts=asked.experts,
        layers=asked.layers,
        tokens=asked.tokens,
        k=asked.k,
    )
    # what a process does once is done before the clock runs
    next(iter(made.sample(iterations=1, seed=0, threads=1).blocks()))
    iterations = max(1, asked.iterations // TURNS)
    rows = iterations * asked.layers * asked.ranks
    rng = np.random.default_rng(0)
    ours, bare = [], []
    for seed in range(TURNS):
        demand = made.sample(
            iterations=iterations, seed=seed, ranks=asked.ranks, threads=1
        )
        began = time.process_time()
        for _ in demand.blocks():
            pass
        ours.append(time.process_time() - began)
        shares = [
            probabilities(y, 1)
            for _, y in islice(made.dynamics.states(seed), iterations)
        ]
        began = time.process_time()
        for each in shares:
            for share in each:
                rng.multinomial(
                    asked.k * asked.tokens,
                    np.broadcast_to(share, (asked.ranks, asked.experts)),
                )
        bare.append(time.process_time() - began)
    ratios = np.divide(bare, ours)
    return {
        "k": asked.k,
        "rows": rows * TURNS,
        "rows_a_second": rows / float(np.median(ours)),
        "rows_a_second_of_numpys_multinomial": rows / float(np.median(bare)),
        "speed_over_numpys_multinomial": float(np.median(ratios)),
        "quartiles": np.quantile(ratios, (0.25, 0.75)).tolist(),
    }


def stream(asked: argparse.Namespace) -> dict[str, float]:
    """Time, file and peak memory of a run that is streamed to disk."""
    made = fitted(
        ranks=8,
        experts=asked.experts,
        layers=asked.layers,
        tokens=asked.tokens,
        k=asked.k,
    )
    demand = made.sample(iterations=asked.iterations, seed=0, ranks=asked.ranks)
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        path = Path(folder) / "synthetic.h5"
        began = time.perf_counter()
        write_synthetic_trace(demand, path, seed=0)
        spent = time.perf_counter() - began
        size = path.stat().st_size
    return {
        "ranks": asked.ranks,
        "experts": asked.experts,
        "iterations": asked.iterations,
        "seconds": spent,
        "file_mb": size / 1e6,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=400)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--k", type=int, default=1)
    parser.add_argument("--large", type=int, default=1000, metavar="ITERATIONS")
    parser.add_argument("--folder", type=Path, help="where the large run is written")
    parser.add_argument("--stream", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.stream:
        print(json.dumps(stream(asked)))
        return
    told: dict[str, object] = {
        "speed": [speed(replace_k(asked, k)) for k in sorted({asked.k, 2, 8})]
    }
    if asked.large:
        command = [sys.executable, __file__, "--stream", "--ranks", "1024"]
        command += ["--experts", "256", "--layers", str(asked.layers)]
        command += ["--iterations", str(asked.large), "--tokens", str(asked.tokens)]
        if asked.folder:
            command += ["--folder", str(asked.folder)]
        ran = subprocess.run(command, check=True, capture_output=True, text=True)
        told["stream"] = json.loads(ran.stdout)
    print(json.dumps(told, indent=2))


def replace_k(asked: argparse.Namespace, k: int) -> argparse.Namespace:
    return argparse.Namespace(**vars(asked) | {"k": k})


if __name__ == "__main__":
    main()

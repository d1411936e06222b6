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
from page import save

from moetraffic.generate import (
    TrafficModel,
    preset_model,
    synthetic_trace,
    write_synthetic_trace,
)
from moetraffic.generate.parametric.shares import probabilities

TURNS = 16


PRESETS = {1: "top1-balanced-late", 2: "top2-balanced-late", 8: "top8-balanced-late"}
"""Shipped models, by experts per token, of which the benchmark's captures are made."""


def wide(*, layers: int, tokens: int, k: int) -> TrafficModel:
    """A shipped model with more layers, which repeat its own."""
    shipped = preset_model(PRESETS[k])
    repeat = np.arange(layers) % len(shipped.scenario.layers)
    first = shipped.scenario.exchanges[0]
    d, r = shipped.dynamics, shipped.rows
    return replace(
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
            factors=r.factors[repeat],
            own=r.own[repeat],
        ),
        rhythm=None,
    )


def fitted(model: TrafficModel, *, ranks: int, experts: int) -> TrafficModel:
    """A model fitted to a run of this size, which is sampled from another model."""
    with tempfile.TemporaryDirectory() as folder:
        demand = model.sample(iterations=64, seed=0, ranks=ranks, experts=experts)
        return TrafficModel.fit(synthetic_trace(demand, Path(folder), seed=0))


def speed(asked: argparse.Namespace) -> dict[str, object]:
    """Rows a second of processor time, of models and of numpy's multinomial.

    ``fitted`` is a model of this size, ``scaled`` a shipped model whose experts are
    split.  They take turns, for a processor's speed drifts: ratios are of neighbors.
    """
    shipped = wide(layers=asked.layers, tokens=asked.tokens, k=asked.k)
    made = fitted(shipped, ranks=asked.ranks, experts=asked.experts)
    models = {"fitted": made, "scaled": shipped}
    size = {"ranks": asked.ranks, "experts": asked.experts, "threads": 1}
    # what a process does once is done before the clock runs
    for model in models.values():
        next(iter(model.sample(iterations=1, seed=0, **size).blocks()))
    iterations = max(1, asked.iterations // TURNS)
    rng = np.random.default_rng(0)
    spent: dict[str, list[float]] = {name: [] for name in (*models, "multinomial")}
    for seed in range(TURNS):
        for name, model in models.items():
            demand = model.sample(iterations=iterations, seed=seed, **size)
            began = time.process_time()
            for _ in demand.blocks():
                pass
            spent[name].append(time.process_time() - began)
        shares = [
            probabilities(x, 1)
            for x in islice(made.dynamics.states(seed, asked.k), iterations)
        ]
        began = time.process_time()
        for each in shares:
            for share in each:
                rng.multinomial(
                    asked.k * asked.tokens,
                    np.broadcast_to(share, (asked.ranks, asked.experts)),
                )
        spent["multinomial"].append(time.process_time() - began)
    ratios = {name: np.divide(spent["multinomial"], spent[name]) for name in models}
    return {
        "k": asked.k,
        "rows": iterations * asked.layers * asked.ranks * TURNS,
        **{
            f"speed of {name} over numpy's multinomial, quartiles": np.quantile(
                found, (0.25, 0.5, 0.75)
            )
            .round(2)
            .tolist()
            for name, found in ratios.items()
        },
    }


def stream(asked: argparse.Namespace) -> dict[str, float]:
    """Time, file and peak memory of a run that is streamed to disk."""
    shipped = wide(layers=asked.layers, tokens=asked.tokens, k=asked.k)
    made = fitted(shipped, ranks=8, experts=asked.experts)
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
    parser.add_argument("--json", type=Path, help="write the results to this file")
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
    save(asked.json, told)


def replace_k(asked: argparse.Namespace, k: int) -> argparse.Namespace:
    return argparse.Namespace(**vars(asked) | {"k": k})


if __name__ == "__main__":
    main()

"""Validate traffic generators: capture training runs, then apply the test suite.

Three routers are trained on real text (the source of Python's standard library),
several seeds each, with 8 virtual expert-parallel ranks, and captured; a capture takes
about a minute of one core::

    python benchmarks/generator.py capture --folder captures --seeds 0 1 2 3 4 5

Then each generator is fitted to every seed and sampled once from each fit.  Synthetic
trace k is compared with all seeds but k, next to seed k itself; the classifier is
trained on all pairs but one and tested on that one, at other times::

    python benchmarks/generator.py judge --folder captures -o generator.json

The first row of each router holds the first *real* seed against the others.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moetraffic.capture import VirtualRecorder
from moetraffic.generate.baselines import BASELINES
from moetraffic.generate.generator import Generator
from moetraffic.generate.model import TrafficModel
from moetraffic.models.corpus import load
from moetraffic.models.virtual_training import train_virtually
from moetraffic.patterns import Gating, ModelShape, ParallelLayout, Training, Workload
from moetraffic.trace import Trace
from moetraffic.validation.acceptance import MOST_AUC, accept, accept_paired
from moetraffic.validation.classifier import NAME
from moetraffic.validation.features import Features, count_features, trace_features

RANKS = 8

GENERATORS: dict[str, type[Generator]] = {"model": TrafficModel, **BASELINES}

REAL = "real run"
"""Stands for a generator that makes no error: the seed itself."""

ROUTERS = {
    # Switch with its load-balancing loss
    "switch": (Gating(router="switch", k=1, balance=0.01), 8),
    # the two most probable experts, nothing balances them
    "top2": (Gating(router="topk", k=2, balance=0.0), 8),
    # DeepSeek-V3's bias that balances without a loss
    "lossfree": (Gating(router="deepseek", k=2, balance=0.0), 16),
}
"""Name of the files, routing and number of experts."""


def workload(router: str, seed: int, iterations: int) -> Workload:
    gating, experts = ROUTERS[router]
    return Workload(
        model=ModelShape(
            layers=3, hidden=32, heads=2, sequence=64, moe_every=1, experts=experts
        ),
        gating=gating,
        layout=ParallelLayout(dp=RANKS, ep=RANKS),
        training=Training(
            iterations=iterations,
            micro_batch=4,
            learning_rate=2e-3,
            seed=seed,
            virtual=True,
        ),
    )


def capture(
    folder: Path, routers: list[str], seeds: list[int], iterations: int
) -> None:
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    corpus = load("", sequence=64)
    for seed in seeds:
        for router in routers:
            path = folder / f"{router}-seed{seed}.h5"
            if path.exists():
                continue
            began = time.perf_counter()
            work = workload(router, seed, iterations)
            with VirtualRecorder(path, workload=work) as recorder:
                losses = train_virtually(work, recorder, corpus=corpus)
            print(
                f"{path}: loss {sum(losses[-1]) / RANKS:.3f}, "
                f"{time.perf_counter() - began:.0f} s",
                flush=True,
            )


def sampled(
    generator: type[Generator], path: Path, name: str, seed: int = 1
) -> Features:
    """The features of one sample, as long as the run that it was fitted to."""
    with Trace.open(path) as trace:
        fitted = generator.fit(trace)
        demand = fitted.sample(iterations=len(trace.iterations), seed=seed)
        counts = np.concatenate([block for _, block in demand.blocks()])
    layers, slots = demand.scenario.layers, demand.scenario.slots
    # exchanges lie by slot, then layer: micro-batches are summed
    shape = (len(counts), len(slots), len(layers), *counts.shape[2:])
    return count_features(counts.reshape(shape).sum(axis=1), name=name, layers=layers)


def judge_router(
    router: str, paths: list[Path], names: list[str]
) -> list[dict[str, Any]]:
    """A row a generator."""
    real = []
    for path in paths:
        with Trace.open(path) as trace:
            real.append(trace_features(trace))
    rows = []
    for name in (REAL, *names):
        began = time.perf_counter()
        if name == REAL:
            found = accept(real[0], real[1:])
        else:
            found = accept_paired(
                # samples share no randomness: synthetic runs differ as seeds do
                [
                    sampled(GENERATORS[name], path, name, seed)
                    for seed, path in enumerate(paths, 1)
                ],
                real,
            )
        failed = sorted({t.name for t in found.failures})
        rows.append(
            {
                "router": router,
                "generator": name,
                "passed": found.passed,
                "failed": len(found.failures),
                "tests": len(found.tests),
                "failed_names": failed,
                "least_p": min(t.p for t in found.tests),
                "auc": found.auc if name != REAL else float("nan"),
                "seconds": time.perf_counter() - began,
                "trials": [
                    {
                        "name": t.name,
                        "measure": t.measure,
                        "layer": t.layer,
                        "distance": t.distance,
                        "usual": t.usual,
                        "p": t.p,
                        "adjusted": t.adjusted,
                    }
                    for t in found.tests
                ],
            }
        )
        print(line(rows[-1]), flush=True)
    return rows


HEAD = (
    "| router | generator | verdict | tests failed | AUC on held-out pairs | "
    "what tells it |\n|---|---|---|---|---|---|"
)


def line(row: dict[str, Any]) -> str:
    """A row of the table in Markdown."""
    auc = row["auc"]
    passed = "passes" if row["passed"] else "fails"
    told = "; ".join(row["failed_names"][:3])
    more = len(row["failed_names"]) - 3
    return (
        f"| {row['router']} | {row['generator']} | {passed} | "
        f"{row['failed']} of {row['tests']} | "
        f"{'' if np.isnan(auc) else f'{auc:.2f}'} | "
        f"{told}{f' and {more} more' if more > 0 else ''} |"
    )


def judge(folder: Path, output: Path, routers: list[str], names: list[str]) -> None:
    print(HEAD)
    rows = []
    for router in routers:
        paths = sorted(folder.glob(f"{router}-seed*.h5"))
        if len(paths) < 4:
            raise SystemExit(f"{router}: {len(paths)} captures; 4 seeds are needed")
        rows += judge_router(router, paths, names)
    told = {"classifier": NAME, "most_auc": MOST_AUC, "rows": rows}
    output.write_text(json.dumps(told, indent=1) + "\n")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    parts = asked.add_subparsers(dest="part", required=True)
    captured = parts.add_parser("capture", help="Train and capture.")
    judged = parts.add_parser("judge", help="Fit, sample and try to tell apart.")
    for part in (captured, judged):
        part.add_argument("--folder", type=Path, default=Path("captures"))
        part.add_argument("--routers", nargs="+", default=list(ROUTERS))
    captured.add_argument("--seeds", nargs="+", type=int, default=list(range(6)))
    captured.add_argument("--iterations", type=int, default=800)
    judged.add_argument("-o", "--output", type=Path, default=Path("generator.json"))
    judged.add_argument("--generators", nargs="+", default=list(GENERATORS))
    told = asked.parse_args()
    if told.part == "capture":
        capture(told.folder, told.routers, told.seeds, told.iterations)
    else:
        judge(told.folder, told.output, told.routers, told.generators)


if __name__ == "__main__":
    main()

"""How fast the analysis is: skew statistics in memory, beside a loop over matrices.

Matrices of token copies, R = E = 64, as a skewed gate draws them.  Both ways compute
the same: entropy, Gini, CV, largest over mean and zero cells of each matrix, with row
and column sums and their entropies.  The best of several rounds is reported, with the
load of the machine beside it: other work on the same cores makes both slower.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from page import save
from scipy import stats

from moetraffic.analysis.skew.kernels import matrix_statistics

LIMITS = {"gb_a_cpu_second": 0.2, "times_a_scipy_loop": 20.0}
RANKS = EXPERTS = 64
DISTINCT = 4096  # matrices, then the same again


def demand(gigabytes: float, kind: str) -> npt.NDArray[Any]:
    """``[N, 64, 64]`` counts of about 32 token copies a cell, some cells many more."""
    rng = np.random.default_rng(1)
    shares = rng.lognormal(3, 1, (RANKS, EXPERTS))
    number = int(gigabytes * 1e9) // (RANKS * EXPERTS * np.dtype(kind).itemsize)
    distinct = rng.poisson(shares, (min(number, DISTINCT), RANKS, EXPERTS))
    out = np.empty((number, RANKS, EXPERTS), kind)
    for first in range(0, number, len(distinct)):
        part = out[first : first + len(distinct)]
        part[:] = distinct[: len(part)]
    return out


def by_scipy(matrices: npt.NDArray[Any]) -> list[tuple[float, ...]]:
    """What a user would write: a loop over matrices."""
    found = []
    for matrix in matrices:
        cells = matrix.ravel().astype(np.float64)
        ordered = np.sort(cells)
        weights = 2 * np.arange(1, len(cells) + 1) - len(cells) - 1
        sent, received = matrix.sum(axis=1), matrix.sum(axis=0)
        found.append(
            (
                float(stats.entropy(cells, base=2)),
                float(stats.variation(cells)),
                float(weights @ ordered / (len(cells) * ordered.sum())),
                float(cells.max() / cells.mean()),
                float((cells == 0).mean()),
                float(stats.entropy(sent, base=2)),
                float(stats.entropy(received, base=2)),
                float(max(sent.max(), received.max())),
            )
        )
    return found


def best(rounds: int, work: Callable[[], object]) -> float:
    """Seconds of the fastest round."""
    spent = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        spent.append(time.perf_counter() - began)
    return min(spent)


def in_memory(gigabytes: float, rounds: int) -> dict[str, dict[str, float]]:
    """GB/s of the array, and how many times a scipy loop that is."""
    told: dict[str, dict[str, float]] = {}
    for kind in ("int32", "int64"):
        matrices = demand(gigabytes, kind)
        began = time.perf_counter()
        matrix_statistics(matrices[:2])
        first = time.perf_counter() - began

        def fast(matrices: npt.NDArray[Any] = matrices) -> None:
            matrix_statistics(matrices)

        def slow(matrices: npt.NDArray[Any] = matrices[:200]) -> None:
            by_scipy(matrices)

        seconds = best(rounds, fast)
        began_cpu = time.process_time()
        fast()
        cpu = time.process_time() - began_cpu
        loop = best(rounds, slow) / 200 * len(matrices)
        one = matrix_statistics(matrices[:1])
        assert abs(float(one.entropy[0]) - by_scipy(matrices[:1])[0][0]) < 1e-9
        told[kind] = {
            "gb": matrices.nbytes / 1e9,
            "matrices": len(matrices),
            "first_call_s": first,
            "seconds": seconds,
            "gb_s": matrices.nbytes / seconds / 1e9,
            "gb_a_cpu_second": matrices.nbytes / cpu / 1e9,
            "scipy_loop_gb_s": matrices.nbytes / loop / 1e9,
            "times_a_scipy_loop": loop / seconds,
        }
    return told


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--gigabytes", type=float, default=0.5)
    asked.add_argument("--rounds", type=int, default=7)
    asked.add_argument("--json", type=Path, help="write the results to this file")
    told = asked.parse_args()
    before = os.getloadavg()[0]
    found = in_memory(told.gigabytes, told.rounds)
    load = {"before": before, "after": os.getloadavg()[0]}
    report = {"skew_in_memory": found, "limits": LIMITS, "load": load}
    save(told.json, report)


if __name__ == "__main__":
    main()

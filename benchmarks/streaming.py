"""How fast a trace larger than memory is read and analyzed, and in how much memory.

The trace's matrices are drawn around the expert loads of the golden capture of a real
run, so that they compress as captured ones do.  Each file is read several times by a
process of its own, whose best is told, and its first beside it.  All times are
processor times, so that other work on the machine hardly changes them.  Time is linear
where the second half of a file takes as long a byte as the first: *slope* is what one
more GB takes.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from page import save

from moetraffic.data import path as data_path
from moetraffic.trace import ROUTING, Group, Meta, Steps, Trace
from moetraffic.trace.matrix import contiguous_placement
from moetraffic.trace.panel import ComputedPanel
from moetraffic.trace.routed import RoutedLayer, trace_of_routing

TOKENS = 32768  # copies of a rank in an iteration
ROUNDS = 5
DRAWN = 1024  # matrices; longer traces are blocks of them in other orders


def repeated(
    matrices: np.ndarray[Any, Any], rows: int, block: int, seed: int
) -> ComputedPanel:
    """Return a panel ``[N, ...]`` of blocks of drawn matrices, made when it is read."""
    blocks = np.random.default_rng(seed).integers(
        0, len(matrices) // block, rows // block + 1
    )

    def compute(start: int, stop: int) -> np.ndarray[Any, Any]:
        at = np.arange(start, stop)
        return matrices[blocks[at // block] * block + at % block]

    return ComputedPanel((rows, *matrices.shape[1:]), matrices.dtype, compute)


def drawn(ranks: int, experts: int, tokens: int, count: int) -> np.ndarray[Any, Any]:
    """Demand ``[count, R, E]`` int32 around the loads of a captured run."""
    rng = np.random.default_rng(1)
    with Trace.open(data_path("golden.h5")) as trace:
        seen = trace.demand(trace.complete(trace.find(operation=ROUTING))).sum(axis=1)
    shares = np.sort(seen / seen.sum(axis=1, keepdims=True), axis=1)
    base = np.interp(
        np.linspace(0, 1, experts),
        np.linspace(0, 1, shares.shape[1]),
        shares.mean(axis=0),
    )
    each = rng.dirichlet(40 * experts * base / base.sum(), size=ranks)
    return np.stack([rng.multinomial(tokens, each) for _ in range(count)]).astype(
        np.int32
    )


def write(path: Path, *, ranks: int, experts: int, layers: int, iterations: int) -> int:
    """Write a trace; returns the bytes of its demand."""
    few = max(1, min(DRAWN, iterations, (256 << 20) // (4 * ranks * experts)))
    matrices = drawn(ranks, experts, TOKENS, few)
    groups, when = [Group(kind="ep", ranks=tuple(range(ranks)))], np.arange(iterations)
    trace = trace_of_routing(
        [
            RoutedLayer(
                layer=n,
                slot=0,
                iteration=when,
                demand=repeated(matrices, iterations, min(32, few), n),
                dropped=None,
                row_bytes=4096,
                dtype="bfloat16",
                phases=("dispatch",),
            )
            for n in range(layers)
        ],
        groups=groups,
        placements=contiguous_placement(groups, range(layers), experts),
        meta=Meta(world=ranks, ep=ranks, experts=experts, k=1, dispatch="dropless"),
        steps=Steps.of_training(when, ranks, tokens=8192),
    )
    trace.save(path, force=True)
    return layers * iterations * ranks * experts * 4


def measured(path: Path, what: str) -> dict[str, float]:
    """Read or analyze a file in a process of its own; seconds and peak memory."""
    ran = subprocess.run(
        [sys.executable, __file__, "--child", what, "--path", str(path)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return found


def child(path: Path, what: str) -> None:
    """What runs in that process."""
    from moetraffic.analysis import analyze
    from moetraffic.analysis.exchange import exchanges
    from moetraffic.analysis.rows import rows

    spent: list[float] = []
    for _ in range(ROUNDS if what == "demand" else 1):
        with Trace.open(path) as trace:
            begin = time.process_time()
            if what == "demand":
                for exchange in exchanges(trace, []):
                    rows(trace, exchange)
            else:
                analyze(trace)
            spent.append(time.process_time() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = {"seconds": min(spent), "first": spent[0], "peak_bytes": peak}
    print(json.dumps(found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=1.0, help="of the longest trace")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--child", default="")
    parser.add_argument("--path", default="")
    given = parser.parse_args()
    if given.child:
        child(Path(given.path), given.child)
        return 0
    sizes: list[float] = []
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for gb in (0.2, (0.2 + given.gb) / 2, given.gb):
            path = Path(folder, "trace.h5")
            iterations = int(gb * 1e9 / 8 / 16384)
            size = write(path, ranks=64, experts=64, layers=8, iterations=iterations)
            sizes.append(size / 1e9)
            times = size / path.stat().st_size
            found = measured(path, "demand")
            rows.append({"demand_bytes": size, **found})
            print(
                f"{gb:.1f} GB of demand, 64 ranks, {times:.2f} x the file's size: skew "
                f"{size / found['seconds'] / 1e9:.2f} GB a processor s "
                f"(first {size / found['first'] / 1e9:.2f}), "
                f"peak {found['peak_bytes'] / 1e9:.2f} GB"
            )
            path.unlink()
        early, late = np.diff([row["seconds"] for row in rows]) / np.diff(sizes)
        print(f"  slope {early:.2f}, then {late:.2f} s a GB: {late / early:.2f} x")
        path = Path(folder, "wide.h5")
        size = write(path, ranks=256, experts=256, layers=4, iterations=200)
        found = measured(path, "everything")
        print(
            f"256 ranks, 256 experts, {size / 1e9:.2f} GB: all of analyze in "
            f"{found['seconds']:.1f} s, peak {found['peak_bytes'] / 1e9:.2f} GB"
        )
    if given.json:
        save(given.json, {"skew": rows, "analyze": {"demand_bytes": size, **found}})
    return 0


if __name__ == "__main__":
    sys.exit(main())

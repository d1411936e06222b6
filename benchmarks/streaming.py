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
from moetraffic.trace import ROUTING, UNKNOWN_TIME, Meta, Trace
from moetraffic.trace.model import (
    PLACEMENT,
    DroppedForm,
    Group,
    Occurrences,
    Site,
    Steps,
    WireForm,
)

TOKENS = 32768  # copies of a rank in an iteration
ROUNDS = 5
DRAWN = 1024  # matrices; longer traces are blocks of them in other orders


class Repeated:
    """A panel ``[N, ...]`` of blocks of drawn matrices, made when it is read."""

    def __init__(self, drawn: np.ndarray[Any, Any], rows: int, block: int = 32) -> None:
        self._drawn, self._block = drawn, block
        self.shape, self.dtype = (rows, *drawn.shape[1:]), drawn.dtype
        self._order = np.random.default_rng(3).integers(
            0, len(drawn) // block, rows // block + 1
        )

    def read(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        at = np.arange(start, stop)
        return self._drawn[
            self._order[at // self._block] * self._block + at % self._block
        ]


class Constant:
    """A panel of one value."""

    def __init__(self, value: int, shape: tuple[int, ...], dtype: str) -> None:
        self.shape, self.dtype, self._value = shape, np.dtype(dtype), value

    def read(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        return np.full((stop - start, *self.shape[1:]), self._value, self.dtype)


def drawn(ranks: int, experts: int, tokens: int, count: int) -> np.ndarray[Any, Any]:
    """Demand ``[count, R, E]`` int32 around the loads of a captured run."""
    rng = np.random.default_rng(1)
    with Trace.open(data_path("golden-v1.h5")) as trace:
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
    rows = layers * iterations
    few = max(1, min(DRAWN, rows, (256 << 20) // (4 * ranks * experts)))
    demand = Repeated(drawn(ranks, experts, TOKENS, few), rows, min(32, few))
    routing = [
        Site(
            group=0,
            operation=ROUTING,
            layer=n,
            experts=experts,
            dropped=DroppedForm.NONE,
        )
        for n in range(layers)
    ]
    dispatch = [
        Site(
            group=0,
            operation="all_to_all",
            phase="dispatch",
            layer=n,
            dtype="bfloat16",
            row_bytes=4096,
            wire=WireForm.DEMAND,
            routing=n,
            wire_checked=iterations,
        )
        for n in range(layers)
    ]
    total = 2 * rows
    placement = np.zeros(layers * experts, PLACEMENT)
    placement["layer"] = np.repeat(np.arange(layers), experts)
    placement["expert"] = np.tile(np.arange(experts), layers)
    placement["rank"] = placement["expert"] * ranks // experts
    unknown = {
        f"{name}_{ranks}": Constant(UNKNOWN_TIME, (total, ranks), "<i8")
        for name in ("issue", "start", "end")
    }
    steps = (iterations, ranks)
    trace = Trace(
        meta=Meta(world=ranks, ep=ranks, experts=experts, k=1, dispatch="dropless"),
        groups=[Group(kind="ep", ranks=tuple(range(ranks)))],
        sites=[*routing, *dispatch],
        occurrences=Occurrences(
            iteration=np.tile(np.arange(iterations), 2 * layers),
            site=np.repeat(np.arange(2 * layers, dtype=np.int32), iterations),
            sequence=np.full(total, -1),
        ),
        panels={
            f"present_{ranks}": Constant(1, (total, ranks), "|u1"),
            **unknown,
            f"demand_{ranks}x{experts}": demand,
        },
        steps=Steps(
            iteration=np.arange(iterations),
            kind=("train",) * iterations,
            loss=np.full(steps, np.nan),
            tokens=np.full(steps, 8192),
            start=np.full(steps, UNKNOWN_TIME),
            end=np.full(steps, UNKNOWN_TIME),
        ),
        placements=placement,
    )
    trace.save(path, force=True)
    return rows * ranks * experts * 4


def measured(path: Path, *, isal: bool, what: str) -> dict[str, float]:
    """Read or analyze a file in a process of its own; seconds and peak memory."""
    ran = subprocess.run(
        [sys.executable, __file__, "--child", what, "--path", str(path)]
        + ([] if isal else ["--plain"]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return found


def child(path: Path, what: str, plain: bool) -> None:
    """What runs in that process."""
    if plain:
        sys.modules["isal"] = None  # type: ignore[assignment]
    from moetraffic.analysis import analyze
    from moetraffic.analysis.exchange import sources
    from moetraffic.analysis.mapper import in_threads, observed

    spent: list[float] = []
    for _ in range(ROUNDS if what == "demand" else 1):
        with Trace.open(path) as trace:
            begin = time.process_time()
            if what == "demand":
                for source in sources(trace, [], of=("demand",)):
                    observed(source, in_threads(trace, 2, cells=False))
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
    parser.add_argument("--plain", action="store_true")
    given = parser.parse_args()
    if given.child:
        child(Path(given.path), given.child, given.plain)
        return 0
    spent: dict[bool, list[float]] = {True: [], False: []}
    sizes: list[float] = []
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for gb in (0.2, (0.2 + given.gb) / 2, given.gb):
            path = Path(folder, "trace.h5")
            iterations = int(gb * 1e9 / 8 / 16384)
            size = write(path, ranks=64, experts=64, layers=8, iterations=iterations)
            sizes.append(size / 1e9)
            times = size / path.stat().st_size
            print(f"{gb:.1f} GB of demand, 64 ranks, compressed {times:.2f} x")
            for isal in (True, False):
                found = measured(path, isal=isal, what="demand")
                spent[isal].append(found["seconds"])
                rows.append({"demand_bytes": size, "isal": isal, **found})
                print(
                    f"  skew {'with isal' if isal else 'without  '}: "
                    f"{size / found['seconds'] / 1e9:.2f} GB a processor s "
                    f"(first {size / found['first'] / 1e9:.2f}), "
                    f"peak {found['peak_bytes'] / 1e9:.2f} GB"
                )
            path.unlink()
        for isal, seconds in spent.items():
            early, late = np.diff(seconds) / np.diff(sizes)
            print(
                f"  slope {'with isal' if isal else 'without  '}: {early:.2f}, then "
                f"{late:.2f} s a GB: {late / early:.2f} x"
            )
        path = Path(folder, "wide.h5")
        size = write(path, ranks=1024, experts=256, layers=2, iterations=200)
        found = measured(path, isal=True, what="everything")
        print(
            f"1024 ranks, 256 experts, {size / 1e9:.2f} GB: all of analyze in "
            f"{found['seconds']:.1f} s, peak {found['peak_bytes'] / 1e9:.2f} GB"
        )
    if given.json:
        save(given.json, {"skew": rows, "analyze": {"demand_bytes": size, **found}})
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How often claims are false of known processes, and how often they are found.

The processes are in ``tests/analysis/processes.py``; settings and runs are drawn from
seeds (``--base`` repeats a run).  A claim that is false of the runs of a process may be
stated in 5% of all such runs together; one that is true is to be found in the share of
runs in TRUE.  The 95% intervals of the CV of constant routers are to hold it in 93% to
97%.  ``--write`` replaces the tables in ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402
from page import save_table  # noqa: E402

from moetraffic.analysis.claims import (  # noqa: E402
    Claim,
    Outcome,
    differ,
    forecast_helps,
    movement,
    regular,
    steady,
    uneven,
)
from moetraffic.analysis.forecast import score  # noqa: E402
from moetraffic.analysis.measures import entropy  # noqa: E402
from tests.analysis.processes import BURSTS, LOADS  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
TOTAL = 300
"""Iterations, or steps, of a run."""

MOST_FALSE = 0.05
STATIONARY = ("balanced", "skewed", "redrawn", "AR 8")
FALSE = {
    "uneven": ("balanced",),
    "more even": STATIONARY,
    "less even": STATIONARY,
    "steady": ("walk", "line to even", "collapse"),
    "forecast helps": ("balanced", "skewed", "redrawn"),
    "regular": ("exponential bursts",),
    "runs differ": STATIONARY,
}
TRUE = {
    ("more even", "line to even"): 0.95,
    ("more even", "fading"): 0.65,
    ("regular", "jittered steps"): 0.9,
    ("forecast helps", "walk"): 0.9,
    ("forecast helps", "AR 30"): 0.9,
    ("steady", "balanced"): 0.9,
    ("steady", "fading"): 0.9,
}

ROUTERS = ((16, 1024, 1.0001, 100), (8, 1024, 5.0, 100), (32, 1024, 20.0, 60))
"""Experts, tokens, odds of the first expert, and iterations of constant routers."""


def claims(process: str, rng: np.random.Generator) -> Iterator[Claim]:
    """Yield the claims about a drawn run; "runs differ" compares its halves."""
    if process in BURSTS:
        yield regular(BURSTS[process](rng, TOTAL))
        return
    load, steps = LOADS[process](rng, TOTAL), np.arange(TOTAL)
    curve = entropy(load)
    yield uneven(load)
    yield movement(curve, steps)
    yield steady(curve, steps)
    (scores,) = score(load, horizons=[1])
    yield forecast_helps(*scores.errors, horizon=1)
    yield differ(curve[: TOTAL // 2], curve[TOTAL // 2 :])


def stated(process: str, runs: int, base: int) -> Counter[str]:
    """Count the runs of a process that state each claim."""
    own = zlib.crc32(process.encode())
    return Counter(
        claim.name
        for run in range(runs)
        for claim in claims(process, np.random.default_rng([base, own, run]))
        if claim.outcome is Outcome.STATED
    )


def covered(router: tuple[int, int, float, int], runs: int, base: int) -> int:
    """Count the runs of a constant router whose interval holds the true CV."""
    experts, tokens, hot, total = router
    p = np.ones(experts)
    p[0] = hot
    p /= p.sum()
    held = 0
    for run in range(runs):
        rng = np.random.default_rng([base, experts, run])
        claim = uneven(rng.multinomial(tokens, p, size=total))
        held += bool(claim.low <= np.sqrt(experts * (p**2).sum() - 1) <= claim.high)
    return held


def judged(rates: dict[str, dict[str, float]]) -> tuple[list[str], list[str]]:
    """Summarize how often claims are false, and list the rates that are missed."""
    summary, missed = [], []
    for name, processes in FALSE.items():
        false = {p: rates[p].get(name, 0.0) for p in processes}
        worst = max(false, key=lambda p: false[p])
        pooled = sum(false.values()) / len(false)
        line = f"{name}: false in {pooled:.2%}, worst {worst}: {false[worst]:.2%}"
        summary.append(line)
        missed += [line] * (pooled > MOST_FALSE)
    for (name, process), least in TRUE.items():
        if (rate := rates[process].get(name, 0.0)) < least:
            missed.append(f"{process}, {name}: found in {rate:.1%}, not {least:.0%}")
    return summary, missed


def main() -> None:
    """Measure the rates; exit with 1 if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--base", type=int, default=secrets.randbits(32))
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    rates = {}
    for process in (*LOADS, *BURSTS):
        counts = stated(process, args.runs, args.base)
        rates[process] = {name: n / args.runs for name, n in counts.items()}
        print(process, dict(counts), file=sys.stderr, flush=True)
    held = [covered(router, 1000, args.base) for router in ROUTERS]
    summary, missed = judged(rates)
    print("\n".join(summary))
    for router, count in zip(ROUTERS, held, strict=True):
        print(f"interval of the CV, {router}: holds it in {count} of 1,000")
        if not 930 <= count <= 970:
            missed.append(f"interval of the CV, {router}: {count} of 1,000")
    if args.write:
        command = f"python benchmarks/claims.py --runs {args.runs} --base {args.base}"
        table = [["process", *FALSE]]
        for process in rates:
            made = [n for n in FALSE if (n == "regular") == (process in BURSTS)]
            cells = [
                f"{rates[process].get(n, 0.0):.2%}" if n in made else "" for n in FALSE
            ]
            table.append([process, *cells])
        text = (
            f"share of {args.runs} drawn runs of {TOTAL} iterations that state a claim"
        )
        save_table(RESULTS / "claims.csv", table, command, text, *summary)
        rows: list[list[object]] = [
            ["experts", "tokens", "odds", "iterations", "of 1,000"]
        ]
        rows += [[*r, n] for r, n in zip(ROUTERS, held, strict=True)]
        text = "95% intervals of the CV of a constant router that hold it"
        save_table(RESULTS / "claims_intervals.csv", rows, command, text)
    sys.exit("\n".join(missed) or 0)


if __name__ == "__main__":
    main()

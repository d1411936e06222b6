"""How often analyses state what is false, and find what is true, of known processes.

The processes and what is true of them are in ``tests/analysis/known_processes``.  Seeds
are drawn when this runs (``--base`` repeats a run).  For a claim that is false of a
process, the upper limit of the 95% Clopper-Pearson interval of the share of runs that
state it is to be at most 5%; one that is true is to be found in 90% of the longest
runs.  ``--write`` replaces the table in ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from page import save, save_table  # noqa: E402

from tests.analysis.known_processes.tally import (  # noqa: E402
    LEAST_FOUND,
    MOST_FALSE,
    Tallies,
    Tally,
    judged,
    tally,
    truth,
)

RESULTS = ROOT / "benchmarks" / "results" / "claims.csv"
LENGTHS = (300, 1000)


def measure(
    processes: Sequence[str], *, seeds: int, steps: int, base: int, workers: int
) -> Tallies:
    """Judge runs of each process, in processes side by side."""
    found: dict[str, list[dict[str, str]]] = {}
    with ProcessPoolExecutor(workers) as pool:
        for process in processes:
            began = time.perf_counter()
            own = zlib.crc32(process.encode())
            drawn = [(base, own, steps, seed) for seed in range(seeds)]
            found[process] = list(
                pool.map(
                    judged, [process] * seeds, drawn, [steps] * seeds, chunksize=10
                )
            )
            took = time.perf_counter() - began
            print(f"{process}, {steps} steps: {took:.0f} s", file=sys.stderr)
    return tally(found)


def failures(by_length: dict[int, Tallies]) -> list[str]:
    """List the claims that are stated too often, or found too seldom."""
    lines = []
    for steps, tallies in by_length.items():
        for process, claims in tallies.items():
            for name, one in claims.items():
                where = f"{process}, {steps} steps, {name}"
                judged_false = one.truth == "false" or one.wrong
                if judged_false and one.share_limit > MOST_FALSE:
                    lines.append(f"{where}: false in {one.wrong} of {one.runs}")
                sought = one.truth == "true" and steps == max(by_length)
                if sought and one.stated < LEAST_FOUND * one.runs:
                    lines.append(f"{where}: found in {one.stated} of {one.runs}")
    return lines


def cell(ones: Sequence[Tally | None]) -> str:
    """Format a claim about a process: rates at each length."""
    known = [one for one in ones if one is not None]
    if not known or known[0].truth == "open":
        return ""
    if known[0].truth in ("false", "figure"):
        return "false: " + " / ".join(f"{one.wrong}" for one in known)
    parts = []
    for one in known:
        text = f"{one.stated / one.runs:.0%}"
        if one.abstained:
            text += f" ({one.abstained / one.runs:.0%} abstained)"
        if one.outcomes["wrong figure"]:
            text += f" ({one.outcomes['wrong figure']} wrong figures)"
        parts.append(text)
    return "found: " + " / ".join(parts)


def table(by_length: dict[int, Tallies]) -> list[list[str]]:
    """List a row for each process, with a column for each claim."""
    made = list(by_length.values())
    names = list(next(iter(truth().values())))
    return [
        ["process", *names],
        *([p, *(cell([t[p].get(n) for t in made]) for n in names)] for p in made[0]),
    ]


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("processes", nargs="*", help="default all")
    asked.add_argument("--seeds", type=int, default=300)
    asked.add_argument("--steps", type=int, nargs="+", default=list(LENGTHS))
    asked.add_argument("--base", type=int, help="repeat the seeds of an earlier run")
    asked.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    asked.add_argument("--json", type=Path, help="write the counts to this file")
    asked.add_argument("--write", action="store_true", help=f"replace {RESULTS.name}")
    told = asked.parse_args()
    known = list(truth())
    if unknown := set(told.processes) - set(known):
        asked.error(f"unknown processes: {', '.join(sorted(unknown))}")
    base = secrets.randbits(32) if told.base is None else told.base
    by_length = {
        steps: measure(
            told.processes or known,
            seeds=told.seeds,
            steps=steps,
            base=base,
            workers=told.workers,
        )
        for steps in sorted(told.steps)
    }
    failed = failures(by_length)
    rows = table(by_length)
    print(*map(",".join, rows), *failed, sep="\n")
    if told.json:
        plain: dict[str, Any] = {
            "base": base,
            "seeds": told.seeds,
            "failures": failed,
            "counts": {
                str(steps): {
                    p: {n: dict(t.outcomes) | {"truth": t.truth} for n, t in c.items()}
                    for p, c in tallies.items()
                }
                for steps, tallies in by_length.items()
            },
        }
        save(told.json, plain)
    if told.write:
        lengths = " / ".join(map(str, by_length))
        save_table(
            RESULTS,
            rows,
            f"python benchmarks/claims.py --seeds {told.seeds} --base {base}",
            f"{told.seeds} runs of each process, of {lengths} iterations or steps: "
            "runs that state a claim that is false, or the share of runs that find a "
            "true one",
        )


if __name__ == "__main__":
    main()

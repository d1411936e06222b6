"""How often ``compare`` states a difference between replays of one command.

    python benchmarks/replay_reruns.py --commands 24 --runs 5

replays one small trace with ``--commands`` processes after each other, each with
``--runs`` timed runs, and compares each with every other.  All are the same command, so
that each stated difference is false; of right intervals 5% are.  Pairs that follow each
other are independent if only runs differ; those further apart also show slow changes of
the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import combinations
from pathlib import Path

from moetraffic.analysis.times.completion import compare_times
from moetraffic.replay import replay_trace
from moetraffic.trace import Trace

MODEL = ("--layers", "2", "--hidden", "32", "--heads", "2", "--sequence", "64")
MODEL += ("--experts", "8", "--micro-batch", "4")


def differs(first: Path, second: Path) -> tuple[bool, float]:
    """Whether the all-to-alls' interval excludes 1, and its upper over lower end."""
    with Trace.open(first) as a, Trace.open(second) as b:
        (found,) = (
            t.ratio
            for t in compare_times(a, b)
            if (t.by, t.label, t.measure) == ("operation", "all_to_all", "transfer")
        )
    return not found.low <= 1 <= found.high, found.high / found.low


def main() -> None:
    """Replay, compare and print the share of false differences."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--commands", type=int, default=24)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=20)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="moetraffic-reruns-") as folder:
        trace = Path(folder) / "run.h5"
        capture = [sys.executable, "-m", "moetraffic", "capture", "-o", str(trace)]
        capture += ["--nproc", str(asked.ranks), "--iterations", str(asked.iterations)]
        subprocess.run([*capture, *MODEL], check=True, capture_output=True)
        made, loads = [], []
        for number in range(asked.commands):
            made.append(trace.with_name(f"replay-{number}.h5"))
            replay_trace(trace, made[-1], repeat=asked.runs, verify="none")
            loads.append(os.getloadavg()[0])
        every = {pair: differs(*pair) for pair in combinations(made, 2)}
    next_to = [every[pair] for pair in zip(made[::2], made[1::2], strict=False)]
    found = {
        name: {"pairs": len(of), "stated": sum(false for false, _ in of)}
        for name, of in (("consecutive", next_to), ("all", list(every.values())))
    }
    widths = sorted(wide for _, wide in every.values())
    found["interval"] = {"median_ratio_of_ends": widths[len(widths) // 2]}
    found["load"] = {"least": min(loads), "most": max(loads)}
    print(json.dumps(vars(asked) | found, indent=1))


if __name__ == "__main__":
    main()

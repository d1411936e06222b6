"""How often ``compare`` states a difference between replays of one command.

    python benchmarks/replay_reruns.py --commands 24 --runs 5

replays one small trace with ``--commands`` processes after each other, each with
``--runs`` timed runs, and compares each with every other.  All are the same command, so
that each stated difference is false: at most 1% of pairs should be stated, and 5% of
intervals exclude 1, where runs of a command differ as much as commands.  Where other
processes use the hosts, they differ less, and ``compare`` states nothing; the counts
here are of the p-value alone.
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

import numpy as np
from scipy.stats import f_oneway

from moetraffic.analysis.claims import SIGNIFICANT
from moetraffic.analysis.times.completion import completion
from moetraffic.analysis.times.runs import ratio_of_runs, run_sums
from moetraffic.arrays import Float64
from moetraffic.replay import replay_trace
from moetraffic.trace import ALL_TO_ALL, Trace

MODEL = ("--layers", "2", "--hidden", "32", "--heads", "2", "--sequence", "64")
MODEL += ("--experts", "8", "--micro-batch", "4")


def totals_s(replay: Path) -> Float64:
    """Transfer time of the all-to-alls in each run, as ``compare`` takes it, s."""
    with Trace.open(replay) as trace:
        calls = completion(trace)
        exchanges = np.array([s.operation == ALL_TO_ALL for s in trace.sites])
        sums = run_sums(trace, calls["site"][exchanges[calls["site"]]])
    if not sums:
        raise SystemExit("--runs must be 2 or more")
    return sums["transfer_s"]


def counted(pairs: list[tuple[Float64, Float64]]) -> dict[str, float]:
    """Pairs, those whose interval excludes 1, and those of which it is stated."""
    found = [ratio_of_runs(*pair) for pair in pairs]
    widths = [interval.high / interval.low for interval, _ in found]
    return {
        "pairs": len(found),
        "interval_excludes_1": sum(not i.low <= 1 <= i.high for i, _ in found),
        "difference_stated": sum(p < SIGNIFICANT for _, p in found),
        "interval_ratio_of_ends_median": float(np.median(widths)),
    }


def main() -> None:
    """Replay, compare and count false differences."""
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
        totals, loads = [], []
        for number in range(asked.commands):
            replayed = trace.with_name(f"replay-{number}.h5")
            replay_trace(trace, replayed, repeat=asked.runs, verify="none")
            totals.append(totals_s(replayed))
            loads.append(os.getloadavg()[0])
    found = {
        "consecutive": counted(list(zip(totals[::2], totals[1::2], strict=False))),
        "all": counted(list(combinations(totals, 2))),
        "commands_over_runs": {"F": float(f_oneway(*np.log(totals)).statistic)},
        "load": {"least": min(loads), "most": max(loads)},
    }
    print(json.dumps(vars(asked) | found, indent=1))


if __name__ == "__main__":
    main()

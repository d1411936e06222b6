"""How often the claim "co-activated" is false, and found, on known processes.

The processes are in ``tests/analysis/known_processes/routings.py``.  Seeds are drawn
when this runs (``--base`` repeats a run).  The trivial baseline is the largest lift,
taken as it is: a pair counts as co-activated if it is above 1.1.  ``--write``
replaces the table in ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import zlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from page import save, save_table  # noqa: E402

from moetraffic.analysis.co_activation import (  # noqa: E402
    LEAST_LIFT,
    PairCounts,
    co_activation_claim,
)
from moetraffic.analysis.token_choices import BLOCKS  # noqa: E402
from tests.analysis.known_processes.routings import PROCESSES  # noqa: E402
from tests.analysis.known_processes.tally import Tally  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "co_activation.csv"


def judged(process: str, seed: Sequence[int], steps: int) -> tuple[bool, str, float]:
    """Draw a run of a process.

    Returns
    -------
    tuple
        Whether experts are coupled, the outcome of the claim, and the largest lift.
    """
    masks, coupled = PROCESSES[process](np.random.default_rng(seed), steps)
    pairs = PairCounts(masks[0].shape[1])
    length = -(-len(masks) // BLOCKS)
    for first in range(0, len(masks), length):
        pairs.add(masks[first : first + length])
    found = pairs.conclude()
    assert found is not None
    outcome = co_activation_claim(found, about="tokens").outcome.value
    return coupled, outcome, max(pair.lift for pair in found.pairs)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--seeds", type=int, default=300)
    asked.add_argument("--steps", type=int, nargs="+", default=[50])
    asked.add_argument("--base", type=int, help="repeat the seeds of an earlier run")
    asked.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    asked.add_argument("--json", type=Path, help="write the results to this file")
    asked.add_argument("--write", action="store_true", help=f"replace {RESULTS.name}")
    told = asked.parse_args()
    base = secrets.randbits(32) if told.base is None else told.base
    head = ["process", "iterations", "co-activated", "upper limit (95%)", "abstained"]
    lines = [[*head, f"largest lift above {LEAST_LIFT}"]]
    rows = []
    with ProcessPoolExecutor(told.workers) as pool:
        for process in PROCESSES:
            for steps in told.steps:
                own = zlib.crc32(process.encode())
                seeds = [(base, own, steps, seed) for seed in range(told.seeds)]
                found = list(
                    pool.map(
                        judged,
                        [process] * told.seeds,
                        seeds,
                        [steps] * told.seeds,
                        chunksize=10,
                    )
                )
                one = Tally(truth="true" if found[0][0] else "false")
                one.outcomes.update(outcome for _, outcome, _ in found)
                trivial = sum(lift > LEAST_LIFT for *_, lift in found) / told.seeds
                rows.append({"process": process, "steps": steps, "trivial": trivial})
                rows[-1] |= dict(one.outcomes) | {"truth": one.truth}
                text = f"found: {one.stated / one.runs:.0%}"
                limit = ""
                if one.truth == "false":
                    text, limit = f"false: {one.wrong}", f"{one.share_limit:.1%}"
                abstained = f"{one.abstained / one.runs:.0%}"
                cells = [process, str(steps), text, limit, abstained, f"{trivial:.0%}"]
                lines.append(cells)
                print(*cells, sep=", ", flush=True)
    if told.json:
        save(told.json, {"base": base, "seeds": told.seeds, "rows": rows})
    if told.write:
        asked_for = f"--seeds {told.seeds} --base {base}"
        save_table(RESULTS, lines, f"python benchmarks/co_activation.py {asked_for}")


if __name__ == "__main__":
    main()

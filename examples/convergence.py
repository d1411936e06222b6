"""Does the load over experts even out?  With the auxiliary loss, and without.

    python examples/convergence.py --output convergence

trains a small top-2 MoE GPT twice on the source text of Python's standard library, on
eight virtual expert-parallel ranks, until the load has settled, and draws both.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from moetraffic.analysis import analyze
from moetraffic.cli import main
from moetraffic.report import figures
from moetraffic.report.results import uniformity
from moetraffic.trace import Trace

RUNS = {"auxiliary loss 0.01": "0.01", "no auxiliary loss": "0"}


def run() -> None:
    """Capture, analyze, print and draw."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--output", type=Path, default=Path("convergence"))
    asked.add_argument("--iterations", type=int, default=1500)
    told = asked.parse_args()
    told.output.mkdir(parents=True, exist_ok=True)
    runs = {}
    for name, balance in RUNS.items():
        path = told.output / f"balance-{balance}.h5"
        if not path.exists():
            code = main(
                [
                    *("capture", "--virtual", "--ep", "8", "--experts", "16"),
                    *("--layers", "4", "--moe-every", "1", "--hidden", "64"),
                    *("--sequence", "64", "--micro-batch", "2"),
                    *("--balance", balance, "--until-steady"),
                    *("--iterations", str(told.iterations), "-o", str(path)),
                ]
            )
            if code:
                raise SystemExit(code)
        with Trace.open(path) as trace:
            runs[name] = uniformity.uniformity(analyze(trace))
    Console(width=120, highlight=False).print(uniformity.table(runs))
    source = "top-2 of 16 experts, 4 MoE layers, 8 virtual ranks, Python source text"
    figure = uniformity.figure(runs, source)
    print(figures.save(figure, told.output / "convergence.png"))


if __name__ == "__main__":
    run()

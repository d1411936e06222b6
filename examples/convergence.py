"""Does the load over experts even out?  With the auxiliary loss, and without.

    python examples/convergence.py --output convergence

trains a small top-2 MoE GPT twice on the source text of Python's standard library, on
eight virtual expert-parallel ranks, and draws both.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from moetraffic.analysis import analyze
from moetraffic.analysis.measures import means_of_known
from moetraffic.cli import main
from moetraffic.report import figures
from moetraffic.report.chart import Axis, Chart, Panel, Rule, Series, line_colors
from moetraffic.result import Result

RUNS = {"auxiliary loss 0.01": "0.01", "no auxiliary loss": "0"}

Curves = Mapping[int, np.ndarray]
"""Normalized entropy of the expert load by layer, and of a balanced router, [2, T]."""


def evenness(result: Result) -> Curves:
    """Extract the expert load's normalized entropy by layer, for the first group."""
    frame = result.frame("measures").query(
        "subject == 'expert_load' and measure == 'entropy'"
    )
    curves = {}
    for layer, rows in frame.groupby("layer"):
        first = rows[rows.group == rows.group.min()].sort_values("iteration")
        curves[int(layer)] = first[["value", "balanced"]].to_numpy().T
    return curves


def table(runs: Mapping[str, Curves]) -> pd.DataFrame:
    """Tabulate level and variation of the balance, by run and layer."""
    rows = []
    for name, layers in runs.items():
        for layer, (x, balanced) in layers.items():
            half = len(x) // 2
            parts = (x[:20], x[max(0, half - 10) : half + 10], x[-20:], balanced)
            changes = [float(np.nanstd(np.diff(part))) for part in (x[:half], x[half:])]
            means = (float(means_of_known(part)) for part in parts)
            rows.append((name, layer, *means, *changes))
    levels = ("first 20", "middle 20", "last 20", "noise floor")
    spreads = ("sd of changes, 1st half", "2nd half")
    return pd.DataFrame(rows, columns=["run", "layer", *levels, *spreads])


def figure(runs: Mapping[str, Curves], source: str, *, window: int = 10) -> Chart:
    """Draw normalized entropy of each layer, smoothed, with one panel per run."""
    panels = []
    for name, layers in runs.items():
        colors = line_colors(len(layers))
        floor = np.nanmean([balanced for _, balanced in layers.values()])
        panels.append(
            Panel(
                name=(name,),
                x=Axis(label="iteration"),
                y=Axis(label="normalized entropy (1 = balanced)"),
                series=tuple(
                    Series(x=np.arange(len(x)), y=x, name=f"layer {layer}", color=color)
                    for (layer, (x, _)), color in zip(
                        layers.items(), colors, strict=True
                    )
                ),
                rules=(Rule(y=float(floor)),),
                smooth=window,
            )
        )
    return Chart(
        title="Balance of the expert load",
        source=f"{source}. Dotted: noise floor of a balanced router",
        panels=tuple(panels),
        width=520 * len(runs),
        height=420,
        across=len(runs),
    )


def run() -> None:
    """Capture, analyze, print and draw."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--output", type=Path, default=Path("convergence"))
    asked.add_argument("--iterations", type=int, default=600)
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
                    *("--balance", balance),
                    *("--iterations", str(told.iterations), "-o", str(path)),
                ]
            )
            if code:
                raise SystemExit(code)
        runs[name] = evenness(analyze(path, parts=["evenness"]))
    print(table(runs).to_string(index=False, float_format="%.4f"))
    source = "top-2 of 16 experts, 4 MoE layers, 8 virtual ranks, Python source text"
    print(figures.save(figure(runs, source), told.output / "convergence.png"))


if __name__ == "__main__":
    run()

"""Does the load over experts even out?  With the auxiliary loss, and without.

    python examples/convergence.py --output convergence

trains a small top-2 MoE GPT twice on the source text of Python's standard library, on
eight virtual expert-parallel ranks, until the transient of the load has ended, and
draws both.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rich.console import Console

from moetraffic.analysis import Analysis, Curve, analyze, initial_transient
from moetraffic.analysis.forecast.accuracy import mean_of_known as mean
from moetraffic.cli import main
from moetraffic.report import figures
from moetraffic.report.chart import Axis, Chart, Panel, Rule, Series, line_colors
from moetraffic.report.results.skew import subject_of
from moetraffic.tables import Table
from moetraffic.trace import Trace

RUNS = {"auxiliary loss 0.01": "0.01", "no auxiliary loss": "0"}


Curves = Mapping[int, Curve]
"""Normalized entropy of the expert load in every iteration, by layer."""


def uniformity(analysis: Analysis) -> Curves:
    """Extract the expert load's normalized entropy by layer, for the first group."""
    found = {
        e.layer: s.curves["normalized_entropy"]
        for e in reversed(analysis.exchanges)
        if (s := subject_of(e, "expert_load"))
    }
    return dict(sorted(found.items()))


def table(runs: Mapping[str, Curves]) -> Table:
    """Tabulate level, variation and convergence of the balance, by run and layer."""
    rows = []
    for name, layers in runs.items():
        for layer, one in layers.items():
            x, half = one.values, len(one.values) // 2
            parts = (x[:20], x[max(0, half - 10) : half + 10], x[-20:])
            end = initial_transient(x)
            changes = [float(np.nanstd(np.diff(part))) for part in (x[:half], x[half:])]
            rows.append(
                (
                    *(name, layer, *map(mean, parts)),
                    None if one.floor is None else mean(one.floor.mean),
                    *changes,
                    end.step if end.ended else "no",
                )
            )
    means = ("first 20", "middle 20", "last 20", "noise floor")
    spreads = ("sd of changes, 1st half", "2nd half")
    return Table(
        columns={
            **{"run": "", "layer": ""},
            **dict.fromkeys((*means, *spreads), ".4f"),
            "transient ends at iteration (MSER)": ">",
        },
        rows=rows,
    )


def figure(runs: Mapping[str, Curves], source: str, *, window: int = 10) -> Chart:
    """Draw normalized entropy of each layer, smoothed, with one panel per run.

    A vertical line marks the end of a layer's transient.
    """
    panels = []
    for name, layers in runs.items():
        colors = line_colors(len(layers))
        floors = [mean(c.floor.mean) for c in layers.values() if c.floor is not None]
        drawn = list(zip(layers.items(), colors, strict=True))
        ends = [(initial_transient(one.values), color) for (_, one), color in drawn]
        rules = [Rule(x=end.step, color=color) for end, color in ends if end.ended]
        panels.append(
            Panel(
                name=(name,),
                x=Axis(label="iteration"),
                y=Axis(label="normalized entropy (1 = balanced)"),
                series=tuple(
                    Series(
                        x=np.arange(len(one.values)),
                        y=one.values,
                        name=f"layer {layer}",
                        color=color,
                    )
                    for (layer, one), color in drawn
                ),
                rules=(*rules, *([Rule(y=float(np.mean(floors)))] if floors else [])),
                smooth=window,
            )
        )
    return Chart(
        title="Balance of the expert load",
        source=f"{source}. Dotted: noise floor of a balanced router; vertical: "
        "transient ended",
        panels=tuple(panels),
        width=520 * len(runs),
        height=420,
        across=len(runs),
    )


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
            runs[name] = uniformity(analyze(trace))
    Console(width=120, highlight=False).print(table(runs))
    source = "top-2 of 16 experts, 4 MoE layers, 8 virtual ranks, Python source text"
    print(figures.save(figure(runs, source), told.output / "convergence.png"))


if __name__ == "__main__":
    run()

"""The example of convergence tabulates and draws, without its captures of minutes."""

from __future__ import annotations

import runpy
from pathlib import Path

from moetraffic.analysis import analyze
from moetraffic.data import path

EXAMPLE = Path(__file__).parents[2] / "examples" / "convergence.py"


def test_the_end_of_each_transient_is_in_the_table_and_in_the_picture() -> None:
    example = runpy.run_path(str(EXAMPLE))
    run = path("run-top2-balanced.h5")
    result = analyze(run, parts=["evenness"], iterations=range(60))
    runs = {"balanced": example["evenness"](result)}
    rows = example["table"](runs).rows
    (panel,) = example["figure"](runs, "a run").panels
    assert [row[1] for row in rows] == result.data["layers"]
    ends = [row[-1] for row in rows if row[-1] != "no"]
    assert ends
    assert [rule.x for rule in panel.rules if rule.x is not None] == ends

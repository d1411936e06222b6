"""The example of convergence tabulates and draws, without its captures of minutes."""

from __future__ import annotations

import runpy
from pathlib import Path

from moetraffic.analysis import analyze
from moetraffic.data import path

EXAMPLE = Path(__file__).parents[2] / "examples" / "convergence.py"


def test_each_layer_is_in_the_table_and_in_the_picture() -> None:
    example = runpy.run_path(str(EXAMPLE))
    run = path("run-top2-balanced.h5")
    result = analyze(run, parts=["evenness"], iterations=range(60))
    runs = {"balanced": example["evenness"](result)}
    frame = example["table"](runs)
    (panel,) = example["figure"](runs, "a run").panels
    assert frame.layer.tolist() == result.data["layers"]
    assert frame["last 20"].between(0, 1).all()
    assert [s.name for s in panel.series] == [f"layer {n}" for n in frame.layer]

"""The verdict as a sentence, a table, data and a picture."""

from __future__ import annotations

import io
import json
import math

import pytest
from rich.console import Console

from moetraffic.report.figures import draw
from moetraffic.report.results.acceptance import as_dict, figure, table, verdict
from moetraffic.validation.acceptance import Acceptance, Trial


def trial(*, layer: int, adjusted: float, distance: float = 2.0) -> Trial:
    return Trial(
        name="max over mean",
        measure="Wasserstein-1",
        layer=layer,
        distance=distance,
        usual=1.0,
        own=(0.9, 1.1, 1.0),
        limit=3.0,
        p=adjusted / 2,
        adjusted=adjusted,
    )


def found(*trials: Trial, way: str = "seeds", recognized: bool = False) -> Acceptance:
    return Acceptance(
        synthetic="twin.h5",
        real=("a.h5", "b.h5", "c.h5"),
        way=way,
        tests=trials,
        auc=0.55,
        auc_usual=0.6,
        recognized=recognized,
        notes=("a note",),
    )


def printed(result: Acceptance) -> str:
    out = io.StringIO()
    Console(file=out, width=120).print(table(result))
    return out.getvalue()


def test_a_pass_and_a_failure_are_said() -> None:
    good = found(trial(layer=0, adjusted=0.4))
    assert good.passed
    assert verdict(good).startswith("passed: 0 of 1 tests")
    bad = found(trial(layer=0, adjusted=0.4), trial(layer=1, adjusted=0.01))
    assert not bad.passed
    assert verdict(bad) == "failed: 1 of 2 tests reject the synthetic trace"
    assert "FAILED" in printed(bad)
    assert "note: a note" in printed(bad)
    assert "FAILED" not in printed(good)
    seen = found(trial(layer=0, adjusted=0.4), recognized=True)
    assert verdict(seen) == "failed: classifier AUC 0.550"


def test_the_data_are_json_and_say_the_verdict() -> None:
    told = as_dict(found(trial(layer=-1, adjusted=0.01)))
    assert json.loads(json.dumps(told))["tests"][0]["passed"] is False
    assert told["passed"] is False
    assert "logistic" in told["classifier"]


@pytest.mark.parametrize("way", ["seeds", "time blocks"])
def test_the_picture_has_a_line_a_test_and_a_mark_a_layer(way: str) -> None:
    chart = figure(
        found(
            trial(layer=0, adjusted=0.4),
            trial(layer=1, adjusted=0.001, distance=math.inf),
            way=way,
        )
    )
    (panel,) = chart.panels
    assert panel.y.names == ("max over mean (Wasserstein-1)",)
    assert {"#0072B2", "#D55E00"} <= {series.color for series in panel.series}
    draw(chart).canvas.draw()

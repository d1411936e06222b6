"""The verdict as sentences, tables, data and a picture."""

from __future__ import annotations

import io
import json
from dataclasses import replace

from rich.console import Console

from moetraffic.report.results.acceptance import (
    as_dict,
    tables,
    verdict,
)
from moetraffic.validation.acceptance import Acceptance, Power
from moetraffic.validation.classifier import AucTest
from moetraffic.validation.figures import FigureTest


def compared(*, name: str = "max over mean", adjusted: float) -> FigureTest:
    return FigureTest(
        name=name,
        synthetic=2.0,
        real=(1.5, 1.7, 1.6),
        own=(0.9, 1.1, 1.0),
        distance=4.2 if adjusted < 0.05 else 1.3,
        limit=2.4,
        p=adjusted / 2,
        adjusted=adjusted,
    )


def found(
    *figures: FigureTest, auc: float = 0.55, power: float = 0.98, needed: int = 3
) -> Acceptance:
    return Acceptance(
        synthetic=("synthetic.h5",),
        real=("a.h5", "b.h5", "c.h5"),
        way="runs",
        mismatches=(),
        figures=figures,
        classifier=AucTest(
            by_classifier={"logistic regression": auc - 0.05, "gradient boosting": auc},
            auc=auc,
            interval=(auc - 0.1, min(1.0, auc + 0.1)),
            real=(0.5, 0.6, 0.55),
            limit=0.8,
        ),
        power=Power(change=0.2, probability=power, detectable=0.1, needed=needed),
        notes=("a note",),
    )


def printed(result: Acceptance) -> str:
    out = io.StringIO()
    for each in tables(result):
        Console(file=out, width=160).print(each)
    return out.getvalue()


def test_passed_failed_by_a_classifier_and_cannot_be_judged() -> None:
    good = found(compared(adjusted=0.4))
    assert verdict(good).startswith("passed: 0 of 1 figures differ")
    part = "passed for the first 200 of 400 iterations, the others are not compared: "
    assert verdict(replace(good, lengths=(200, 400))).startswith(part)
    assert "FAILED" not in printed(good)
    seen = found(compared(adjusted=0.4), auc=0.95)
    assert verdict(seen) == "failed: classifier AUC 0.95, limit 0.80"
    few = found(compared(adjusted=0.4), power=0.1, needed=7)
    assert verdict(few).endswith("too few real runs (needs 7, has 3)")
    never = found(compared(adjusted=0.4), power=0.1, needed=0)
    assert "no practical number" in verdict(never)


def test_the_data_are_json_and_have_the_verdict() -> None:
    told = json.loads(json.dumps(as_dict(found(compared(adjusted=0.01)))))
    assert told["outcome"] == "failed"
    assert told["passed"] is False
    assert told["figures"][0]["passed"] is False
    assert told["classifier"]["passed"] is True
    assert told["power"]["needed"] == 3


def test_a_notebook_shows_the_tables() -> None:
    judged = found(compared(adjusted=0.01))
    html = judged._repr_html_()
    for table in tables(judged):
        assert table.to_html() in html

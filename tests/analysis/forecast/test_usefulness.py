"""Verdict: one plain sentence a horizon, and times that add up."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from moetraffic.analysis.forecast.origins import Ratio
from moetraffic.analysis.forecast.usefulness import (
    Verdict,
    compared,
    sentence,
    unknown_verdict,
)

VERDICT = Verdict(
    of="expert load",
    horizon=10,
    forecaster="ema",
    setting="alpha 0.1",
    tolerances=(0.05, 0.1, 0.2, 0.5),
    within=(0.2, 0.4, 0.75, 0.9996),
    unchanged=(0.1, 0.3, 0.5, 0.9),
    oracle_bound=(float("nan"),) * 4,
    oracle_bound_error=(0.0,) * 4,
    reduction=Ratio(value=0.25, error=0.07, low=0.1, high=0.4, p=0.001, blocks=20),
    lead_iterations=10.0,
    lead_s=2.5,
    origins=200,
)


def test_a_sentence():
    assert sentence(VERDICT) == (
        "Expert load 10 iterations ahead, 2.5 s before the transfer: 75% of the bytes "
        "forecast to within ±20% by ema (alpha 0.1), persistence 50%; MSE 25% below "
        "persistence (95% CI 10 to 40%)."
    )
    assert "40% of the bytes forecast to within ±10%" in sentence(
        VERDICT, tolerance=0.1
    )
    assert ">99.9% of the bytes" in sentence(VERDICT, tolerance=0.5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"reduction": Ratio(value=0.1, low=-0.1, high=0.3, p=0.2, blocks=20)},
            "no evidence of a lower error than persistence (MSE 10% below, p = 0.2)",
        ),
        (
            {"reduction": Ratio(value=0.1, blocks=2)},
            "too few forecasts to compare with persistence (MSE 10% below)",
        ),
        (
            {"reduction": Ratio(value=-0.5, low=-0.6, high=-0.4, p=1.0, blocks=20)},
            "no evidence of a lower error than persistence (MSE 50% above, p = 1)",
        ),
        ({"reduction": Ratio()}, "has no error"),
        ({"forecaster": "persistence"}, "persistence was the best on the validation"),
        ({"lead_s": np.nan}, "Expert load 10 iterations ahead: "),
        ({"lead_s": 2e-5}, "20 us before"),
        ({"lead_s": 0.0}, "0 us before"),
        ({"oracle_bound": (0.3, 0.5, 0.8, 1.0)}, "oracle bound 80%;"),
        (
            {"oracle_bound": (0.3, 0.5, 0.8, 1.0), "oracle_bound_error": (0.01,) * 4},
            "oracle bound 80% ± 1.0%;",
        ),
        ({"within": (np.nan,) * 4}, "no bytes to forecast"),
        ({"horizon": 1}, "1 iteration ahead"),
        ({"horizon": 0}, "later in the same iteration"),
        (
            {"horizon": 0, "forecaster": "history"},
            "the best history-based forecaster was the best on the validation part",
        ),
        ({"within": (0.0, 0.0001, 0.0, 0.0)}, "0% of the bytes"),
    ],
)
def test_what_is_so_is_said(change, said):
    told = sentence(dataclasses.replace(VERDICT, **change))
    assert said in told
    assert told.endswith(".")
    assert "nan" not in told
    assert told.count(". ") == 0


@pytest.mark.parametrize(
    ("value", "low", "high", "said"),
    [
        (0.004, -0.0004, 0.009, "MSE 0.4% below it (95% CI -0.04 to 0.9%)"),
        (-0.0003, -0.0996, 0.0, "MSE 0.03% above it (95% CI 0 to 10%)"),
        (0.0996, 0.0994, 0.348, "MSE 10% below it (95% CI 9.9 to 35%)"),
        (0.00316, np.nan, np.nan, "MSE 0.32% below it"),
        (3.2e-08, -0.0996, 0.0996, "MSE 0% below it (95% CI -10 to 10%)"),
    ],
)
def test_a_small_gain_is_not_rounded_to_nothing(value, low, high, said):
    assert compared(Ratio(value=value, low=low, high=high), "it") == said


def test_what_is_not_known_is_said():
    none = unknown_verdict(of="load", horizon=1000, reason="there are 60 iterations")
    assert sentence(none) == (
        "Load 1000 iterations ahead: unavailable: there are 60 iterations."
    )
    assert np.isnan(none.within).all()
    assert len(none.within) == len(none.tolerances) == 4


def test_a_verdict_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        VERDICT.horizon = 1

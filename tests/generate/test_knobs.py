"""Each knob moves the figure that it is named for, on every shipped model."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.errors import LayoutError
from moetraffic.generate import Knobs, preset_model, preset_names
from moetraffic.generate.parametric.calibration import moments


def read(name: str, **knobs: object) -> dict[str, float]:
    demand = preset_model(name).sample(
        iterations=150,
        seed=3,
        knobs=Knobs(**knobs),  # type: ignore[arg-type]
    )
    counts = np.concatenate([block for _, block in demand.blocks()])
    found = moments(counts)
    return {name: float(v.mean()) for name, v in found.items()}


FIGURES = {"skew": "skew", "drift": "change", "rows": "rows"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("knob", "name"), [(knob, name) for knob in FIGURES for name in preset_names()]
)
def test_a_knob_is_monotone(knob: str, name: str) -> None:
    figure = FIGURES[knob]
    low, one, high = (read(name, **{knob: x})[figure] for x in (0.25, 1.0, 4.0))
    # of a balanced router most of the change is the rows' noise, whatever the drift
    assert low < 1.05 * one
    assert low < high
    assert one < high


@pytest.mark.parametrize(
    "knob", [{"rows": 100.0}, {"skew": -1.0}, {"drift": 0.0}, {"rows": float("inf")}]
)
def test_factors_out_of_range_are_refused(knob: dict[str, float]) -> None:
    with pytest.raises(LayoutError, match="factor from 0 to 10"):
        Knobs(**knob)  # type: ignore[arg-type]

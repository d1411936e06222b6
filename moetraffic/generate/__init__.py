"""Fit a traffic model to a trace, and sample from it at any scale."""

from __future__ import annotations

from .analog.analog import Analog
from .fit import Fit, Size, fit_trace
from .generator import Demand
from .judgment import FigureJudgment, Judgment, judge
from .parametric.dynamics import Dynamics
from .parametric.model import TrafficModel
from .parametric.presets import preset_model, preset_names
from .parametric.rows import RowVariation
from .parametric.what_if import Knobs
from .scenario import Exchange, Scenario, scenario_of
from .writing.rhythm import Rhythm
from .writing.trace_writer import (
    Written,
    generate_trace,
    synthetic_trace,
    write_synthetic_trace,
)

__all__ = [
    "Analog",
    "Demand",
    "Dynamics",
    "Exchange",
    "FigureJudgment",
    "Fit",
    "Judgment",
    "Knobs",
    "Rhythm",
    "RowVariation",
    "Scenario",
    "Size",
    "TrafficModel",
    "Written",
    "fit_trace",
    "generate_trace",
    "judge",
    "preset_model",
    "preset_names",
    "scenario_of",
    "synthetic_trace",
    "write_synthetic_trace",
]

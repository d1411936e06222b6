"""Fit a traffic model to a trace, and sample from it at any scale."""

from __future__ import annotations

from .analog import Analog
from .dynamics import Dynamics
from .fit import Fit, Size, fit_trace
from .generator import Demand, Generator
from .judgment import FigureJudgment, Judgment, judge
from .model import TrafficModel
from .presets import preset_model, preset_names
from .rhythm import Rhythm
from .rows import RowVariation
from .scenario import Exchange, Scenario, scenario_of
from .trace_writer import (
    Written,
    generate_trace,
    synthetic_trace,
    write_synthetic_trace,
)
from .what_if import Bursts, Knobs

__all__ = [
    "Analog",
    "Bursts",
    "Demand",
    "Dynamics",
    "Exchange",
    "FigureJudgment",
    "Fit",
    "Generator",
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

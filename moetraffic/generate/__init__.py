"""Fit a traffic model to a trace, and sample from it at any scale."""

from __future__ import annotations

from .dynamics import Dynamics
from .generator import Demand, Generator
from .model import TrafficModel
from .presets import preset_model, preset_names
from .rhythm import Rhythm
from .rows import RowSpread
from .scenario import Exchange, Scenario, scenario_of
from .twin import Written, generate_trace, twin_trace, write_twin
from .what_if import Bursts, Knobs

__all__ = [
    "Bursts",
    "Demand",
    "Dynamics",
    "Exchange",
    "Generator",
    "Knobs",
    "Rhythm",
    "RowSpread",
    "Scenario",
    "TrafficModel",
    "Written",
    "generate_trace",
    "preset_model",
    "preset_names",
    "scenario_of",
    "twin_trace",
    "write_twin",
]

"""Synthetic traffic: surrogates and relabeled copies of runs, and their comparison."""

from .api import copy_of, generate_trace
from .model import TrafficModel, preset_model, preset_names
from .surrogate import Knobs

__all__ = [
    "Knobs",
    "TrafficModel",
    "copy_of",
    "generate_trace",
    "preset_model",
    "preset_names",
]

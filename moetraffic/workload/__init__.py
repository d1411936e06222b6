"""What is trained: model, routing, optimizer and text, as plain data without torch."""

from __future__ import annotations

from .model import ModelShape
from .presets import PRESETS, Preset, preset, read_config, scaled
from .routing import ROUTERS, Gating
from .tensors import ParameterCount, parameter_count
from .training import Dropping, Training

__all__ = [
    "PRESETS",
    "ROUTERS",
    "Dropping",
    "Gating",
    "ModelShape",
    "ParameterCount",
    "Preset",
    "Training",
    "parameter_count",
    "preset",
    "read_config",
    "scaled",
]

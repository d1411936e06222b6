"""Parallel layouts and workloads: what decides traffic before a run starts."""

from __future__ import annotations

from .dropping import Dropping
from .layout import ParallelLayout
from .model_card import Preset
from .parameters import ParameterCount, parameter_count
from .presets import PRESETS, preset
from .router_table import ROUTERS
from .routers import Gating
from .scaling import scaled
from .shape import ModelShape
from .training import Training
from .workload import Workload

__all__ = [
    "PRESETS",
    "ROUTERS",
    "Dropping",
    "Gating",
    "ModelShape",
    "ParallelLayout",
    "ParameterCount",
    "Preset",
    "Training",
    "Workload",
    "parameter_count",
    "preset",
    "scaled",
]

"""Parallel layouts and workloads: what decides traffic before a run starts."""

from __future__ import annotations

from .layouts.parallelism import Parallelism
from .megatron import megatron_pattern
from .parameters import ParameterCount, parameter_count
from .pattern import Call, Pattern
from .presets import PRESETS, Preset, preset, scaled
from .shape import ModelShape
from .traffic import traffic_matrices, traffic_matrix
from .workload_pattern import workload_pattern
from .workloads.dropping import Dropping
from .workloads.router_table import ROUTERS
from .workloads.routers import Gating
from .workloads.training import Training
from .workloads.workload import Workload

__all__ = [
    "PRESETS",
    "ROUTERS",
    "Call",
    "Dropping",
    "Gating",
    "ModelShape",
    "Parallelism",
    "ParameterCount",
    "Pattern",
    "Preset",
    "Training",
    "Workload",
    "megatron_pattern",
    "parameter_count",
    "preset",
    "scaled",
    "traffic_matrices",
    "traffic_matrix",
    "workload_pattern",
]

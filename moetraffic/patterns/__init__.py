"""Parallel layouts and workloads: what decides traffic before a run starts."""

from __future__ import annotations

from .dropping import Dropping
from .layout import ParallelLayout
from .megatron import megatron_pattern
from .parallelism import Parallelism
from .parameters import ParameterCount, parameter_count
from .pattern import Call, Pattern
from .presets import PRESETS, Preset, preset, scaled
from .router_table import ROUTERS
from .routers import Gating
from .shape import ModelShape
from .traffic import traffic_matrices, traffic_matrix
from .training import Training
from .workload import Workload
from .workload_pattern import workload_pattern

__all__ = [
    "PRESETS",
    "ROUTERS",
    "Call",
    "Dropping",
    "Gating",
    "ModelShape",
    "ParallelLayout",
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

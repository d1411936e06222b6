"""Parallel layouts and workloads: what decides traffic before a run starts."""

from __future__ import annotations

from moetraffic.workload import (
    PRESETS,
    ROUTERS,
    Dropping,
    Gating,
    ModelShape,
    ParameterCount,
    Preset,
    Training,
    parameter_count,
    preset,
    scaled,
)

from .bandwidth import BandwidthTable
from .calls import (
    Call,
    Pattern,
    megatron_pattern,
    trained_pattern,
    workload_pattern,
)
from .collectives import collective_matrix
from .layout import Layout
from .matrices import traffic_matrices, traffic_matrix
from .workload import Workload

__all__ = [
    "PRESETS",
    "ROUTERS",
    "BandwidthTable",
    "Call",
    "Dropping",
    "Gating",
    "Layout",
    "ModelShape",
    "ParameterCount",
    "Pattern",
    "Preset",
    "Training",
    "Workload",
    "collective_matrix",
    "megatron_pattern",
    "parameter_count",
    "preset",
    "scaled",
    "traffic_matrices",
    "traffic_matrix",
    "trained_pattern",
    "workload_pattern",
]

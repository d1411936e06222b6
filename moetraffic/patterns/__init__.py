"""Parallel layouts and workloads: what decides traffic before a run starts."""

from __future__ import annotations

from .layout import ParallelLayout
from .routers import Gating
from .shape import ModelShape
from .training import Training
from .workload import Workload

__all__ = ["Gating", "ModelShape", "ParallelLayout", "Training", "Workload"]

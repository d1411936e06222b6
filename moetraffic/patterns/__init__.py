"""Parallel layouts and workloads: what decides traffic before a run starts."""

from __future__ import annotations

from .dropping import Dropping
from .layout import ParallelLayout
from .router_table import ROUTERS
from .routers import Gating
from .shape import ModelShape
from .workload import Training, Workload

__all__ = [
    "ROUTERS",
    "Dropping",
    "Gating",
    "ModelShape",
    "ParallelLayout",
    "Training",
    "Workload",
]

"""The time of a training iteration from its layout: the published formulas.

:func:`estimate` takes one layout or lists of them.
"""

from __future__ import annotations

from .compute import (
    A100,
    ATTENTION,
    GPUS,
    H100,
    Gpu,
    Memory,
    memory,
    model_operations,
    operations,
    passes,
)
from .estimate import WINDOWS, Estimate, estimate
from .search import (
    COLUMNS,
    COMPARED,
    MODEL_ERROR,
    Search,
    projected_speedup,
    search,
    sensitivity,
    shared,
)
from .system import STACKS, MeasuredLinks, NodeLinks, Practice, System, practice
from .traffic import KINDS, Traffic, traffic

__all__ = [
    "A100",
    "ATTENTION",
    "COLUMNS",
    "COMPARED",
    "GPUS",
    "H100",
    "KINDS",
    "MODEL_ERROR",
    "STACKS",
    "WINDOWS",
    "Estimate",
    "Gpu",
    "MeasuredLinks",
    "Memory",
    "NodeLinks",
    "Practice",
    "Search",
    "System",
    "Traffic",
    "estimate",
    "memory",
    "model_operations",
    "operations",
    "passes",
    "practice",
    "projected_speedup",
    "search",
    "sensitivity",
    "shared",
    "traffic",
]

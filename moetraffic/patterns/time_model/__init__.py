"""The time of a training iteration from its configuration: the published formulas.

:func:`estimate` takes one configuration or arrays of them.
"""

from __future__ import annotations

from moetraffic.patterns.layouts.configuration import Configuration
from moetraffic.patterns.layouts.violations import violations

from .calls import Traffic
from .conventions import APNET24, CHOICES, SC21, Conventions
from .estimation import Estimate, estimate
from .gpus import A100, GPUS, H100, Gpu
from .links import MeasuredLinks, NodeLinks
from .memory import Memory, memory
from .operations import Operations, model_operations, operations
from .projection import projected_speedup
from .search import COLUMNS, MODEL_ERROR, Search, search
from .sensitivity import Sensitivity, sensitivity
from .sweeps import SCALINGS, Sweep, sweep
from .system import Effective, Links, System
from .traffic import KINDS, traffic

__all__ = [
    "A100",
    "APNET24",
    "CHOICES",
    "COLUMNS",
    "GPUS",
    "H100",
    "KINDS",
    "MODEL_ERROR",
    "SC21",
    "SCALINGS",
    "Configuration",
    "Conventions",
    "Effective",
    "Estimate",
    "Gpu",
    "Links",
    "MeasuredLinks",
    "Memory",
    "NodeLinks",
    "Operations",
    "Search",
    "Sensitivity",
    "Sweep",
    "System",
    "Traffic",
    "estimate",
    "memory",
    "model_operations",
    "operations",
    "projected_speedup",
    "search",
    "sensitivity",
    "sweep",
    "traffic",
    "violations",
]

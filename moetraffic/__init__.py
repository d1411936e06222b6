"""Record, analyze and replay the AllToAll traffic of mixture-of-experts training.

The names here are those that most programs need; every verb of the command line is a
function too, which ``docs/command-line.md`` lists.

Trace
    What was sent: ``Trace.open("run.h5")``, ``trace.matrix(...)``, ``trace.save(...)``.
Recorder, capture
    Record a training loop; annotate what it does.
analyze, compare
    Statistics of a trace; how far apart two traces are.
estimate
    An iteration's time from its configuration.
circuits
    Circuit schedules of a trace's all-to-alls.
errors
    What can go wrong, as one tree under ``errors.MoetrafficError``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from moetraffic import capture, errors
    from moetraffic.analysis import analyze, compare
    from moetraffic.capture import Recorder
    from moetraffic.patterns.time_model import estimate
    from moetraffic.trace import Trace

    from .analysis.network.circuit_plan import circuits

__all__ = [
    "Recorder",
    "Trace",
    "__version__",
    "analyze",
    "capture",
    "circuits",
    "compare",
    "errors",
    "estimate",
]

_MODULES = {
    "Recorder": "moetraffic.capture",
    "Trace": "moetraffic.trace",
    "analyze": "moetraffic.analysis",
    "circuits": "moetraffic.analysis.network.circuit_plan",
    "compare": "moetraffic.analysis",
    "estimate": "moetraffic.patterns.time_model",
}


def __getattr__(name: str) -> Any:
    """Import the public names when they are asked for: torch takes seconds to load."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    if name in ("capture", "errors"):
        return import_module(f"moetraffic.{name}")
    raise AttributeError(f"module 'moetraffic' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, also those that are not imported yet."""
    return sorted({*globals(), *__all__})

"""Statistics of a trace: evenness, forecasts, rhythm, times, complexity, networks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .comparison import compare
    from .trace_analysis import analyze, effort

__all__ = ["analyze", "compare", "effort"]

_MODULES = {
    "analyze": "trace_analysis",
    "compare": "comparison",
    "effort": "trace_analysis",
}


def __getattr__(name: str) -> Any:
    """Import a function on first use: all statistics take half a second to load."""
    if name in _MODULES:
        module = import_module(f"moetraffic.analysis.{_MODULES[name]}")
        return getattr(module, name)
    raise AttributeError(f"module 'moetraffic.analysis' has no attribute {name!r}")

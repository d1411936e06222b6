"""Record, analyse and replay the AllToAll traffic of mixture-of-experts training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from moetraffic import capture
    from moetraffic.capture import Recorder
    from moetraffic.trace import Trace

__all__ = ["Recorder", "Trace", "__version__", "capture"]


def __getattr__(name: str) -> Any:
    """Import the public names when they are asked for: torch takes seconds to load."""
    if name == "Trace":
        from moetraffic.trace import Trace

        return Trace
    if name == "capture":
        from importlib import import_module

        return import_module("moetraffic.capture")
    if name == "Recorder":
        from moetraffic.capture import Recorder

        return Recorder
    raise AttributeError(f"module 'moetraffic' has no attribute {name!r}")

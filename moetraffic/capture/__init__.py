"""Capture of the collectives and expert routings of a training process.

Recorders need torch and annotations do not, so recorders are imported on first access.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .annotate import at, routing
from .running import pause, resume

if TYPE_CHECKING:
    from .recorder import Recorder
    from .routers.router_hooks import router
    from .virtual import VirtualRecorder

__all__ = [
    "Recorder",
    "VirtualRecorder",
    "at",
    "pause",
    "resume",
    "router",
    "routing",
]

_MODULES = {
    "Recorder": "recorder",
    "VirtualRecorder": "virtual",
    "router": "routers.router_hooks",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(name)
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)

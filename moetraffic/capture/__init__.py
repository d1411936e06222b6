"""Capture of the collectives and expert routings of a training process.

Recorders need torch and annotations do not, so recorders are imported on first access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .annotate import at, routing

if TYPE_CHECKING:
    from .recorder import Recorder
    from .routers.router_hooks import router, watch_routers
    from .virtual_recorder import VirtualRecorder

__all__ = [
    "Recorder",
    "VirtualRecorder",
    "at",
    "router",
    "routing",
    "watch_routers",
]


def __getattr__(name: str) -> Any:
    if name == "Recorder":
        from .recorder import Recorder

        return Recorder
    if name == "VirtualRecorder":
        from .virtual_recorder import VirtualRecorder

        return VirtualRecorder
    if name in ("router", "watch_routers"):
        from .routers import router_hooks

        return getattr(router_hooks, name)
    raise AttributeError(name)

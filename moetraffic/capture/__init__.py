"""Capture: the hook on torch.distributed, annotations of a model, the Recorder.

Recorders need torch, the annotations do not: they are imported when asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .annotate import at, routing

if TYPE_CHECKING:
    from .recorder import Recorder
    from .virtual import VirtualRecorder

__all__ = ["Recorder", "VirtualRecorder", "at", "routing"]


def __getattr__(name: str) -> Any:
    if name == "Recorder":
        from .recorder import Recorder

        return Recorder
    if name == "VirtualRecorder":
        from .virtual import VirtualRecorder

        return VirtualRecorder
    raise AttributeError(name)

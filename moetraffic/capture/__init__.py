"""Capture: the hook on torch.distributed, annotations of a model, the Recorder.

The Recorder needs torch, the annotations do not: it is imported when asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .annotate import at, routing

if TYPE_CHECKING:
    from .recorder import Recorder

__all__ = ["Recorder", "at", "routing"]


def __getattr__(name: str) -> Any:
    if name == "Recorder":
        from .recorder import Recorder

        return Recorder
    raise AttributeError(name)

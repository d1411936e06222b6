"""What collectives get of a network, measured as nccl-tests does it."""

from __future__ import annotations

from .sweep import Sweep

__all__ = ["Sweep"]

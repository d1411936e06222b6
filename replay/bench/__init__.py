"""Benchmark of collectives, measured as nccl-tests does."""

from __future__ import annotations

from .sweep import Sweep

__all__ = ["Sweep"]

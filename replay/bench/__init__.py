"""Benchmark of collective communication, measured as in nccl-tests."""

from __future__ import annotations

from .sweep import Sweep

__all__ = ["Sweep"]

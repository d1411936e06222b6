"""Benchmark of collective communication, measured as in nccl-tests."""

from .sweep import Sweep

__all__ = ["Sweep"]

"""Recompute a trace for another algorithm that dispatches the same tokens."""

from .exchanges import DISPATCHERS, redispatch

__all__ = ["DISPATCHERS", "redispatch"]

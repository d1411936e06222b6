"""Recompute a trace for another algorithm that dispatches the same tokens."""

from .exchanges import DISPATCHERS, redispatch, reroute

__all__ = ["DISPATCHERS", "redispatch", "reroute"]

"""Put a trace's traffic on a network again: plan, backends, engine, result."""

from __future__ import annotations

from .plan import Plan, Program
from .planning import make_plan

__all__ = ["Plan", "Program", "make_plan"]

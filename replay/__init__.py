"""Put a trace's traffic on a network again: plan, backends, engine, result."""

from __future__ import annotations

from .plan.planning import make_plan
from .plan.program import Plan, Program

__all__ = ["Plan", "Program", "make_plan"]

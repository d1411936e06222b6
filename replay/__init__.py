"""Replay the captured traffic of a trace on a network."""

from .local import replay_trace
from .plan.planning import make_plan
from .plan.program import Plan, Program

__all__ = ["Plan", "Program", "make_plan", "replay_trace"]

"""Replay the captured traffic of a trace on a network."""

from .plan.operations import Plan, operations
from .plan.program import Program, program, programs
from .run import replay_trace

__all__ = ["Plan", "Program", "operations", "program", "programs", "replay_trace"]

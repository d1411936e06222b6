"""Whether this machine can capture and replay: what is there, and what would stop."""

from __future__ import annotations

from .finding import Finding, State, stops
from .machine import examine
from .replay_requirements import before_replay

__all__ = ["Finding", "State", "before_replay", "examine", "stops"]

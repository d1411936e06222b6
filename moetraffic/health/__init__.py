"""Health checks of this machine for capture and replay."""

from .finding import Finding, State, stops
from .machine import examine
from .replay_requirements import before_replay

__all__ = ["Finding", "State", "before_replay", "examine", "stops"]

"""Health checks of this machine for capture and replay."""

from .machine import Finding, State, before_replay, examine, stops

__all__ = ["Finding", "State", "before_replay", "examine", "stops"]

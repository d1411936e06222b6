"""Start ranks on one host, watch over them, and say which one failed where."""

from __future__ import annotations

from . import heartbeat
from .environment import Seat, current_rank, rendezvous
from .supervisor import Outcome, launch
from .watch import Event

__all__ = [
    "Event",
    "Outcome",
    "Seat",
    "current_rank",
    "heartbeat",
    "launch",
    "rendezvous",
]

"""Start ranks on one host, watch over them, and say which one failed where."""

from __future__ import annotations

from . import heartbeat
from .environment import RankEnvironment, current_rank, rendezvous
from .rank_monitor import Heartbeat
from .supervisor import Outcome, launch

__all__ = [
    "Heartbeat",
    "Outcome",
    "RankEnvironment",
    "current_rank",
    "heartbeat",
    "launch",
    "rendezvous",
]

"""Launch ranks on one host, monitor them and report the root cause of failures."""

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

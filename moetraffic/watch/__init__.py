"""Live statistics of a run while it is recorded, from the logs of its ranks."""

from .live import INTERVAL_S, LAST, watch_run
from .snapshot import LayerSnapshot, Snapshot

__all__ = ["INTERVAL_S", "LAST", "LayerSnapshot", "Snapshot", "watch_run"]

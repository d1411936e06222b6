"""Recorded times of the operations of one rank in a timed pass."""

from __future__ import annotations

from dataclasses import dataclass

from moetraffic.trace.model import Int64


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Recorded times of one rank's operations, ns of its ``time.monotonic_ns``."""

    operation: Int64  # [N] index into the plan's operations
    issue: Int64  # [N] the call
    start: Int64  # [N] beginning of the transfer
    end: Int64  # [N] end of the transfer
    due: Int64  # [N] scheduled issue; UNKNOWN_TIME if issued as soon as possible

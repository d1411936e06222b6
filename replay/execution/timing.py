"""When one rank's operations happened."""

from __future__ import annotations

from dataclasses import dataclass

from moetraffic.trace.model import Int64


@dataclass(frozen=True, kw_only=True)
class Timing:
    """When one rank's operations happened, ns of its ``time.monotonic_ns``."""

    operation: Int64  # [N] index into the plan's operations
    issue: Int64  # [N] the call
    start: Int64  # [N] the exchange's beginning
    end: Int64  # [N] its end
    due: Int64  # [N] when it was to be issued; UNKNOWN_TIME where as soon as possible

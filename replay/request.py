"""What to replay, and how."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from moetraffic.errors import ReplayError
from moetraffic.trace.durable import refuse_output, refuse_own_input

LONGEST_S = 7 * 86_400.0
"""A week: what is longer is no deadline."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to replay, and how."""

    trace: Path
    out: Path | None = None  # trace to write; None for none
    backend: str = "gloo"
    iterations: range | None = None  # None for all
    verify: bool = True  # check every size and byte in a pass before the timed one
    timeout_s: float = 60.0  # longest time of an operation
    force: bool = False  # overwrite ``out``

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s <= LONGEST_S:  # NaN is neither
            raise ReplayError(
                f"the timeout must be above 0 s and at most {LONGEST_S:.0f} s, but is "
                f"{self.timeout_s:g}: give --timeout a number between these"
            )

    def refuse_overwriting(self) -> None:
        """Refuse, before any work, an output that could not be written after it.

        Raises
        ------
        ReplayError
            If the file exists and ``force`` is not set, it is the trace that is
            replayed, or nothing can be written there.
        """
        if self.out is None:
            return
        refuse_own_input(self.trace, self.out, error=ReplayError)
        refuse_output(self.out, force=self.force, error=ReplayError)

"""What to replay, and how."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from moetraffic.errors import ReplayError


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
        if self.timeout_s <= 0:
            raise ReplayError(
                f"the timeout must be above 0 s, but is {self.timeout_s:g}: give "
                "--timeout a positive number"
            )

    def refuse_overwriting(self) -> None:
        """Refuse, before any work, an output that could not be written after it.

        Raises
        ------
        ReplayError
            If the file exists and ``force`` is not set, or its folder does not exist.
        """
        if self.out is None:
            return
        if self.out.exists() and not self.force:
            raise ReplayError(
                f"a replay overwrites nothing, but {self.out} exists: choose another "
                "-o, or give --force"
            )
        if not self.out.absolute().parent.is_dir():
            raise ReplayError(
                f"the folder of the output must exist, but {self.out.parent} does not: "
                "create it"
            )

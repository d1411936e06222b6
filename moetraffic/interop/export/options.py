"""Options and result of an export."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from moetraffic.errors import TraceError
from moetraffic.trace import PHASES

CONTENTS = ("wire", "demand")
PACES = ("captured", "asap")


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Selection of calls, and pace, of an export.

    Raises
    ------
    TraceError
        If a value is none of those that it may have.
    """

    iterations: range | None = None  # None: all training iterations
    layers: tuple[int, ...] | None = None  # None: all
    phase: str = ""  # one of PHASES; "": all
    unnamed: bool = False  # take all-to-alls without a phase where others have one
    of: str = "wire"  # "wire", what was sent, or "demand", what routers wanted
    pace: str = "captured"  # when calls begin: as captured, or "asap" after the others
    every_ns: int = 0  # > 0: calls begin so long after one another, whatever the pace
    unit: str = "B"  # of numbers in a matrix whose reader has one of its own

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("phase", self.phase, ("", *PHASES)),
            ("of", self.of, CONTENTS),
            ("pace", self.pace, PACES),
        ):
            if value not in allowed:
                raise TraceError(
                    f"{name} is one of {', '.join(a for a in allowed if a)}, not "
                    f"{value[:40]!r}: choose one"
                )
        if self.every_ns < 0:
            raise TraceError(
                f"calls begin one after another, but every is {self.every_ns} ns: "
                "raise it, or leave it out"
            )


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Result of an export."""

    format: str
    files: tuple[Path, ...]
    bytes: int  # of the files
    lost: tuple[str, ...]  # what the format cannot hold or was left out, in sentences

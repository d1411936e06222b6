"""Options and result of a trace export."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from moetraffic.errors import TraceError
from moetraffic.trace import PHASES

CONTENTS = ("wire", "demand")
PACES = ("captured", "asap")


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Selection of calls to export, and the pace at which they begin.

    Raises
    ------
    TraceError
        If an option has an invalid value.
    """

    iterations: range | None = None  # None: all training iterations
    layers: tuple[int, ...] | None = None  # None: all
    phase: str = ""  # one of PHASES; "": all
    unnamed: bool = False  # include all-to-alls without a phase if others have one
    of: str = "wire"  # "wire": bytes sent; "demand": bytes routed
    pace: str = "captured"  # begin of calls: "captured", or "asap" after other calls
    every_ns: int = 0  # > 0: interval between begins of calls, overrides pace
    unit: str = "B"  # of numbers in matrices, for formats with several units

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
    """Result of an export: format, files, and omitted content."""

    format: str
    files: tuple[Path, ...]
    bytes: int  # of the files
    lost: tuple[str, ...]  # omitted or unsupported content, a sentence each

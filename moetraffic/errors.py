"""What can go wrong, as one tree.

    MoetrafficError
    ├── TraceError      a file that is missing, damaged, or no trace
    ├── LayoutError     a parallel layout or workload that cannot exist
    ├── CaptureError    a capture that cannot start or cannot be merged
    ├── ReplayError     a replay that cannot start, or a rank that failed in it
    ├── AnalysisError   a statistic that this trace cannot give
    ├── FabricError     a network or a schedule that cannot exist
    └── Interrupted     the user ended a long work; what there is, is kept

Every message says the rule, the value that broke it and the remedy, in one sentence.
The command line prints it and exits with 2 (128 + n after signal n).
"""

from __future__ import annotations

from pathlib import Path


def install_command(extra: str) -> str:
    """The pip command that installs an optional extra.

    A source checkout is installed in place, a release from the package index.

    Parameters
    ----------
    extra
        A name of ``project.optional-dependencies`` in ``pyproject.toml``.
    """
    root = Path(__file__).resolve().parents[1]
    if not (root / "pyproject.toml").exists():
        return f"pip install 'moetraffic[{extra}]'"
    here = "." if root == Path.cwd() else str(root)
    return f"pip install -e '{here}[{extra}]'"


class MoetrafficError(Exception):
    """The root of all errors that this library raises on purpose."""


class TraceError(MoetrafficError):
    """A file is missing, damaged, or not a moetraffic trace."""


class LayoutError(MoetrafficError):
    """A parallel layout, model shape or workload that cannot exist."""


class CaptureError(MoetrafficError):
    """A capture that cannot start, or segments that cannot be merged."""


class ReplayError(MoetrafficError):
    """A replay that cannot start, or a rank that failed in it."""


class AnalysisError(MoetrafficError):
    """A statistic that cannot be computed from what a trace holds."""


class FabricError(MoetrafficError):
    """A network, a placement on it or a schedule that cannot exist."""


class Interrupted(MoetrafficError):
    """The user ended a long work; the sentence says what is kept.

    The exit code is 128 plus the signal's number, as a shell has it.
    """

    def __init__(self, sentence: str, signal: int) -> None:
        super().__init__(sentence)
        self.signal = signal

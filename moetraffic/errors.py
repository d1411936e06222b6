"""Exception classes of moetraffic, derived from one base class.

    MoetrafficError
    ├── TraceError      a file that is missing, damaged, or no trace
    ├── LayoutError     a parallel layout or workload that cannot exist
    ├── CaptureError    a capture that cannot start or cannot be merged
    ├── ReplayError     a replay that cannot start, or a rank that failed in it
    ├── AnalysisError   a statistic that cannot be computed from a trace
    ├── FabricError     a network or a schedule that cannot exist
    └── Interrupted     the user interrupted a long operation; results are kept

Every message states the rule, the value that violates it and the remedy, in one
sentence.  The command line prints it and exits with 2 (128 + n after signal n).
"""

from __future__ import annotations

from pathlib import Path


def install_command(extra: str) -> str:
    """Return the pip command that installs an optional dependency group.

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
    """Base class of all exceptions that this library raises deliberately."""


class TraceError(MoetrafficError):
    """Raised if a file is missing, damaged, or not a moetraffic trace."""


class LayoutError(MoetrafficError):
    """Raised for an impossible parallel layout, model shape or workload."""


class CaptureError(MoetrafficError):
    """Raised if a capture cannot start, or logs cannot be merged."""


class ReplayError(MoetrafficError):
    """Raised if a replay cannot start, or one of its ranks failed."""


class AnalysisError(MoetrafficError):
    """Raised if a statistic cannot be computed from a trace."""


class FabricError(MoetrafficError):
    """Raised for an impossible network, placement on a network, or schedule."""


class Interrupted(MoetrafficError):
    """Raised if the user interrupted a long operation; the message lists kept results.

    The exit code is 128 plus the signal number, as in a shell.
    """

    def __init__(self, sentence: str, signal: int) -> None:
        super().__init__(sentence)
        self.signal = signal

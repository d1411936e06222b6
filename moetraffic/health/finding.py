"""What an examination finds: a fact, and whether it would stop a run."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class State(str, enum.Enum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"  # something works less well, or is not there and not needed
    STOP = "stop"  # a capture or a replay would not run


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fact about this machine."""

    area: str  # software, torch, network, files, machine or replay
    name: str
    state: State
    said: str  # what there is
    remedy: str = ""  # what to do about it, where something is to be done


def stops(findings: Iterable[Finding]) -> list[Finding]:
    """Those that would stop a run."""
    return [f for f in findings if f.state is State.STOP]

"""Findings of a health check."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class State(str, enum.Enum):
    """Severity of a finding."""

    OK = "ok"
    NOTE = "note"  # something works less well, or is not there and not needed
    STOP = "stop"  # a capture or a replay would not run


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Result of one check."""

    area: str  # software, torch, network, files, machine or replay
    name: str
    state: State
    said: str  # what there is
    remedy: str = ""  # what to do about it, where something is to be done


def stops(findings: Iterable[Finding]) -> list[Finding]:
    """Select the findings that prevent a run."""
    return [f for f in findings if f.state is State.STOP]


def finding(area: str, name: str, state: State, said: str, remedy: str = "") -> Finding:
    """Create a finding; the remedy is kept only where there is a problem."""
    kept = "" if state is State.OK else remedy
    return Finding(area=area, name=name, state=state, said=said, remedy=kept)

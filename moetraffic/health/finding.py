"""Findings of the health checks of ``moetraffic doctor``."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class State(str, enum.Enum):
    """Severity of a finding of a health check."""

    OK = "ok"
    NOTE = "note"  # degraded, or missing but not required
    STOP = "stop"  # a capture or a replay would not run


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Result of one health check: state, observation and remedy."""

    area: str  # software, torch, network, files, machine or replay
    name: str
    state: State
    said: str  # observation
    remedy: str = ""  # action to take, if one is needed


def stops(findings: Iterable[Finding]) -> list[Finding]:
    """Select the findings that prevent a capture or a replay."""
    return [f for f in findings if f.state is State.STOP]


def finding(area: str, name: str, state: State, said: str, remedy: str = "") -> Finding:
    """Create a finding; the remedy is kept only if the state is not OK."""
    kept = "" if state is State.OK else remedy
    return Finding(area=area, name=name, state=state, said=said, remedy=kept)

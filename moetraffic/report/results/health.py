"""Report findings of the installation check (doctor) as a table and plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from moetraffic.health import Finding, State, stops
from moetraffic.tables import Table

STYLES = {State.OK: "green", State.NOTE: "yellow", State.STOP: "bold red"}


def table(findings: Sequence[Finding]) -> Table:
    """Tabulate the installation checks, with a remedy for each problem."""
    return Table(
        columns=("area", "check", "state", "finding", "remedy"),
        rows=[(f.area, f.name, f.state.value, f.said, f.remedy) for f in findings],
        styles={state.value: style for state, style in STYLES.items()},
    )


def conclusion(findings: Sequence[Finding]) -> str:
    """Describe in one sentence whether a check would stop a run."""
    bad, notes = stops(findings), sum(f.state is State.NOTE for f in findings)
    if bad:
        named = ", ".join(f.name for f in bad)
        return f"{len(bad)} of {len(findings)} checks would stop a run: {named}"
    also = f", {notes} with a note" if notes else ""
    return f"nothing would stop a run ({len(findings)} checks{also})"


def as_dict(findings: Sequence[Finding]) -> dict[str, Any]:
    """Convert the findings of the installation check to plain data."""
    return {
        "stops": [f.name for f in stops(findings)],
        "findings": [asdict(f) | {"state": f.state.value} for f in findings],
    }

"""What doctor found, as a table and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from moetraffic.health import Finding, State, stops

COLORS = {State.OK: "green", State.NOTE: "yellow", State.STOP: "bold red"}


def table(findings: Sequence[Finding]) -> Table:
    """A row a finding, with what to do about it."""
    made = Table(box=None, header_style="bold", padding=(0, 1))
    for name in ("", "", "state"):
        made.add_column(name, no_wrap=True)
    made.add_column("what there is", overflow="fold")
    area = ""
    for found in findings:
        said = Text(found.said)
        if found.remedy:
            said.append(f"\n-> {found.remedy}", style="italic")
        made.add_row(
            Text("" if found.area == area else found.area, style="bold"),
            found.name,
            Text(found.state.value, style=COLORS[found.state]),
            said,
        )
        area = found.area
    return made


def conclusion(findings: Sequence[Finding]) -> str:
    """One sentence: whether something would stop a run."""
    bad, notes = stops(findings), sum(f.state is State.NOTE for f in findings)
    if bad:
        named = ", ".join(f.name for f in bad)
        return f"{len(bad)} of {len(findings)} would stop a run: {named}"
    also = f", {notes} to note" if notes else ""
    return f"nothing would stop a run ({len(findings)} looked at{also})"


def as_dict(findings: Sequence[Finding]) -> dict[str, Any]:
    """The findings as plain data."""
    return {
        "stops": [f.name for f in stops(findings)],
        "findings": [asdict(f) | {"state": f.state.value} for f in findings],
    }

"""Write the results of a benchmark: as JSON, or between markers of a Markdown page."""

from __future__ import annotations

import json
from pathlib import Path


def save(path: Path | None, results: object) -> None:
    """Write results as JSON to the file of ``--json``; print them without one."""
    text = json.dumps(results, indent=1)
    if path is None:
        print(text)
    else:
        path.write_text(text + "\n")


def replace(page: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between the markers of a page."""
    before, _, rest = page.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{page} has no lines {begin} and {end}: add them")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")

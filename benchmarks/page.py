"""Write the results of a benchmark: as JSON, CSV, or between markers of a page."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path


def save(path: Path | None, results: object) -> None:
    """Write results as JSON to the file of ``--json``; print them without one."""
    text = json.dumps(results, indent=1)
    if path is None:
        print(text)
    else:
        path.write_text(text + "\n")


def save_table(path: Path, rows: Sequence[Sequence[object]], *comments: str) -> None:
    """Write rows as CSV, after lines of comments."""
    with path.open("w", newline="") as file:
        file.writelines(f"# {line}\n" for line in comments)
        csv.writer(file, lineterminator="\n").writerows(rows)


def rows_of(table: str) -> list[list[str]]:
    """Split a Markdown table into rows of cells, without the line below its head."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if set(line) - set("|- ")
    ]


def replace(page: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between the markers of a page."""
    before, _, rest = page.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{page} has no lines {begin} and {end}: add them")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")

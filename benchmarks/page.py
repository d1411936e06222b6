"""Put the results of a benchmark between two markers of a Markdown page."""

from __future__ import annotations

from pathlib import Path


def replace(page: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between the markers of a page."""
    before, _, rest = page.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{page} has no lines {begin} and {end}: add them")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")

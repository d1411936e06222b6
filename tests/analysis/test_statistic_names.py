"""Names of the statistics in data frames."""

from __future__ import annotations

from pathlib import Path

from moetraffic import analyze
from moetraffic.analysis.engine import PARTS
from moetraffic.data import path

PAGE = Path(__file__).parents[2] / "docs" / "python-api.md"


def test_every_statistic_is_documented() -> None:
    rows = analyze(path("golden.h5"), parts=PARTS).to_frame()
    names = {name for name in rows.statistic if not name.startswith("claim.")}
    page = PAGE.read_text()
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []

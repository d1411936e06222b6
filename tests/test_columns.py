"""The page of columns is the registry, and its formats are known."""

from __future__ import annotations

from pathlib import Path

from moetraffic.columns import COLUMNS, QUANTITIES, cell_text, page

PAGE = Path(__file__).parents[1] / "docs" / "columns.md"


def test_the_page_is_made_from_the_registry() -> None:
    """``python -m moetraffic.columns > docs/columns.md`` makes it again."""
    assert PAGE.read_text() == page()


def test_each_column_has_a_known_format_and_type() -> None:
    for name, column in COLUMNS.items():
        assert column.dtype in {"int64", "float64", "str", "bool"}, name
        assert column.meaning, name
        if column.dtype == "int64":
            assert column.format == "d" or column.format in QUANTITIES, name
        elif column.dtype == "float64":
            assert cell_text(0.5, column.format), name

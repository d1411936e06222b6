"""Tables as HTML, for notebooks: what ``_repr_html_`` of a result returns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_CELL = "text-align:left;vertical-align:top"
_NUMBER = "text-align:right;vertical-align:top"


def html_table(
    title: str,
    rows: Iterable[Sequence[object]],
    *,
    header: Sequence[str] = (),
    notes: Iterable[str] = (),
) -> str:
    """A table with a title; every text in it is escaped.

    Parameters
    ----------
    title
        Stands above it.
    rows
        Cells; numbers stand at the right, floats with four significant digits.
    header
        Names of the columns.
    notes
        Sentences below it.

    Returns
    -------
    str
        HTML without scripts, styles of its own page, or links.

    Examples
    --------
    >>> "<td" in html_table("run.h5", [["ranks", 4]])
    True
    """
    head = "".join(f'<th style="{_CELL}">{escape(name)}</th>' for name in header)
    body = "".join(
        "<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows
    )
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return (
        f"<div><p><strong>{escape(title)}</strong></p><table>"
        + (f"<thead><tr>{head}</tr></thead>" if head else "")
        + f"<tbody>{body}</tbody></table>{below}</div>"
    )


def _cell(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f'<td style="{_CELL}">{escape(str(value))}</td>'
    text = f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    return f'<td style="{_NUMBER}">{"" if text == "nan" else text}</td>'

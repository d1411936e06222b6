"""Fit tables to the width of a terminal or a log without cutting a number.

What does not fit is wrapped, then left out or stated once, then transposed or continued
below.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table as Grid
from rich.text import Text

from .text import visible

PADDING = 2
"""Columns of a terminal around the text of a column, together."""

COMFORTABLE = 16
"""Width to which a column of sentences shrinks, if its words do not need more."""

LONGEST_WORD = 32
"""Longer words, such as paths, may be broken; no number is as long."""

TRANSPOSED_ROWS = 4
"""Maximum rows of a table that is transposed if that makes it fit."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """Name, cells and alignment of a column of texts."""

    name: str
    cells: Sequence[str]
    right: bool

    def least(self) -> int:
        """Return the width below which a number or a word would be cut."""
        widest = max(map(len, self.cells), default=0)
        if self.right and widest <= LONGEST_WORD:
            return max(widest, _longest_word([self.name]))
        return max(_longest_word((self.name, *self.cells)), min(widest, COMFORTABLE))

    def wanted(self) -> int:
        """Return the width in which only its name is wrapped."""
        return max([self.least(), *map(len, self.cells)])


def indented(sentence: str, width: int) -> str:
    """Wrap a sentence; all lines but the first are indented by two spaces."""
    return textwrap.fill(
        sentence,
        width,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def fitted(
    heading: str,
    columns: Sequence[Column],
    notes: Sequence[str],
    styles: Mapping[str, str],
    *,
    head: bool,
    width: int,
) -> list[RenderableType]:
    """Return what prints a table in ``width`` characters; ``head``: with names.

    Columns of text are wrapped.  If that does not suffice, blank columns are left out
    and those with one value are stated once, above the others; then a table of few rows
    is transposed, and another continued below, with its leading columns of text again.
    """
    titled = [Text(heading, style="bold")] if heading else []
    notes = [visible(note) for note in notes]
    if _widths(columns, width) is None:
        columns, same = _varying(columns)
        notes = [*same, *notes]
    below: list[RenderableType] = [Text(indented(note, width)) for note in notes]
    if not columns:
        return [*titled, *below, ""]
    few = len(columns[0].cells) <= TRANSPOSED_ROWS
    if _widths(columns, width) is None and few:
        turned = _transposed(columns)
        if _widths(turned, width) is not None:
            columns, head = turned, False
    grids: list[RenderableType] = []
    for block in _blocks(columns, width):
        grids += [""] if grids else []
        grids.append(_grid(block, width, head=head, styles=styles))
    return [*titled, *grids, *below, ""]


def _longest_word(texts: Sequence[str]) -> int:
    longest = max((len(word) for text in texts for word in text.split()), default=0)
    return min(longest, LONGEST_WORD)


def _widths(columns: Sequence[Column], width: int) -> list[int] | None:
    """Return the widths of columns, or None where they do not fit."""
    room = width - PADDING * len(columns)
    least = [column.least() for column in columns]
    if sum(least) > room:
        return None
    found = [column.wanted() for column in columns]
    while (over := sum(found) - room) > 0:
        # the widest of those that may shrink, as far as the next one is wide
        wide = max(w for w, few in zip(found, least, strict=True) if w > few)
        at = next(i for i, w in enumerate(found) if w == wide and w > least[i])
        below = [w for w in found if w < wide]
        step = max(1, min(over, wide - max(below, default=wide - 1)))
        found[at] = max(least[at], wide - step)
    for at, column in enumerate(columns):
        more = min(len(column.name) - found[at], room - sum(found))
        found[at] += max(0, more)
    return found


def _varying(columns: Sequence[Column]) -> tuple[list[Column], list[str]]:
    """Return columns with several values, and sentences that state the others."""
    if not columns or not columns[0].cells:
        return list(columns), []
    one = [c for c in columns if c.name and len(set(c.cells)) == 1]
    blank = [c.name for c in one if not c.cells[0]]
    same = [f"{c.name} {c.cells[0]}" for c in one if c.cells[0] and len(c.cells) > 1]
    gone = [c for c in one if not c.cells[0] or len(c.cells) > 1]
    return [c for c in columns if c not in gone], [
        f"{where} each row: {items}."
        for where, items in (("In", "; ".join(same)), ("Blank in", ", ".join(blank)))
        if items
    ]


def _transposed(columns: Sequence[Column]) -> list[Column]:
    """Return the names as the first column, and each row as a further one."""
    names = Column(name="", cells=[c.name for c in columns], right=False)
    rows = zip(*(c.cells for c in columns), strict=True)
    return [names, *(Column(name="", cells=row, right=False) for row in rows)]


def _blocks(columns: Sequence[Column], width: int) -> list[list[Column]]:
    """Divide columns into blocks that fit; each begins with the columns of text.

    A column that is too wide to stand beside them stands alone.
    """
    numbers = [at for at, column in enumerate(columns) if column.right]
    keys = list(columns[: numbers[0]]) if numbers else list(columns[:1])
    if _widths(columns, width) is not None:
        return [list(columns)]
    found = [list(keys)]
    for column in columns[len(keys) :]:
        if found[-1] and _widths([*found[-1], column], width) is None:
            beside = _widths([*keys, column], width) is not None
            found.append(list(keys) if beside else [])
        found[-1].append(column)
    return found


def _grid(
    columns: Sequence[Column], width: int, *, head: bool, styles: Mapping[str, str]
) -> Grid:
    grid = Grid(box=None, header_style="bold", show_header=head, padding=(0, 1))
    widths: Sequence[int | None] = _widths(columns, width) or [None] * len(columns)
    for column, wide in zip(columns, widths, strict=True):
        grid.add_column(
            Text(column.name),
            justify="right" if column.right else "left",
            overflow="fold",
            width=wide,
        )
    for row in zip(*(c.cells for c in columns), strict=True):
        grid.add_row(*(Text(cell, style=styles.get(cell, "")) for cell in row))
    return grid

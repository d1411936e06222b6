"""The answer of a verb: a headline, tables, at most five sentences, and notes.

A :class:`Result` is shown by rich in a terminal, as HTML in a notebook, and given as
JSON or pandas frames.  Facts are columns of tables and fields of ``data``; texts are
made last and never read by code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from .columns import COLUMNS, VERSION, Column, cell_text
from .text import html_text, visible

if TYPE_CHECKING:
    import pandas
    from rich.console import Console, ConsoleOptions, RenderableType

TABLE_WIDTH = 80
"""Columns that the text below a table takes at most."""

Records = Sequence[Mapping[str, Any]]
"""Rows of a table, with the same names in each."""


class Tables(Mapping[str, "pandas.DataFrame"]):
    """Tables by name, each made a frame when it is asked for.

    A table is given as rows, as a mapping of columns to arrays, as a frame, or as a
    function that returns one of these.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = dict(given)

    def __getitem__(self, name: str) -> pandas.DataFrame:
        import pandas

        table = self._given[name]
        if callable(table):
            table = table()
        if not isinstance(table, pandas.DataFrame):
            table = pandas.DataFrame(
                table if isinstance(table, Mapping) else list(table)
            )
        self._given[name] = table
        return table

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __contains__(self, name: object) -> bool:
        return name in self._given  # without making the frame

    def __len__(self) -> int:
        return len(self._given)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a table; pandas is imported only if it is a frame."""
        table = self._given[name]
        if callable(table):
            table = self._given[name] = table()
        if isinstance(table, Sequence):
            return [dict(row) for row in table]
        frame: list[dict[str, Any]] = self[name].to_dict("records")
        return frame


@dataclass(frozen=True, kw_only=True)
class Result:
    """Answer of a verb, shown as a table first and then at most five sentences."""

    verb: str
    head: str
    tables: Mapping[str, Any] = field(default_factory=dict)  # see Tables
    screen: tuple[str, ...] = ()  # tables of the first screen, in order
    captions: Mapping[str, str] = field(default_factory=dict)  # a line below a table
    verdict: tuple[str, ...] = ()  # at most five sentences
    notes: tuple[str, ...] = ()  # what is missing, and why
    data: Mapping[str, Any] = field(default_factory=dict)  # facts that are no table

    def __post_init__(self) -> None:
        if not isinstance(self.tables, Tables):
            object.__setattr__(self, "tables", Tables(self.tables))

    def frame(self, name: str) -> pandas.DataFrame:
        """Return a table as a pandas frame.

        Raises
        ------
        KeyError
            If there is no such table; ``result.tables`` lists them.
        """
        table: pandas.DataFrame = self.tables[name]
        return table

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a table."""
        assert isinstance(self.tables, Tables)
        return self.tables.rows(name)

    def to_dict(self) -> dict[str, Any]:
        """Convert to what JSON holds: unknown numbers are None."""
        return {
            "schema_version": VERSION,
            "verb": self.verb,
            "head": self.head,
            "verdict": list(self.verdict),
            "notes": list(self.notes),
            "data": plain(self.data),
            "tables": {name: plain(self.rows(name)) for name in self.tables},
        }

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Print headline, tables of the first screen, sentences and notes."""
        from rich.text import Text  # whose brackets and numbers are data

        yield from map(Text, self.lines(self.screen, width=options.max_width))

    def lines(self, names: Sequence[str], *, width: int) -> Iterator[str]:
        """Yield the lines of headline, some tables, sentences and notes."""
        yield from wrapped(self.head, width)
        for name in names:
            rows = self.rows(name)
            if rows:
                yield ""
                yield from table_lines(rows, width=width)
                if caption := self.captions.get(name):
                    yield from wrapped(caption, min(width, TABLE_WIDTH), " ")
        if self.verdict:
            yield ""
        for sentence in self.verdict:
            yield from wrapped(sentence, width)
        for note in self.notes:
            yield from wrapped(f"note: {note}", width)

    def _repr_html_(self) -> str:
        tables = "".join(
            table_html(rows) + f"<p>{html_text(self.captions.get(name, ''))}</p>"
            for name in self.screen
            if (rows := self.rows(name))
        )
        texts = (*self.verdict, *(f"note: {note}" for note in self.notes))
        return f"<h3>{html_text(self.head)}</h3>{tables}" + "".join(
            f"<p>{html_text(text)}</p>" for text in texts
        )


def column_of(name: str) -> Column:
    """Return the registered column of a name, or one that shows the name itself."""
    known = COLUMNS.get(name)
    return known or Column(name.replace("_", " "), "", "", "", "")


def texts_of(rows: Records) -> tuple[list[str], list[list[str]], list[bool]]:
    """Format rows: names, cells, and whether each column is aligned to the right.

    The values beside a ``measure`` have the format of that measure, and it is named by
    its heading.  Columns without any value are left out.
    """
    names = list(rows[0])
    measured = "measure" in names
    cells = []
    for row in rows:
        own = column_of(str(row["measure"])) if measured else None
        line = []
        for name in names:
            column, value = column_of(name), row[name]
            if own is not None and name == "measure":
                line.append(visible(own.heading))
            elif own is not None and not column.format and not isinstance(value, str):
                line.append(cell_text(value, own.format))
            else:
                line.append(cell_text(value, column.format))
        cells.append(line)
    kept = [at for at in range(len(names)) if any(line[at] for line in cells)]
    right = [
        all(not isinstance(row[names[at]], str) or not row[names[at]] for row in rows)
        for at in kept
    ]
    shown = [[line[at] for at in kept] for line in cells]
    return [names[at] for at in kept], shown, right


KEYS = ("file", "place", "layer", "group", "subject")
"""Columns whose value is not repeated in the next row."""


def table_lines(rows: Records, *, width: int) -> Iterator[str]:
    """Yield the lines of a table; columns that do not fit are left out and named."""
    names, cells, right = texts_of(rows)
    headings = [column_of(name).heading for name in names]
    sizes = [
        max(len(heading), *(len(line[at]) for line in cells))
        for at, heading in enumerate(headings)
    ]
    kept = list(range(len(headings)))
    while len(kept) > 2 and sum(sizes[at] + 2 for at in kept) > width:
        kept.pop()
    dropped = [headings[at] for at in range(len(headings)) if at not in kept]

    def line(texts: Sequence[str]) -> str:
        shown = (
            texts[at].rjust(sizes[at]) if right[at] else texts[at].ljust(sizes[at])
            for at in kept
        )
        return (" " + "  ".join(shown)).rstrip()

    yield line(headings)
    before: list[str] = []
    for texts in cells:
        shown, same = list(texts), True
        for at, name in enumerate(names):
            same = same and name in KEYS and bool(before) and texts[at] == before[at]
            if not same:
                break
            shown[at] = ""
        yield line(shown)
        before = texts
    if dropped:
        yield f" (not shown: {', '.join(dropped)})"


def table_html(rows: Records) -> str:
    """Format rows as an HTML table; all text is escaped."""
    names, cells, right = texts_of(rows)
    headings = [column_of(name).heading for name in names]
    style = [f' style="text-align:{"right" if r else "left"}"' for r in right]

    def line(texts: Sequence[str], tag: str) -> str:
        inner = "".join(
            f"<{tag}{how}>{html_text(text)}</{tag}>"
            for text, how in zip(texts, style, strict=True)
        )
        return f"<tr>{inner}</tr>"

    body = "".join(line(texts, "td") for texts in cells)
    return f"<table><thead>{line(headings, 'th')}</thead><tbody>{body}</tbody></table>"


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Wrap a text to a width, without control characters."""
    import textwrap

    return textwrap.wrap(
        visible(text),
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )


def plain(value: Any) -> Any:
    """Convert to mappings, lists, numbers and text; unknown numbers become None.

    Examples
    --------
    >>> plain({"a": (0.5, float("nan"))})
    {'a': [0.5, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "tolist"):  # arrays, and numpy's scalars
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

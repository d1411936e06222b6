"""Tables and plain data of results, for the terminal, HTML and JSON.

Every tabulated result is one or more :class:`Table` values: plain cells, and a format
for each column.  ``Console.print`` of rich prints a table, and a notebook shows it as
HTML.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from functools import singledispatch
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard

from .text import html_text, visible
from .units import bit_rate, byte_rate, byte_size, duration, three_digits

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

SCHEMA_VERSION = 5
"""Version of all JSON that the command line prints (``docs/json.md``).

It grows when a field is renamed, removed or changes its meaning, not when one is added.
"""

QUANTITIES: dict[str, Callable[[float], str]] = {
    "bytes": byte_size,
    "three digits": three_digits,
    "bytes/s": lambda value: f"{byte_size(value)}/s",
    "bit/s": bit_rate,  # from bytes per second
    "GB/s": byte_rate,
    "s": duration,
}
"""Formats with a unit whose prefix depends on the value."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Table of plain values, with a name and a format for each column.

    A cell is a number, text, a boolean, None, or a pair of numbers (an interval).
    None and non-finite numbers are shown as blanks.

    Examples
    --------
    >>> table = Table(
    ...     title="Hottest links",
    ...     columns={"link": "", "busy": "s", "share": ".1%"},
    ...     rows=[("leaf 0 -> spine 1", 0.00125, 0.5)],
    ... )
    >>> table.texts()
    [['leaf 0 -> spine 1', '1.25 ms', '50.0%']]
    """

    title: str = ""
    columns: Mapping[str, str] | Sequence[str] = ()
    """Names, or names to formats: a format specification of Python's, which may begin
    with ``<`` or ``>`` to align texts, or one of :data:`QUANTITIES`.  Without columns,
    a row is a name and a value."""
    rows: Sequence[Sequence[object]]
    notes: Sequence[str] = ()  # sentences below the table
    unit: str = ""  # of all values whose column has no unit
    styles: Mapping[str, str] = field(default_factory=dict)
    """Colors of cells in a terminal, by their text."""

    def formats(self) -> list[str]:
        """Return the format of each column."""
        if isinstance(self.columns, Mapping):
            return list(self.columns.values())
        width = len(self.columns) or max(map(len, self.rows), default=0)
        return [""] * width

    def texts(self) -> list[list[str]]:
        """Format all cells as text without control characters."""
        return [
            [
                written(cell, form)
                for cell, form in zip(row, self.formats(), strict=True)
            ]
            for row in self.rows
        ]

    def right(self) -> list[bool]:
        """Return whether each column is right-aligned (formatted or numeric)."""
        return [
            not form.startswith("<")
            and (bool(form) or any(_is_number(row[at]) for row in self.rows))
            for at, form in enumerate(self.formats())
        ]

    def heading(self) -> str:
        """Return the title with the unit."""
        return visible(f"{self.title} [{self.unit}]" if self.unit else self.title)

    def as_dict(self) -> dict[str, Any]:
        """Convert title, column names, rows, unit and notes to JSON-able data."""
        return {
            "title": self.title,
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "unit": self.unit,
            "notes": list(self.notes),
        }

    def to_html(self) -> str:
        """Format the table as HTML without scripts and links; all text is escaped."""
        style = [
            f'style="text-align:{"right" if right else "left"};vertical-align:top"'
            for right in self.right()
        ]
        head = "".join(
            f'<th scope="col" {how}>{html_text(name)}</th>'
            for name, how in zip(self.columns, style, strict=False)
        )
        body = "".join(
            "<tr>"
            + "".join(
                f"<td {how}>{html_text(cell)}</td>"
                for cell, how in zip(row, style, strict=True)
            )
            + "</tr>"
            for row in self.texts()
        )
        return (
            f"<h3>{html_text(self.heading())}</h3>"
            '<div class="scroll" tabindex="0"><table>'
            + (f"<thead><tr>{head}</tr></thead>" if head else "")
            + f"<tbody>{body}</tbody></table></div>"
            + "".join(f'<p class="source">{html_text(note)}</p>' for note in self.notes)
        )

    def _repr_html_(self) -> str:
        return self.to_html()

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Yield what prints the table in the width of a terminal."""
        from .fitting import Column, fitted  # rich takes long to import

        texts, right = self.texts(), self.right()
        names = [visible(name) for name in self.columns] or [""] * len(right)
        columns = [
            Column(
                name=name,
                cells=[row[at] for row in texts],
                right=right[at] and bool(self.columns),
            )
            for at, name in enumerate(names)
        ]
        yield from fitted(
            self.heading() if self.title else "",
            columns,
            self.notes,
            self.styles,
            head=bool(self.columns),
            width=options.max_width,
        )


def written(value: object, form: str = "") -> str:
    """Format the value of a table cell as text.

    Unknown values are blank; ``form`` is the format of the column.

    Examples
    --------
    >>> written(0.25, ".1%"), written((1.0, 2.5)), written(float("nan")), written(True)
    ('25.0%', '1 to 2.5', '', 'yes')
    >>> written(-0.0001, ".1%"), written(-0.1, ".1%")
    ('0.0%', '-10.0%')
    >>> written(2_500_000, "bytes"), written(1234567), written(98765.4)
    ('2.50 MB', '1,234,567', '98,765')
    """
    if hasattr(value, "item"):  # numpy's scalars
        value = value.item()
    if isinstance(value, tuple):
        ends = [written(end, form) for end in value]
        return " to ".join(ends) if all(ends) else ""
    if _unknown(value):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not _is_number(value):
        return visible(value)
    if form in QUANTITIES:
        return QUANTITIES[form](value)
    spec = form.lstrip("<>")
    if not spec:
        whole = isinstance(value, int) or abs(value) >= 1e4
        spec = ",.0f" if whole else ".4g"
    text = format(value, spec)
    # what rounds to zero has no sign
    return text if any(map("123456789".__contains__, text)) else text.lstrip("-")


def _is_number(value: object) -> TypeGuard[float]:
    return hasattr(value, "__float__") and not isinstance(value, bool)


def _unknown(value: object) -> bool:
    return value is None or (_is_number(value) and not math.isfinite(value))


def plain(value: Any) -> Any:
    """Convert a result to mappings, lists, numbers and text, as in JSON.

    Dataclasses become mappings with their fields' names, which carry the units; arrays
    become lists, enumerations their values; infinite and undefined numbers None.

    Examples
    --------
    >>> plain({("a", 1): (0.5, float("nan"))})
    {'a 1': [0.5, None]}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.repr}
    if isinstance(value, Mapping):
        return {
            " ".join(map(str, key)) if isinstance(key, tuple) else str(key): plain(each)
            for key, each in value.items()
        }
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "tolist"):  # arrays, and numpy's scalars
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@singledispatch
def tables_of(result: object) -> Sequence[Table]:
    """Tabulate a result of any type that :mod:`moetraffic.report` supports.

    Raises
    ------
    TypeError
        If no table was registered for the type, with ``tables_of.register``.
    """
    raise TypeError(f"there is no table of a {type(result).__name__}")


class ShownAsTables:
    """Mixin for results that a notebook shows as their registered tables.

    Classes in packages that must not import :mod:`moetraffic.report` inherit this: the
    module that registers their tables is imported when a result is shown.
    """

    registered_in: ClassVar[str] = "moetraffic.report.notebook"

    def _repr_html_(self) -> str:
        """Format the tables of the result as HTML for a notebook."""
        import_module(self.registered_in)
        return "".join(table.to_html() for table in tables_of(self))

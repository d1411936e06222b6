"""Show the result of a verb: its first screen, tables, JSON or a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from moetraffic.cli import output as terminal
from moetraffic.errors import AnalysisError
from moetraffic.files import validate_output
from moetraffic.report.chart import Chart, picture_format
from moetraffic.report.console.options import option
from moetraffic.report.write import json_text, validate, write
from moetraffic.result import Result, table_lines
from moetraffic.spelling import check_choice
from moetraffic.trace import Trace

LONGEST = 100
"""Rows of a table that --tables prints; --only prints all."""


def _validated(context: typer.Context, path: Path | None) -> Path | None:
    if path is not None:
        validate(path, force=bool(context.params.get("force")))
    return path


AsJson = Annotated[bool, Option("--json", help="Print JSON.")]
AllTables = Annotated[bool, Option("--tables", help="Print all tables.")]
Only = Annotated[
    str | None, Option(help="Print or write these tables alone, with commas.")
]
Output = Annotated[
    Path | None,
    Option(
        "-o",
        "--output",
        help="File to write: .json, .csv, .parquet or .xlsx.",
        callback=_validated,
    ),
]
Force = Annotated[
    # read before the outputs, which it allows to exist
    bool, Option("--force", help="Overwrite existing outputs.", is_eager=True)
]


def _pictured(context: typer.Context, path: Path | None) -> Path | None:
    if path is not None:
        picture_format(path)
        force = bool(context.params.get("force"))
        validate_output(path, force=force, error=AnalysisError)
    return path


def _inches(text: str) -> float:
    from moetraffic.report.figure_style import inches

    return inches(text)


LOOK = "Appearance"

Plot = Annotated[
    Path | None,
    Option(help="PNG, PDF or SVG picture to write.", callback=_pictured),
]
Width = Annotated[
    float | None,
    option(
        ...,
        "Width of the picture, such as 3.4in, 86mm or 252pt.",
        read=_inches,
        shown="9 to 12 in",
        panel=LOOK,
    ),
]
NoTitle = Annotated[
    bool,
    Option(
        "--no-title",
        help="Write no headline and no description of the data.",
        rich_help_panel=LOOK,
    ),
]


def draw(
    chart: Chart,
    plot: Path,
    *,
    width: float | None = None,
    no_title: bool = False,
    as_json: bool = False,
) -> None:
    """Write a picture, and print its name and, if it is not in it, its caption."""
    from moetraffic.report import figures
    from moetraffic.report.figure_style import FigureStyle

    figures.save(chart, plot, FigureStyle(width_in=width, title=not no_title))
    if not as_json:
        caption = f": {figures.caption(chart)}" if no_title else ""
        terminal.console.print(f"written: {plot}{caption}", soft_wrap=True)


def show(
    *results: Result,
    as_json: bool = False,
    tables: bool = False,
    only: str | None = None,
    output: Path | None = None,
    force: bool = False,
) -> None:
    """Print the first screen of results of a verb, or what the options ask for.

    Parameters
    ----------
    results
        Of one verb, such as one per trace.
    as_json
        Whether JSON is printed in place of text.
    tables
        Whether the tables that the first screen lacks follow it.
    only
        Names of tables, separated by commas, which replace the first screen.
    output
        File to write; it has the chosen tables, else all.
    force
        Whether ``output`` is overwritten.
    """
    names = list(dict.fromkeys(name for result in results for name in result.tables))
    if only is not None:
        chosen = list(dict.fromkeys(only.split(",")))
        for name in chosen:
            check_choice("a table", name, names, AnalysisError)
        names = chosen
    files = [] if output is None else write(results, output, names=names, force=force)
    if as_json:
        print(json_text(results, None if only is None else names))
        return
    console = terminal.console
    for number, result in enumerate(results):
        left = [name for name in names if name in result.tables]
        if only is None:
            console.print(*[""] * bool(number), result, sep="\n")
            left = [name for name in left if tables and name not in result.screen]
        elif files:  # which have the chosen tables
            continue
        elif len(results) > 1:
            console.print(result.head)
        for name in left:
            _print_table(result, name, whole=only is not None)
    if files:
        console.print(f"written: {', '.join(map(str, files))}", soft_wrap=True)


def show_trace(
    path: Path,
    *,
    as_json: bool,
    tables: bool,
    only: str | None,
    following: str = "",
    **facts: Any,
) -> None:
    """Print the contents of a trace file, and a last sentence of commands.

    ``facts`` are further arguments of :func:`moetraffic.report.views.info.info`.
    """
    from moetraffic.report.views.info import info

    with Trace.open(path) as trace:
        result = info(trace, path, **facts)
        show(result, as_json=as_json, tables=tables, only=only)
    if following and not as_json and only is None:
        terminal.console.say(following)


def _print_table(result: Result, name: str, *, whole: bool) -> None:
    """Print a table below its name."""
    console = terminal.console
    rows = result.rows(name)
    console.print(f"\n{name}" if rows else f"\n{name}: no row")
    shown = rows if whole else rows[:LONGEST]
    for line in table_lines(shown, width=console.width) if rows else ():
        console.print(line, soft_wrap=True)
    if len(shown) < len(rows):
        console.print(f" ({len(rows) - len(shown):,} more rows: --only {name})")

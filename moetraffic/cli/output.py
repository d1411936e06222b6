"""Printing of results, as text or JSON, and of progress."""

from __future__ import annotations

import functools
import inspect
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from moetraffic.errors import AnalysisError, MoetrafficError
from moetraffic.files import remedy, validate_folder, write_text
from moetraffic.report.console.options import (
    APPEARANCE,
    AllTables,
    AsJson,
    only_option,
    parts_of,
    takes,
)
from moetraffic.report.console.selection import selected
from moetraffic.report.console.terminal import Paper, say
from moetraffic.tables import SCHEMA_VERSION, plain

if TYPE_CHECKING:
    import pandas

    from moetraffic.report.chart import Chart

T = TypeVar("T")

console = Paper()

WRITTEN = (".json", ".csv", ".parquet", ".xlsx")
"""File extensions of results."""

LINE_S = 10.0
"""Time between two lines of progress where standard error is no terminal, s."""


@dataclass(frozen=True, kw_only=True)
class Printing:
    """How a verb prints its result, from the options that :func:`printed` adds."""

    only: tuple[str, ...]  # parts whose tables replace the summary; empty: none
    tables: bool  # whether the tables of all parts follow the summary
    as_json: bool
    plot: Path | None = None  # picture to write
    look: Mapping[str, Any] = field(default_factory=dict)  # values of APPEARANCE

    def present(self, data: Any, *shown: Any, **more: Any) -> None:
        """Print a result as requested; the other arguments of :func:`present`."""
        present(data, *shown, **vars(self), **more)


def printed(
    parts: Sequence[str], *, plot: Any = None
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Add the options of how a result is printed to a verb, as one :class:`Printing`.

    The parameter is ``printing``. ``parts`` are the names that ``--only`` takes;
    ``plot`` is the annotated type of the option that names a picture.
    """
    kinds: dict[str, tuple[Any, Any]] = {
        "tables": (AllTables, False),
        "only": (str | None, only_option(None, parts)),
        "as_json": (AsJson, False),
    }
    if plot is not None:
        kinds["plot"] = plot, None
    options = {
        name: inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
        )
        for name, (kind, default) in kinds.items()
    }
    drawn = {} if plot is None else APPEARANCE

    def printing(verb: Callable[..., T]) -> Callable[..., T]:
        @takes(printing=options, look=drawn)
        @functools.wraps(verb)
        def with_printing(
            *, printing: dict[str, Any], look: dict[str, Any], **given: Any
        ) -> T:
            only = parts_of(printing["only"], parts)
            chosen = Printing(**{**printing, "only": only}, look=look)
            return verb(printing=chosen, **given)

        return with_printing

    return printing


class Tick(Protocol):
    """Callback that reports progress."""

    def __call__(self, done: int, note: str = "") -> None:
        """Report that ``done`` of the total are done, with a short note."""
        ...


def present(
    data: Any,
    *shown: Any,
    as_json: bool,
    parts: Mapping[str, Sequence[Any]] | None = None,
    only: Sequence[str] = (),
    tables: bool = False,
    written: Sequence[Path | None] = (),
    output: Path | None = None,
    frame: Callable[[], pandas.DataFrame] | None = None,
    force: bool = False,
    chart: Chart | None = None,
    plot: Path | None = None,
    look: Mapping[str, Any] | None = None,
    code: int = 0,
) -> None:
    """Write the files of a result, and print it as JSON, or as tables and sentences.

    ``shown`` are tables and sentences, the summary, which are printed without
    ``--json``; the tables of ``parts`` follow with ``tables``, those of the parts
    ``only`` replace the summary.
    ``written`` are files that exist already (None where one was not asked for).
    ``output`` is a file to write, JSON or, with a data ``frame``, a table; ``plot`` a
    picture of ``chart``, ``look`` the values of
    :data:`moetraffic.report.console.options.APPEARANCE`.  An exit ``code`` ends the
    verb, also if the reader closes the pipe.
    """
    if plot is not None:
        if chart is None:
            raise AnalysisError("this result has no picture: leave out --plot")
        from moetraffic.report import figures
        from moetraffic.report.figure_style import FigureStyle

        figures.save(chart, plot, FigureStyle(**(look or {})))
    if output is not None and frame is not None:
        write_result(output, data, frame, force=force)
    elif output is not None:
        write_text(output, json_text(data) + "\n")
    files = [path for path in (*written, plot, output) if path]
    with suppress(BrokenPipeError) if code else nullcontext():
        if as_json:
            print(json_text(data))
        # the tables of parts alone are not printed beside a file that has them
        elif not (only and any(path.suffix in WRITTEN for path in files)):
            console.show(selected(shown, parts or {}, only=only, tables=tables))
        if files and not as_json:
            console.print(f"written: {', '.join(map(str, files))}", soft_wrap=True)
    if code:
        raise typer.Exit(code)


def make_folder(folder: Path, names: Sequence[str], *, force: bool) -> None:
    """Make a folder for outputs; refuse one that has files of these names.

    ``names`` are file names or patterns, which ``force`` allows to replace.

    Raises
    ------
    MoetrafficError
        If it cannot be made, its own folder does not exist, or a file would be lost.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise MoetrafficError(f"{folder} is not a folder: choose another with -o")
        validate_folder(folder.absolute().parent, error=MoetrafficError)
        there = [p.name for name in names for p in sorted(folder.glob(name))]
        if there and not force:
            raise MoetrafficError(
                f"{folder} has {', '.join(there)}, which is not overwritten: choose "
                "another folder with -o, or give --force"
            )
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise MoetrafficError(
            f"the folder {str(folder)[:200]} cannot be made ({error.strerror}): "
            f"{remedy(error)}"
        ) from None


def write_result(
    path: Path, data: Any, frame: Callable[[], pandas.DataFrame], *, force: bool
) -> None:
    """Write a result as JSON or as a flat table, by the file's extension."""
    if path.suffix == ".json":
        write_text(path, json_text(data) + "\n")
        return
    from moetraffic.report.write import write_frames

    write_frames(path, {"results": frame()}, force=force)


def json_text(value: Any) -> str:
    """Format one JSON document; infinite and undefined numbers become null.

    An object begins with the version of its schema.
    """
    if isinstance(value, Mapping):
        value = {"schema_version": SCHEMA_VERSION, **value}
    return json.dumps(plain(value), indent=2)


@contextmanager
def progress(
    title: str,
    total: int,
    *,
    quiet: bool = False,
    plain: bool = False,
    start: bool = False,
) -> Iterator[Tick]:
    """Show a bar if standard error is a terminal, else a line every :data:`LINE_S`.

    With ``start``, the first line comes before the first step, which may take long.
    """
    if quiet:
        yield lambda done, note="": None
    elif sys.stderr.isatty() and not plain:
        with Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeRemainingColumn(),
            console=Paper(stderr=True),
        ) as bars:
            task = bars.add_task(title, total=total, note="")
            yield lambda done, note="": bars.update(task, completed=done, note=note)
    else:
        said_s = time.monotonic()
        if start:
            say(f"{title}: 0 of {total} done")

        def line(done: int, note: str = "") -> None:
            nonlocal said_s
            if time.monotonic() - said_s >= LINE_S:
                said_s = time.monotonic()
                say(f"{title}: {done} of {total} done{f' ({note})' * bool(note)}")

        yield line

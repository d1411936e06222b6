"""Write the tables of results to files: JSON, CSV, Parquet or XLSX."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moetraffic.columns import VERSION
from moetraffic.errors import AnalysisError, install_command
from moetraffic.files import replacing, validate_output, write_errors, write_text
from moetraffic.result import Result
from moetraffic.text import visible

if TYPE_CHECKING:
    import pandas

SUFFIXES = (".json", ".csv", ".parquet", ".xlsx")

MOST_ROWS = 1_048_576
"""Rows of a worksheet of an XLSX file, with its header."""


def validate(path: Path, *, force: bool) -> None:
    """Check name, format and folder of an output before its content is computed."""
    if path.suffix not in SUFFIXES:
        raise AnalysisError(
            f"results are written as {', '.join(SUFFIXES)}, but {path.name} is none of "
            "these: choose one of these file extensions"
        )
    validate_output(path, force=force, error=AnalysisError)


def write(
    results: Sequence[Result], path: Path, *, names: Sequence[str], force: bool = False
) -> list[Path]:
    """Write tables of results; those of several results begin with column ``file``.

    A JSON file also has headline, sentences, notes and facts; an XLSX file has a sheet
    per table.  Several tables as CSV or Parquet are one file each, ``STEM.TABLE.csv``.

    Parameters
    ----------
    results
        Of one verb.
    path
        File to write, whose extension is one of :data:`SUFFIXES`.
    names
        Tables to write.
    force
        Whether existing files are overwritten.

    Returns
    -------
    list of Path
        The files written.

    Raises
    ------
    AnalysisError
        If a file exists, cannot be written, or holds fewer rows, or if a package is not
        installed.
    """
    validate(path, force=force)
    if path.suffix == ".json":
        write_text(path, json_text(results, names) + "\n", error=AnalysisError)
        return [path]
    frames = {name: joined(results, name) for name in names}
    frames = {name: frame for name, frame in frames.items() if len(frame.columns)}
    if not frames:
        raise AnalysisError(
            f"a {path.suffix} file holds tables, but this result has no row: write "
            ".json"
        )
    if path.suffix == ".xlsx" or len(names) == 1:
        parts = {path: frames}
    else:
        parts = {
            path.with_suffix(f".{name}{path.suffix}"): {name: frame}
            for name, frame in frames.items()
        }
    for file in parts:
        validate_output(file, force=force, error=AnalysisError)
    for file, tables in parts.items():
        write_frames(file, tables, force=force)
    return list(parts)


def write_frames(
    path: Path, frames: dict[str, pandas.DataFrame], *, force: bool = False
) -> None:
    """Write a frame as CSV or Parquet, or some as sheets of XLSX, by the extension.

    Raises
    ------
    AnalysisError
        If the file exists, cannot be written, or holds fewer rows, or if a package is
        not installed.
    """
    validate(path, force=force)
    try:
        with write_errors(path, error=AnalysisError), replacing(path) as temporary:
            _write(temporary, path.suffix, frames)
    except ImportError:
        package = "openpyxl" if path.suffix == ".xlsx" else "pyarrow"
        raise AnalysisError(
            f"{path.suffix} files are written by {package}, which is not installed: "
            f"{install_command('tables')}, or choose a .csv"
        ) from None


def _write(path: Path, suffix: str, frames: dict[str, pandas.DataFrame]) -> None:
    """Write one frame as CSV or Parquet, or some as sheets of an XLSX file."""
    import pandas

    for name, frame in frames.items():
        if suffix == ".csv":
            frame.to_csv(path, index=False)
        elif suffix == ".parquet":
            frame.to_parquet(path, index=False)
        elif len(frame) >= MOST_ROWS:
            raise AnalysisError(
                f"a worksheet has at most {MOST_ROWS:,} rows, but {name} has "
                f"{len(frame):,}: choose a .parquet or .csv, or --only some tables"
            )
    if suffix == ".xlsx":
        with (
            path.open("wb") as file,
            pandas.ExcelWriter(file, engine="openpyxl") as book,
        ):
            for name, frame in frames.items():
                frame.map(_cell).to_excel(book, sheet_name=name[:31], index=False)


def _cell(value: Any) -> Any:
    """Return a value of a worksheet: text without control characters, no formula."""
    if not isinstance(value, str):
        return value
    return visible(f"'{value}" if value.startswith("=") else value)


def joined(results: Sequence[Result], name: str) -> pandas.DataFrame:
    """Join a table of some results; with several, the first column names the file."""
    import pandas

    frames = [result.frame(name) for result in results if name in result.tables]
    if len(results) > 1:
        files = [r.data.get("file", "") for r in results if name in r.tables]
        frames = [
            frame.assign(file=file)[["file", *frame.columns]]
            for file, frame in zip(files, frames, strict=True)
        ]
    return pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame()


def json_text(results: Sequence[Result], names: Sequence[str] | None = None) -> str:
    """Format one result as a JSON object, several as ``results`` of one.

    ``names``: Tables that it has; None: all.
    """
    every: list[dict[str, Any]] = []
    for result in results:
        fields = result.to_dict()
        if names is not None:
            tables = fields["tables"]
            fields["tables"] = {name: tables[name] for name in names if name in tables}
        every.append(fields)
    whole = (
        every[0] if len(every) == 1 else {"schema_version": VERSION, "results": every}
    )
    return json.dumps(whole, indent=2)
